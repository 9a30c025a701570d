"""Judging the origins of a comparison by the stages of a case; knows nothing of how they were found."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path
from typing import Any

from framework_pairs.cases import Case

_PROGRAMS = Path(__file__).parent / "programs"


@cache
def _stages_of_lines() -> dict[tuple[str, int], str]:
    """Return the stage of each line of a program that has one: all lines of a statement."""
    stages: dict[tuple[str, int], str] = {}
    for path in _PROGRAMS.glob("*.py"):
        code = path.read_text(encoding="utf-8")
        lines = code.splitlines()
        for node in ast.walk(ast.parse(code)):
            if not isinstance(node, ast.stmt) or hasattr(node, "body"):
                continue
            numbers = range(node.lineno, (node.end_lineno or node.lineno) + 1)
            found = [match[1] for number in numbers if (match := re.search(r"# stage: (\w+)$", lines[number - 1]))]
            stages.update({(path.name, number): found[0] for number in numbers if found})
    return stages


@cache
def _all_stages() -> frozenset[str]:
    return frozenset(_stages_of_lines().values()) | {"loss"}


def _stages_in_name(name: str) -> set[str]:
    """Return the stages in the scopes of an operator's name."""
    if re.search(r"(^|/)(update|optimizer-\w+|Momentum|SGD|gradient_clip)(_\d+)?(/|$)", name):
        return {"update"}
    scopes = (re.sub(r"(_\d+|-\w+|_grad)+$", "", scope) for scope in name.split("/"))
    return {scope for scope in scopes if scope in _all_stages()}


def stages_of(record: Any) -> set[str]:
    """Return the stages that a record belongs to; none if the dump does not say."""
    found = re.fullmatch(r"(.*):(\d+)", record.source or "")
    stage = _stages_of_lines().get((Path(found[1]).name, int(found[2]))) if found else None
    stages = {stage} if stage and stage != "call" else set()
    return stages | _stages_in_name(record.op_name) | _stages_in_name((record.module or "").replace(".", "/"))


def is_right(origin: Any, case: Case) -> bool:
    """Return whether an engineer would accept the origin: no record of it is in another known stage."""
    records = [record for record in (origin.pair.actual, origin.pair.reference) if record is not None]
    if "update" in case.stages and origin.kind == "parameter" and any(record.step for record in records):
        # The dump of a single operator that updates a parameter has no result: the next step shows it.
        return True
    known = [stages for record in records if (stages := stages_of(record))]
    if not known:
        return any(record.op_type in case.stages for record in records)
    return bool(known) and all(stages & case.stages for stages in known)


def outcome(case: Case, verdict: str, origins: list[Any]) -> str:
    """Return how the answer is to be counted."""
    if not case.is_fault:
        if origins:
            return "named"
        return "different" if verdict in ("different", "unreadable") else "quiet"
    if verdict in ("equal", "noise"):
        return "noise"
    if not origins:
        return "none"
    if is_right(origins[0], case):
        return "right"
    return "later" if any(is_right(origin, case) for origin in origins[1:]) else "wrong"
