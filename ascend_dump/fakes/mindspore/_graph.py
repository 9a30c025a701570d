"""What one execution of a graph did: its operators in order, and their names.

The real MindSpore compiles `construct` and then runs kernels; here `construct` is run and every operator is noted
down. A graph's operators are named on its first run. Gradient operators get the names that MindSpore's automatic
differentiation gives them: scope `Gradients/<forward scope>/Grad_<forward operator>`.
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
_HERE = str(Path(__file__).parent)

#: None stands for an input that is no tensor, such as a tuple; it keeps its place and is never dumped.
Value = Union[Tensor, "_Array", None]


class ProgramLine(NamedTuple):
    """A line of the user's program that led to an operator."""

    file: str
    number: int


class ExecutedOperator:
    """One executed operator.

    inputs   tensors, and arrays for constants that MindSpore makes inputs of the kernel
    before   the inputs' values when it started
    seen     the inputs' values after it ran, which is when MindSpore writes them
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
        self.seen = tuple(one.array if isinstance(one, Tensor) else one for one in inputs)
        self.outputs = tuple(outputs)
        self.results = tuple(one.array for one in outputs)
        self.attrs = attrs
        self.lines = lines
        #: `set_dump` asked for it.
        self.marked = False

    def array(self, position: int) -> _Array:
        """An input's value when it started, for an input that is a tensor."""
        found = self.before[position]
        assert found is not None, f"input {position} of {self.op_type} is no tensor"
        return found

    @property
    def kind(self) -> str:
        """Its full name without the number."""
        return f"{self.scope}/{self.op_type}"


class Tape:
    """The operators of one run in order, and the scope the next one gets."""

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
        """Those that an operator used, in order."""
        found = {id(one): one for node in self.nodes for one in node.inputs if isinstance(one, Parameter)}
        return list(found.values())

    def drop_unused_inputs(self, result: Any) -> None:
        """Forget the inputs of the graph that no operator takes and that are no result."""
        used = {id(one) for node in self.nodes for one in node.inputs}
        waiting = [result]
        while waiting:
            one = waiting.pop()
            used.add(id(one))
            waiting.extend(one.values() if isinstance(one, dict) else one if isinstance(one, (tuple, list)) else ())
        self.inputs = {name: one for name, one in self.inputs.items() if id(one) in used}

    def undo(self) -> None:
        """Give the parameters the values back that they had before."""
        for node in reversed(self.nodes):
            for value, array in zip(node.inputs, node.before):
                if isinstance(value, Parameter) and array is not None:
                    value.array = array


class CompiledGraph:
    """A compiled graph: its number, the names of its operators, and how often it ran.

    names    for every operator in order the name in files, unique in the process
    shown    the name that the graph's text and its execution order give, counted within the graph
    """

    def __init__(self, number: int) -> None:
        self.number = number
        self.runs = 0
        self.names: list[str] = []
        self.shown: list[str] = []
        self.kinds: list[str] = []

    def name(self, tape: Tape, used: Counter[str]) -> None:
        """Name the operators of the first run; `used` counts the names of the whole process."""
        own: Counter[str] = Counter()
        for node in tape.nodes:
            self.kinds.append(node.kind)
            self.shown.append(f"{node.kind}-op{own[node.kind]}")
            self.names.append(f"{node.kind}-op{used[node.kind]}")
            own[node.kind] += 1
            used[node.kind] += 1

    def names_of(self, tape: Tape) -> Iterator[tuple[ExecutedOperator, str]]:
        """The operators of another run with their names: the first of a kind gets the first name of that kind."""
        waiting: dict[str, list[str]] = {}
        for kind, name in zip(self.kinds, self.names):
            waiting.setdefault(kind, []).append(name)
        last = {kind: names[-1] for kind, names in waiting.items()}
        for node in tape.nodes:
            names = waiting.get(node.kind)
            # An operator that the first run did not have: its branch was not taken then.
            yield node, names.pop(0) if names else last.get(node.kind, f"{node.kind}-op0")


def _program_lines() -> tuple[ProgramLine, ...]:
    """Where this operator comes from, outermost first, without the fake's own code."""
    found = []
    frame = sys._getframe(2)
    while frame is not None:
        code = frame.f_code
        if not code.co_filename.startswith(_HERE):
            found.append(ProgramLine(code.co_filename, frame.f_lineno))
        elif found and code.co_name == "run_graph":
            break
        frame = frame.f_back  # type: ignore[assignment]  # the outermost frame has none
    return tuple(reversed(found))
