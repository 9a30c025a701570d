"""One execution of a graph: its operators in order, and their names.

The real MindSpore compiles `construct` and then runs kernels; the fake runs `construct` and records the operators.
A graph's operators are named on its first run. Gradient operators have the names of MindSpore's automatic
differentiation: scope `Gradients/<forward scope>/Grad_<forward operator>`.
"""

from __future__ import annotations

import contextlib
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Optional, Union

import numpy as np

from ascend_dump.fakes.mindspore._types import Parameter, Tensor

if TYPE_CHECKING:
    _Array = np.ndarray[Any, Any]

__all__ = ["CompiledGraph", "ExecutedOperator", "Tape"]

ROOT = "Default"
_FAKE = str(Path(__file__).parent)

#: None is an input that is not a tensor, such as a tuple; it has a position and is never dumped.
Value = Union[Tensor, "_Array", None]


class ProgramLine(NamedTuple):
    """A line of the user's program that led to an operator."""

    file: str
    number: int


class ExecutedOperator:
    """One executed operator.

    inputs   tensors, and arrays for constants that are inputs of MindSpore's kernel
    before   the inputs' values before it ran
    seen     the inputs' values after it ran, when MindSpore writes them
    results  the outputs' values
    """

    __slots__ = ("op_type", "scope", "inputs", "before", "seen", "outputs", "results", "attrs", "lines", "marked")

    def __init__(
        self,
        op_type: str,
        scope: str,
        inputs: Sequence[Value],
        before: Sequence[Optional[_Array]],
        outputs: Sequence[Tensor],
        attrs: dict[str, Any],
        lines: tuple[ProgramLine, ...],
    ) -> None:
        self.op_type = op_type
        self.scope = scope
        self.inputs = tuple(inputs)
        self.before = tuple(before)
        self.seen = tuple(value.array if isinstance(value, Tensor) else value for value in inputs)
        self.outputs = tuple(outputs)
        self.results = tuple(value.array for value in outputs)
        self.attrs = attrs
        self.lines = lines
        #: True after `set_dump`.
        self.marked = False

    def array(self, position: int) -> _Array:
        """Return the value of a tensor input before the operator ran."""
        value = self.before[position]
        assert value is not None, f"input {position} of {self.op_type} is not a tensor"
        return value

    @property
    def kind(self) -> str:
        """The full name without the number."""
        return f"{self.scope}/{self.op_type}"


class Tape:
    """The operators of one run in order, and the scope of the next operator."""

    def __init__(self, scope: str = ROOT, *, traced: bool = False) -> None:
        self.nodes: list[ExecutedOperator] = []
        self.scope = scope
        #: Lines of the program are looked up only while a graph is new.
        self.traced = traced
        self.inputs: dict[str, Tensor] = {}

    @contextlib.contextmanager
    def within(self, scope: str) -> Iterator[None]:
        outer, self.scope = self.scope, scope
        try:
            yield
        finally:
            self.scope = outer

    def note(
        self,
        op_type: str,
        inputs: Sequence[Value],
        before: Sequence[Optional[_Array]],
        outputs: Sequence[Tensor],
        attrs: dict[str, Any],
    ) -> ExecutedOperator:
        lines = _program_lines() if self.traced else ()
        node = ExecutedOperator(op_type, self.scope, inputs, before, outputs, attrs, lines)
        for position, output in enumerate(outputs):
            output.node, output.position = node, position
        self.nodes.append(node)
        return node

    def parameters(self) -> list[Parameter]:
        """Return the parameters that operators used, in order."""
        parameters = {id(value): value for node in self.nodes for value in node.inputs if isinstance(value, Parameter)}
        return list(parameters.values())

    def drop_unused_inputs(self, result: Any) -> None:
        """Drop the inputs of the graph that are neither operands nor results."""
        used = {id(value) for node in self.nodes for value in node.inputs}
        waiting = [result]
        while waiting:
            value = waiting.pop()
            used.add(id(value))
            waiting.extend(
                value.values() if isinstance(value, dict) else value if isinstance(value, (tuple, list)) else ()
            )
        self.inputs = {name: value for name, value in self.inputs.items() if id(value) in used}

    def undo(self) -> None:
        """Restore the parameters' values from before the run."""
        for node in reversed(self.nodes):
            for value, array in zip(node.inputs, node.before):
                if isinstance(value, Parameter) and array is not None:
                    value.array = array


class CompiledGraph:
    """A compiled graph: its number, the names of its operators, and the number of runs.

    names    the operators' names in files, in order, unique in the process
    shown    the operators' names in the graph's text and execution order, counted within the graph
    """

    def __init__(self, number: int) -> None:
        self.number = number
        self.runs = 0
        self.names: list[str] = []
        self.shown: list[str] = []
        self.kinds: list[str] = []

    def name(self, tape: Tape, used: Counter[str]) -> None:
        """Name the operators of the first run; `used` counts the names of the whole process."""
        counts: Counter[str] = Counter()
        for node in tape.nodes:
            self.kinds.append(node.kind)
            self.shown.append(f"{node.kind}-op{counts[node.kind]}")
            self.names.append(f"{node.kind}-op{used[node.kind]}")
            counts[node.kind] += 1
            used[node.kind] += 1

    def names_of(self, tape: Tape) -> Iterator[tuple[ExecutedOperator, str]]:
        """Yield the operators of another run with their names: the first of a kind has the first name of that kind."""
        waiting: dict[str, list[str]] = {}
        for kind, name in zip(self.kinds, self.names):
            waiting.setdefault(kind, []).append(name)
        last = {kind: names[-1] for kind, names in waiting.items()}
        for node in tape.nodes:
            names = waiting.get(node.kind)
            # An operator that is not in the first run, which took another branch.
            yield node, names.pop(0) if names else last.get(node.kind, f"{node.kind}-op0")


def _program_lines() -> tuple[ProgramLine, ...]:
    """Return the program's lines that led to this operator, outermost first, without the fake's code."""
    lines = []
    frame = sys._getframe(2)
    while frame is not None:
        code = frame.f_code
        if not code.co_filename.startswith(_FAKE):
            lines.append(ProgramLine(code.co_filename, frame.f_lineno))
        elif lines and code.co_name == "run_graph":
            break
        frame = frame.f_back  # type: ignore[assignment]  # the outermost frame has none
    return tuple(reversed(lines))
