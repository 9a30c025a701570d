"""Judging the origins of a comparison by the truth of a case."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

from program_pairs.case import marked_lines
from program_pairs.judge import Found, is_near, matches

from port_programs.cases import Case

_FOLDER = Path(__file__).parent


def is_right(origin: Found, case: Case, data: str) -> bool:
    """Return true if an engineer would accept the origin: by a line of either program, or by a module of either."""
    truth = case.truth
    is_marked = bool(marked_lines(_FOLDER).get(case.marker, set()) & set(origin.sources))
    if is_marked and (not truth.within or any(matches(truth.within, module) for module in origin.modules)):
        return True
    if any(matches(truth.parameters, name) for name in origin.parameters):
        return True
    modules = truth.modules + (truth.readers if data == "modules" else ())
    return any(
        matches(modules, module) or matches(truth.operators, f"{module}:{origin.operator}") for module in origin.modules
    )


def outcome(case: Case, verdict: str, origins: list[Found], names: set[str], data: str) -> str:
    """Return how the answer is to be counted; `names` are the modules of both programs."""
    if not case.is_fault:
        if origins:
            return "named"
        return "different" if verdict in ("different", "unreadable") else "quiet"
    if verdict in ("equal", "noise"):
        return "noise"
    if not origins:
        return "none"
    if is_right(origins[0], case, data):
        return "right"
    accepted = SimpleNamespace(modules=case.truth.modules + case.truth.readers)
    if is_near(origins[0], accepted, names):
        return "module-right"
    return "later" if any(is_right(origin, case, data) for origin in origins[1:]) else "wrong"
