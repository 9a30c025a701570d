"""Judge findings of the tool by the truth of a fault."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import Any

from rank_programs.common import Fault, Program

#: Rules of `triage` that compare ranks: a suspect of these on the rank that makes the mistake points to that rank.
RANK_RULES = ("extra-operator", "shard-update", "replicas", "disagreement", "collective-order")
_MARK = re.compile(r"# planted: (.+)$")

Finding = dict[str, Any]


def marked_lines(program: Program, name: str) -> set[int]:
    """Return the numbers of the lines of all statements in a program's file that have this name in their mark."""
    text = program.file.read_text()
    marked: set[int] = set()
    for number, line in enumerate(text.splitlines(), 1):
        mark = _MARK.search(line)
        if mark and name in mark[1].split(", "):
            marked.add(number)
    lines = set(marked)
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, (ast.Expr, ast.Assign, ast.AugAssign, ast.Return)):
            statement = range(node.lineno, (node.end_lineno or node.lineno) + 1)
            if marked.intersection(statement):
                lines.update(statement)
    return lines


def line_of(program: Program, source: str | None) -> int | None:
    """Return the number of the line if the source is in the program's file."""
    file, _, line = (source or "").rpartition(":")
    return int(line) if line.isdigit() and Path(file).name == program.file.name else None


def is_right(finding: Finding, program: Program, name: str, way: str) -> bool:
    """Return True if the finding points to the fault."""
    fault: Fault = program.faults[name]
    line = line_of(program, finding["source"])
    if line in marked_lines(program, name):
        return True
    if fault.at and re.search(fault.at, finding["place"], re.IGNORECASE):
        return True
    if way == "alone":
        if finding["kind"] in fault.rules.split():
            return True
        return fault.rank is not None and finding["rank"] == fault.rank and finding["kind"] in RANK_RULES
    if fault.kinds and re.fullmatch(fault.kinds, finding["kind"]):
        return True
    return way == "one" and fault.update and line in marked_lines(program, "update")


def judged(findings: list[Finding], verdict: str, program: Program, fault: str, way: str) -> str:
    """Return right, later, wrong-blame or silent for a fault; right, wrong or different for a healthy program.

    later      a finding is right, but not the first one
    different  a comparison of healthy programs names nothing, but its verdict is neither equal nor noise
    """
    if not fault:
        if findings:
            return "wrong"
        return "right" if way == "alone" or verdict in ("equal", "noise") else "different"
    if not findings:
        return "silent"
    hits = [is_right(finding, program, fault, way) for finding in findings]
    return "right" if hits[0] else "later" if any(hits) else "wrong-blame"
