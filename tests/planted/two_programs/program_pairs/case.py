"""Edits, truths and cases."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

from program_pairs.program import Program, seed

_FOLDER = Path(__file__).parent


@dataclass(frozen=True)
class Truth:
    """Places that an engineer would accept as the first origin.

    modules     patterns of the module path (the whole path)
    operators   patterns of the type of an operator outside of all modules
    lines       markers: the text after "# planted: " or "# place: " on a line of this package
    parameters  patterns of parameter names
    words       patterns that occur in the evidence
    visible     false if inputs and outputs of modules cannot show it
    """

    modules: tuple[str, ...] = ()
    operators: tuple[str, ...] = ()
    lines: tuple[str, ...] = ()
    parameters: tuple[str, ...] = ()
    words: tuple[str, ...] = ()
    visible: bool = True

    def __add__(self, other: Truth) -> Truth:
        return Truth(
            self.modules + other.modules,
            self.operators + other.operators,
            self.lines + other.lines,
            self.parameters + other.parameters,
            self.words + other.words,
            self.visible and other.visible,
        )


@dataclass(frozen=True)
class Edit:
    """A change of a program; a fault if it has a truth."""

    name: str
    apply: Callable[[Program], None] = lambda program: None
    truth: Truth | None = None
    flags: frozenset[str] = frozenset()
    tolerance: float = 0.0

    def at(self, *modules: str, lines: tuple[str, ...] = (), visible: bool | None = None) -> Edit:
        """Return the edit with more places that are accepted."""
        if self.truth is None:
            raise ValueError(f"{self.name} is harmless and has no places")
        shown = self.truth.visible if visible is None else visible
        old = self.truth
        truth = replace(old, modules=old.modules + modules, lines=old.lines + lines, visible=shown)
        return Edit(self.name, self.apply, truth, self.flags, self.tolerance)


def flag(name: str, truth: Truth | None = None, tolerance: float = 0.0) -> Edit:
    """Return an edit that a hand-written network makes itself, by the flag `name`."""
    return Edit(name, truth=truth, flags=frozenset({name}), tolerance=tolerance)


def planted(name: str, *modules: str, visible: bool = True) -> Edit:
    """Return the fault that a hand-written network makes at the line with the marker `name`."""
    return flag(name, Truth(modules=modules, lines=(name,), visible=visible))


@dataclass(frozen=True)
class Case:
    """One pair of programs: the network as it is, and with the edits."""

    network: str
    edits: tuple[Edit, ...]
    of_reference: tuple[Edit, ...] = field(default=())

    @property
    def name(self) -> str:
        """The network and the names of the edits."""
        return f"{self.network}/{'+'.join(edit.name for edit in self.edits)}"

    @property
    def is_fault(self) -> bool:
        """True if one of the edits is a fault."""
        return any(edit.truth for edit in self.edits)

    @property
    def truth(self) -> Truth:
        """All places of all faults."""
        truth = Truth()
        for edit in self.edits:
            truth = truth + (edit.truth or Truth())
        return truth

    @property
    def tolerance(self) -> float:
        """Relative difference that the harmless edits may make; 0 if they are equal in float64."""
        return max((edit.tolerance for edit in self.edits), default=0.0)


Builder = Callable[[frozenset[str]], Program]
NETWORKS: dict[str, Builder] = {}


def network(name: str) -> Callable[[Builder], Builder]:
    """Register the function that builds a program."""

    def register(builder: Builder) -> Builder:
        NETWORKS[name] = builder
        return builder

    return register


def build(name: str, edits: tuple[Edit, ...]) -> Program:
    """Build the program of a network with edits; the same seeds for all."""
    seed(7)
    flags = frozenset().union(*(edit.flags for edit in edits))
    program = NETWORKS[name](flags)
    for edit in edits:
        seed(13)
        edit.apply(program)
    return program


@cache
def marked_lines(folder: Path = _FOLDER) -> dict[str, set[tuple[str, int]]]:
    """Return the file names and line numbers of each marker: all lines of the statement that it stands on."""
    lines: dict[str, set[tuple[str, int]]] = {}
    for path in sorted(folder.rglob("*.py")):
        code = path.read_text(encoding="utf-8")
        statements = [
            (node.lineno, node.end_lineno or node.lineno)
            for node in ast.walk(ast.parse(code))
            if isinstance(node, ast.stmt) and not hasattr(node, "body")
        ]
        for number, text in enumerate(code.splitlines(), start=1):
            found = re.search(r"# (?:planted|place): ([\w ]+)$", text)
            for marker in found.group(1).split() if found else ():
                spans = [range(first, last + 1) for first, last in statements if first <= number <= last]
                numbers = spans[0] if spans else (number,)
                lines.setdefault(marker, set()).update((path.name, each) for each in numbers)
    return lines


def owner_of(model: Any, path: str) -> tuple[Any, str]:
    """Return the module that holds `path`, and the last part of the path."""
    parent, _, leaf = path.rpartition(".")
    return (model.get_submodule(parent) if parent else model), leaf
