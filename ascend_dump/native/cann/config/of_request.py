"""What CANN would make of a request: the problems of the dump JSON that is built from it, and its file."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Callable

from ascend_dump._errors import WriteError
from ascend_dump._paths import open_private
from ascend_dump._problem import Problem
from ascend_dump.native.cann.config import ge as ge_reading
from ascend_dump.native.cann.config._adump_checks import NO_SUCH_PATH
from ascend_dump.native.cann.config._subjects import AclSubject
from ascend_dump.native.cann.config.check import check_acl_config
from ascend_dump.native.cann.config.parse import read_source
from ascend_dump.native.cann.config.silent import SILENT
from ascend_dump.native.cann.config.situation import Situation

__all__ = ["problems_of_config", "save_config"]

_PATH_KEY = "dump.dump_path"


def problems_of_config(build: Callable[[Path], dict[str, Any]], planned: Path, situation: Situation) -> list[Problem]:
    """The problems of the dump JSON that `build(dump_path)` gives.

    planned: the absolute dump path. It may not exist yet: the capture creates it, so that is no problem.
    """
    there = planned
    while not there.is_dir():
        there = there.parent
    problems = check_acl_config(_encode(build(there)), situation=situation)
    known = {(problem.code, problem.where) for problem in problems}
    return [*problems, *(one for one in _of_path(build(planned), situation) if (one.code, one.where) not in known)]


def _of_path(config: dict[str, Any], situation: Situation) -> Iterator[Problem]:
    """What is wrong with the text of a path, apart from its not being there."""
    for problem in check_acl_config(_encode(config), all=True, situation=situation):
        if problem.where == _PATH_KEY and problem.severity == "error" and NO_SUCH_PATH not in problem.message:
            yield problem
    subject = AclSubject.of(read_source(config), situation)
    verdict = subject.verdict._replace(accepted=True, need_dump=True)
    subject = subject._replace(verdict=verdict, ge=ge_reading.judge(config, verdict, env=situation.env))
    yield from SILENT["ge-path-characters"].problems(subject)


def _encode(config: dict[str, Any]) -> bytes:
    return json.dumps(config).encode()


def save_config(file: Path, config: dict[str, Any]) -> None:
    """Write a dump JSON, readable by its owner only. Raises WriteError."""
    try:
        with open(open_private(file, os.O_WRONLY | os.O_TRUNC | os.O_NOFOLLOW), "w", encoding="utf-8") as opened:
            opened.write(json.dumps(config, indent=2, ensure_ascii=False) + "\n")
    except OSError as error:
        raise WriteError(f"{file} cannot be written: {error.strerror}", hint="free some space") from error
