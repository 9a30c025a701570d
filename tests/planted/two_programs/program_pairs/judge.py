"""Judging the origins of a comparison by the truth of a case; knows nothing of how they were found."""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from program_pairs.case import Case, Truth, marked_lines
from program_pairs.program import Program

_FOLDER = Path(__file__).parent
#: Files whose operators are outside of the network.
_OUTSIDE = ("training.py", "optimizers.py", "loops.py")
_LOSS_FUNCTIONS = r"criterion|.*_loss|_advantages|_gan_loop"

Place = tuple[str, int]


@dataclass(frozen=True)
class Found:
    """One origin as plain values; `modules` are those of the origin and of its records."""

    operator: str
    kind: str
    module: str
    name: str
    sources: tuple[Place, ...]
    parameters: tuple[str, ...]
    evidence: str
    modules: tuple[str, ...] = ()

    @property
    def line(self) -> str:
        """The first source as text."""
        return "{}:{}".format(*self.sources[0]) if self.sources else "-"


def _place(source: str | None) -> Place | None:
    found = re.fullmatch(r"(.*):(\d+)", source or "")
    return (Path(found.group(1)).name, int(found.group(2))) if found else None


def found_of(origin: Any, prefix: str) -> Found:
    """Take what the judge needs from an origin."""
    records = [record for record in (origin.pair.actual, origin.pair.reference) if record is not None]
    places = [_place(source) for source in (origin.source, *(record.source for record in records))]
    parameters = [getattr(record, "parameter", None) for record in records]
    modules = [(each or "").removeprefix(prefix) for each in (origin.module, *(record.module for record in records))]
    return Found(
        operator=str(origin.op_type),
        kind=str(origin.kind),
        module=(origin.module or "").removeprefix(prefix) if origin.module != prefix.rstrip(".") else "",
        name=str(origin.op_name),
        sources=tuple(dict.fromkeys(place for place in places if place)),
        parameters=tuple(name.removeprefix(prefix) for name in parameters if name),
        evidence=" | ".join(str(line) for line in origin.evidence),
        modules=tuple(dict.fromkeys(modules)),
    )


@cache
def _outside_lines() -> frozenset[Place]:
    """Return the lines of losses and loops in the files of networks."""
    places: set[Place] = set()
    for path in _FOLDER.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.FunctionDef) and re.fullmatch(_LOSS_FUNCTIONS, node.name):
                places.update((path.name, line) for line in range(node.lineno, (node.end_lineno or 0) + 1))
    return frozenset(places)


def _in_network(found: Found) -> bool:
    return not any(place[0] in _OUTSIDE or place in _outside_lines() for place in found.sources)


def matches(patterns: tuple[str, ...], text: str) -> bool:
    return any(re.fullmatch(pattern, text) for pattern in patterns)


def is_right(found: Found, truth: Truth) -> bool:
    """Return whether an engineer would accept the origin."""
    for marker in truth.lines:
        # The call of the network is the line of all that has no nearer line: it counts for what enters it only.
        counts = marker != "network_call" or found.kind == "input" or not found.module
        if counts and marked_lines().get(marker, set()) & set(found.sources):
            return True
    if matches(truth.modules, found.module) and (found.module or _in_network(found)):
        return True
    if any(matches(truth.parameters, name) for name in found.parameters):
        return True
    if any(re.search(word, found.evidence) for word in truth.words):
        return True
    return not found.module and matches(truth.operators, found.operator)


def is_near(found: Found, truth: Truth, modules: set[str]) -> bool:
    """Return whether the module is inside of an accepted one, or around it by at most two levels."""
    accepted = {name for name in modules if name and matches(truth.modules, name)}
    if not found.module:
        return False
    if any(found.module.startswith(f"{name}.") for name in accepted):
        return True
    around = {name for name in accepted if name.startswith(f"{found.module}.")}
    return any(name.count(".") - found.module.count(".") <= 2 for name in around)


def module_names(*programs: Program) -> set[str]:
    """Return the paths of all modules."""
    return {
        name.removeprefix(program.module_prefix) for program in programs for name, _ in program.model.named_modules()
    }


def reads_first(found: Found, truth: Truth, readers: set[str]) -> bool:
    """Return whether the module is inside of an accepted one and is the first to read a wrong tensor.

    For dumps of modules: of a wrong line between two calls of modules they show no more than this.
    """
    parents = [found.module[: at.start()] for at in re.finditer(r"\.", found.module)]
    return found.module in readers and any(matches(truth.modules, parent) for parent in ("", *parents))


def outcome(case: Case, verdict: str, origins: list[Found], modules: set[str], readers: set[str]) -> str:
    """Return how the answer is to be counted; `readers` are the modules that `reads_first` accepts."""
    if not case.is_fault:
        if origins:
            return "named"
        return "different" if verdict in ("different", "unreadable") else "quiet"
    if verdict in ("equal", "noise"):
        return "noise"
    if not origins:
        return "none"
    if is_right(origins[0], case.truth) or reads_first(origins[0], case.truth, readers):
        return "right"
    if is_near(origins[0], case.truth, modules):
        return "module-right"
    return "later" if any(is_right(origin, case.truth) for origin in origins[1:]) else "wrong"
