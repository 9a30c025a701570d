"""Read the graph files that MindSpore writes with a dump: the `.ir` text and the order of execution.

    graphs/ms_output_trace_code_graph_{id}.ir             full names of operators, and their lines of the program
    execution_order/ms_execution_order_graph_{id}.csv     a full name per line, in the order of execution

An `.ir` text has one of two forms: `# Fullname with scope: (…)` with `# In file f.py:10~12, 4~36/…` (MindSpore 2.10),
or `: full_name_with_scope: (…)` with `# In file f.py(175)/…` (older versions).

Names of operators end with `-op` and a number. In file names the number counts over all graphs of a process; in these
texts it may begin again with each graph. So operators whose names differ only in the number are matched in the order of
their numbers.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple, Optional

from ascend_dump.errors import ReadError
from ascend_dump.native.mindspore.names import written
from ascend_dump.storage.files import open_regular, regular_status, text_lines

__all__ = [
    "Graph",
    "GraphOperator",
    "OperatorsByName",
    "has_complex",
    "is_heterogeneous",
    "module_of",
    "parse_ir",
    "parse_order",
    "phase_of",
    "read_graph",
    "read_ir",
]

_NAME = re.compile(r"(?:Fullname with scope|full_name_with_scope): \(")
_SOURCE = "# In file "
_SOURCE_LINE = re.compile(r":(\d+)(?:~\d+)?,|\((\d+)\)")
_PARAMETER = re.compile(r"%para\d+_(.+?):\s")
_NUMBER = re.compile(r"(.*-op)(\d{1,9})", re.DOTALL)
_ORDER_HEADER = "NodeExecutionOrder-FullNameWithScope"
#: Maximum length of a line in characters. Lines of graphs with thousands of inputs are long.
_LONGEST_LINE = 1 << 20
_LIBRARY = ("/site-packages/mindspore/", "/dist-packages/mindspore/")


#: Types of operators that have no kernel, so that they are never dumped (anf_utils.cc, IsRealKernel).
_WITHOUT_KERNEL = frozenset(
    ("MakeTuple", "StateSetItem", "TupleGetItem", "Return", "Partial", "Depend", "UpdateState", "Load")
)


class GraphOperator(NamedTuple):
    """An operator of a graph.

    name      the full name, with scope
    position  position in the order of execution; None if it does not run, or if the order is unknown
    stack     `file:line` of the functions of the program that created it, the outermost first
    """

    name: str
    position: Optional[int] = None
    stack: tuple[str, ...] = ()

    @property
    def type(self) -> str:
        return self.name.rpartition("/")[2].partition("-op")[0]

    @property
    def has_kernel(self) -> bool:
        """True if the operator has a kernel, so that it can be dumped."""
        return self.type not in _WITHOUT_KERNEL

    @property
    def source(self) -> Optional[str]:
        """The innermost line of `stack` outside of MindSpore; the innermost of all if there is none outside."""
        program_lines = [line for line in self.stack if not any(part in line for part in _LIBRARY)]
        return (program_lines or self.stack)[-1] if self.stack else None


class Graph:
    """The operators and parameters of a graph. `among` finds the operators for names in file names."""

    def __init__(self, operators: Iterable[GraphOperator], parameters: Iterable[str] = ()) -> None:
        self.operators = {operator.name: operator for operator in operators}
        self._parameters: dict[str, Optional[str]] = {}
        for name in parameters:
            self._parameters[written(name)] = None if written(name) in self._parameters else name
        self._by_stem: dict[str, dict[str, list[int]]] = {}
        for name in self.operators:
            stem, number = _split(name)
            self._by_stem.setdefault(written(stem), {}).setdefault(stem, []).append(number)

    def parameter(self, name: str) -> str:
        """Return the program's name of a parameter. name: the name in a file name; returned itself if it is unknown."""
        return self._parameters.get(name) or name

    def among(self, names: Iterable[str]) -> OperatorsByName:
        """Return a lookup of operators by names in file names. names: all such names in one directory."""
        return OperatorsByName(self._by_stem, self.operators, names)


class OperatorsByName:
    """A lookup of a graph's operators by the names in one directory, whose numbers after `-op` may differ.

    Names that differ only in the number are matched together, at the first lookup of one of them.
    """

    def __init__(
        self,
        by_stem: Mapping[str, Mapping[str, Sequence[int]]],
        operators: Mapping[str, GraphOperator],
        names: Iterable[str],
    ) -> None:
        self._by_stem = by_stem
        self._operators = operators
        self._numbers: dict[str, set[int]] = {}
        if by_stem:
            for name in names:
                stem, number = _split(name)
                self._numbers.setdefault(stem, set()).add(number)
        self._chosen: dict[str, Mapping[int, int]] = {}

    def find(self, name: str) -> Optional[tuple[str, GraphOperator]]:
        """Return (full name with the number of the file name, operator of the graph) for a name in a file name.

        None if the operator cannot be determined.
        """
        stem, number = _split(name)
        candidates = self._by_stem.get(stem)
        if candidates is None or len(candidates) != 1:
            return None
        [(full, numbers)] = candidates.items()
        if stem not in self._chosen:
            self._chosen[stem] = _matched(sorted(self._numbers.get(stem, {number})), sorted(numbers))
        chosen = self._chosen[stem].get(number)
        return None if chosen is None else (_join(full, number), self._operators[_join(full, chosen)])


