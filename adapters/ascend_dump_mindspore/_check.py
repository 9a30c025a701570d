"""Find settings that MindSpore refuses, that it ignores, or that come too late."""

from __future__ import annotations

import importlib
import json
import os
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

from ascend_dump import AscendDumpError
from ascend_dump.adapter import DumpRequest, Problem, current_rank, size_is_unlimited, worst_first
from ascend_dump.native.mindspore.config.build import left_out
from ascend_dump.native.mindspore.config.check import check_mindspore_config
from ascend_dump.native.mindspore.config.dump_json import CONFIG_VARIABLE
from ascend_dump_mindspore._counting import can_count
from ascend_dump_mindspore._process import armed, is_foreign, without_path
from ascend_dump_mindspore._program import known_of
from ascend_dump_mindspore._runtime import (
    current_runtime,
    is_initialized,
    native,
    set_dump,
    wait_for_operators,
)
from ascend_dump_mindspore._settings import build, can_pause

__all__ = ["check"]

#: A path for the check of the JSON. The real JSON contains the path of a link that the capture creates; the capture
#: checks the user's path itself.
_ANY_PATH = Path("/tmp")


def check(request: DumpRequest, target: Any) -> list[Problem]:
    """Return all problems of a request, errors first."""
    mindspore = importlib.import_module("mindspore")
    problems: list[Problem] = []
    try:
        config = build(request, mindspore, _ANY_PATH)
    except AscendDumpError as error:
        problems.append(Problem(error.code, "error", error.message, error.hint))
    else:
        problems += left_out(request)
        problems += _too_late(mindspore, config)
        # Without a target the program may choose its mode (graph or PyNative) later, so the capture reports problems
        # with the mode at its end.
        facts = known_of(target, mindspore, mode_is_chosen=target is not None or armed() is not None)
        found_in_config = check_mindspore_config(
            json.dumps(config).encode(), all=True, runtime=current_runtime(mindspore), known=facts
        )
        problems += [problem for problem in found_in_config if not problem.where.endswith(".path")]
    problems += _of_capture(request, target, mindspore)
    return worst_first(problems)


def _too_late(mindspore: ModuleType, config: dict[str, Any]) -> Iterator[Problem]:
    current = armed()
    wait_for_operators()
    if is_foreign(os.environ.get(CONFIG_VARIABLE, "")):
        yield Problem(
            "AD276",
            "error",
            f"{CONFIG_VARIABLE} is set already, and MindSpore reads only one configuration per process",
            "unset it, or dump with it and read the files with ascend_dump.open",
            CONFIG_VARIABLE,
        )
    elif current is None and is_initialized(mindspore):
        yield Problem(
            "AD271",
            "error",
            "MindSpore's device is initialised, and after that it reads no dump configuration: nothing would be dumped",
            "start the capture before the first operator, compile or communication.init; "
            "or start the program with ASCEND_DUMP set",
        )
    elif current is not None and current.on:
        yield Problem("AD302", "error", "another capture of MindSpore is on", "stop it first: a process has only one")
    elif current is not None:
        yield from _second(mindspore, current.settings, without_path(config))


def _second(mindspore: ModuleType, before: dict[str, Any], now: dict[str, Any]) -> Iterator[Problem]:
    if before != now:
        block, key = next(
            (block, key)
            for block in {**before, **now}
            for key in {**before.get(block, {}), **now.get(block, {})}
            if before.get(block, {}).get(key) != now.get(block, {}).get(key)
        )
        old, new = before.get(block, {}).get(key), now.get(block, {}).get(key)
        yield Problem(
            "AD277",
            "error",
            f"an earlier capture of this process had {key}={old!r}, this one has {new!r}; MindSpore keeps the first",
            "use the same settings for each capture, or a process for each",
            f"{block}.{key}",
        )
    if native(mindspore, "_set_init_iter") is None or native(mindspore, "_dump_step") is None or not can_count():
        yield Problem(
            "AD277",
            "error",
            "this MindSpore cannot resume a dump that has ended in the same process",
            "use one capture per process",
        )


def _of_capture(request: DumpRequest, target: Any, mindspore: ModuleType) -> Iterator[Problem]:
    runtime = current_runtime(mindspore)
    yield from size_is_unlimited(request, "MindSpore")
    if not can_pause(mindspore, request):
        yield Problem(
            "AD280",
            "warning",
            "MindSpore cannot be paused here: it goes on dumping after the block, into the same directory",
            "select the steps that are to be dumped with steps=",
        )
    if request.options.get("set_dump"):
        if target is None:
            yield Problem(
                "AD274",
                "error",
                "options['set_dump'] marks a target, and there is none",
                "give the Cell to dump as target",
            )
        elif set_dump(mindspore) is None:
            yield Problem("AD274", "error", "this MindSpore has no set_dump", "leave options['set_dump'] out")
    if current_rank().world > 1 and runtime.device == "Ascend" and "HCCL_EXEC_TIMEOUT" not in os.environ:
        yield Problem(
            "AD281",
            "warning",
            "dumping delays some devices, and the others wait for them in collectives until these time out",
            "set HCCL_EXEC_TIMEOUT to some thousand seconds, or dump fewer steps and operators",
            "HCCL_EXEC_TIMEOUT",
        )
