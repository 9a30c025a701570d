"""Graphs, their runs, and the names of their operators.

MindSpore compiles `construct` and then runs kernels. The fake runs `construct` and records the operators on a tape.
The first run of a graph determines the names of its operators. Operators that compute gradients have the scope that
MindSpore's automatic differentiation gives them: `Gradients/<forward scope>/Grad_<forward operator>`.
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

#: An input of an operator. None stands for an input that is not a tensor, such as a tuple, and is never dumped.
Value = Union[Tensor, "_Array", None]


class ProgramLine(NamedTuple):
    """A line of the user's program in the stack of calls of an operator."""

    file: str
    number: int


class ExecutedOperator:
    """An operator that was executed once.

    inputs   its tensors, and arrays for constants that MindSpore's kernel takes as inputs
    before   values of the inputs before it ran
    seen     values of the inputs after it ran; MindSpore dumps these
    results  values of the outputs
    marked   True if `set_dump` marked it
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
        self.marked = False

    def array(self, position: int) -> _Array:
        """Return the value of an input before the operator ran. The input has to be a tensor."""
        value = self.before[position]
        assert value is not None, f"input {position} of {self.op_type} is not a tensor"
        return value

    @property
    def kind(self) -> str:
        """Scope and type: the operator's full name without the number at its end."""
        return f"{self.scope}/{self.op_type}"


class Tape:
    """The operators of one run, in order.

    scope   the scope of the next operator
    traced  record the lines of the program for each operator; done only in the first run of a graph
    inputs  input tensors of the graph, by name
    """

    def __init__(self, scope: str = ROOT, *, traced: bool = False) -> None:
        self.nodes: list[ExecutedOperator] = []
        self.scope = scope
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
        """Return the parameters that operators used, in the order of their first use."""
        parameters = {id(value): value for node in self.nodes for value in node.inputs if isinstance(value, Parameter)}
        return list(parameters.values())

    def drop_unused_inputs(self, result: Any) -> None:
        """Remove inputs of the graph that no operator reads, unless they are in the graph's result."""
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
        """Set the parameters to their values from before the run."""
        for node in reversed(self.nodes):
            for value, array in zip(node.inputs, node.before):
                if isinstance(value, Parameter) and array is not None:
                    value.array = array


class CompiledGraph:
    """A compiled graph. `names`, `shown` and `kinds` are in the order of the first run.

    number  number of the graph
    runs    number of its runs
    names   full names of the operators in dump files, unique in the process
    shown   full names of the operators in the graph's text and execution order, with numbers that are counted in the
            graph only
    kinds   scope and type of the operators
    """

    def __init__(self, number: int) -> None:
        self.number = number
        self.runs = 0
        self.names: list[str] = []
        self.shown: list[str] = []
        self.kinds: list[str] = []

    def name(self, tape: Tape, used: Counter[str]) -> None:
        """Name the operators of the first run. used: number of operators of each kind in the process; it is updated."""
        counts: Counter[str] = Counter()
        for node in tape.nodes:
            self.kinds.append(node.kind)
            self.shown.append(f"{node.kind}-op{counts[node.kind]}")
            self.names.append(f"{node.kind}-op{used[node.kind]}")
            counts[node.kind] += 1
            used[node.kind] += 1

    def names_of(self, tape: Tape) -> Iterator[tuple[ExecutedOperator, str]]:
        """Yield the operators of a run with their names.

        The first operator of a kind gets the first name of that kind from the first run, the second the second name.
        """
        waiting: dict[str, list[str]] = {}
        for kind, name in zip(self.kinds, self.names):
            waiting.setdefault(kind, []).append(name)
        last = {kind: names[-1] for kind, names in waiting.items()}
        for node in tape.nodes:
            names = waiting.get(node.kind)
            # A run that takes another branch can have operators that the first run did not have.
            yield node, names.pop(0) if names else last.get(node.kind, f"{node.kind}-op0")


def _program_lines() -> tuple[ProgramLine, ...]:
    """Return the lines of the program in the current stack, outermost first. Frames of the fake are left out."""
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