def _matched(file_numbers: Sequence[int], numbers: Sequence[int]) -> Mapping[int, int]:
    """Return the number in the graph by the number in file names; {} if the numbers cannot be matched."""
    if set(file_numbers) <= set(numbers):
        return {number: number for number in file_numbers}
    if len(file_numbers) == len(numbers):
        return dict(zip(file_numbers, numbers))
    if len(numbers) == 1:
        return dict.fromkeys(file_numbers, numbers[0])
    return {}


def read_graph(rank_directory: Path, graph: int) -> Graph:
    """Return the graph with an id. Its files are optional: those that are missing or unreadable are ignored."""
    ir = rank_directory / "graphs" / f"ms_output_trace_code_graph_{graph}.ir"
    order = rank_directory / "execution_order" / f"ms_execution_order_graph_{graph}.csv"
    return _read(ir, _stamp(ir), order, _stamp(order))


def read_ir(path: Path) -> list[GraphOperator]:
    """Return the operators in an `.ir` text. Raises ReadError if it cannot be read, or if it has no operators."""
    try:
        open_regular(path).close()
    except OSError as error:
        raise ReadError(f"cannot be read: {error.strerror}", path=path) from None
    operators, _ = parse_ir(_lines(path))
    if not operators:
        raise ReadError("it names no operator", path=path, hint="give an .ir text of MindSpore")
    return operators


def has_complex(path: Path) -> bool:
    """Return True if an `.ir` text has a tensor of complex numbers."""
    return any("[Complex64]" in line or "[Complex128]" in line for line in _lines(path))


def is_heterogeneous(path: Path) -> bool:
    """Return True if an `.ir` text has an operator with its own device (`Primitive.set_device`)."""
    return any("primitive_target: " in line for line in _lines(path))


@lru_cache(maxsize=32)
def _read(ir: Path, ir_stamp: object, order: Path, order_stamp: object) -> Graph:
    positions = {} if order_stamp is None else parse_order(_lines(order))
    operators, parameters = ([], []) if ir_stamp is None else parse_ir(_lines(ir))
    by_name = {operator.name: operator for operator in operators}
    for name, position in positions.items():
        by_name[name] = by_name.get(name, GraphOperator(name))._replace(position=position)
    return Graph(by_name.values(), parameters)


def _stamp(path: Path) -> Optional[tuple[int, int]]:
    try:
        status = regular_status(path, follow_links=False)
    except OSError:
        return None
    return status.st_mtime_ns, status.st_size


def _lines(path: Path) -> Iterator[str]:
    try:
        yield from text_lines(path, most=_LONGEST_LINE)
    except OSError:
        return


def parse_order(lines: Iterable[str]) -> dict[str, int]:
    """Return positions by full names. For an operator that occurs several times it is the first position."""
    names = (line.strip() for line in lines)
    positions: dict[str, int] = {}
    for position, name in enumerate(name for name in names if name and name != _ORDER_HEADER):
        positions.setdefault(name, position)
    return positions


def parse_ir(lines: Iterable[str]) -> tuple[list[GraphOperator], list[str]]:
    """Return the operators and the names of the parameters of an `.ir` text."""
    operators: list[tuple[str, list[str]]] = []
    parameters: list[str] = []
    for line in lines:
        text = line.rstrip()
        name = _NAME.search(text) if text.endswith(")") else None
        if name is not None and name.end() < len(text):
            operators.append((text[name.end() : -1], []))
        elif _SOURCE in line:
            source = line.partition(_SOURCE)[2]
            number = _SOURCE_LINE.search(source, 1)
            if number is not None and operators:
                operators[-1][1].append(f"{source[: number.start()]}:{number[1] or number[2]}")
        elif line.startswith("%para"):
            parameter = _PARAMETER.match(line)
            if parameter is not None:
                parameters.append(parameter[1])
    return [GraphOperator(name, stack=tuple(stack)) for name, stack in operators], parameters


def phase_of(full_name: str) -> Optional[str]:
    """Return "forward", "backward" or "other" (the optimizer), from the scope in a name; None if it is unknown."""
    scope = full_name.split("/")
    if scope[0].startswith("Gradients"):
        return "backward"
    if scope[0] != "Default":
        return None
    return "other" if any(level.startswith("optimizer-") for level in scope) else "forward"


def module_of(full_name: str) -> Optional[str]:
    """Return the path of the operator's cell, from the scope in a name; None if the scope has no cell.

    `Default/network-WithLossCell/_backbone-Net/fc-Dense/…` is in `network._backbone.fc`.
    """
    levels = [level.partition("-")[0] for level in full_name.split("/")[:-1] if "-" in level]
    return ".".join(levels) if levels else None


def _split(name: str) -> tuple[str, int]:
    match = _NUMBER.fullmatch(name)
    return (match[1], int(match[2])) if match else (name, -1)


def _join(stem: str, number: int) -> str:
    return stem if number < 0 else f"{stem}{number}"
