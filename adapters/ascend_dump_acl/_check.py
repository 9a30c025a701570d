"""Find settings that CANN refuses, that it accepts and ignores, or that come too late."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ascend_dump import AscendDumpError
from ascend_dump.adapter import DumpRequest, Problem, RunDirectory, size_is_unlimited, worst_first
from ascend_dump.native.cann.config.of_request import problems_of_config
from ascend_dump.native.scenes import SCENES
from ascend_dump_acl._settings import build, look_around

__all__ = ["check"]


def check(request: DumpRequest, target: Any, run: RunDirectory) -> list[Problem]:
    """Return all problems of a request, errors first."""
    problems = list(_too_late(target))
    try:
        situation = look_around(request)
        problems += problems_of_config(build(request, run.path, situation), run.path, situation)
    except AscendDumpError as error:
        problems.append(Problem(error.code, "error", error.message, error.hint))
    problems += [*SCENES.problems(request), *_of_acl(request)]
    return worst_first(problems)


def _too_late(target: Any) -> Iterator[Problem]:
    if target is not None:
        yield Problem(
            "AD230",
            "error",
            f"model {target} is loaded already, and CANN dumps only models that are loaded after the dump is set",
            "start the capture without a target before acl.mdl.load_from_file, or unload the model and load it inside",
            "target",
        )


def _of_acl(request: DumpRequest) -> Iterator[Problem]:
    """Yield the problems that only captures of offline models have."""
    if request.scene in (None, "watch") and request.steps.all:
        yield Problem(
            "AD115",
            "warning",
            "each execution of a model adds data to the dump",
            "run the model once inside the block, or set steps=",
            "steps",
        )
    yield from size_is_unlimited(request)
