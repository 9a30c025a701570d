"""torchair's graphs as Python text, `dynamo_optimized_graph_{id}_rank_{r}_pid_{p}_ts_{time}.py`.

`config.debug.graph_dump.type = "py"` writes them, before and after torchair's own passes. They link the nodes of
PyTorch's graph, the operators of GE and the lines of the program:

    # File "train.py", line 94, in forward    h = torch.relu(self.a(x))
    ## FX Code: relu: torch.float32[5, 16]cpu = torch.ops.aten.relu.default(addmm: torch.float32[5, 16]cpu)
    Relu_0 = ge.Relu(Add_0, node_name="Relu")

Source: torchair 2.13, `_ge_concrete_graph/fx2ge_converter.py` and `ge/_ge_graph.py`. The text is parsed, never run.
Limits of the text:

- A line of the program is written only once. The nodes of a repeated line, as in the second of two equal layers, follow
  another line. If an operator repeats the first operator of an earlier line, the nodes after it are assumed to repeat
  that line, up to the first node that deviates. From there to the next line nodes have no `source`. So `source` may be
  wrong if a program runs lines of equal operators in a new order.
- A node of PyTorch without a known line is not written; its GE operators follow the node before.
- Values that the program writes into its inputs are copied at the end (`aten.copy_`), below the last line. An `Assign`
  below another node belongs to no written node.
- Later passes are missing: an `Assign` to an input of the graph becomes an output of the graph that GE writes over the
  input, and the operator is removed (`_mapping_assign_op_to_graph_output`).
- The name of an operator with several outputs is in the names of its outputs only; constants in calls have no names.
- The operator that passes the offsets of a generator to random operators (`_GraphRngState`) has no line. GE runs and
  dumps it: it is created from the first call that reads one of its outputs.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import IO, NamedTuple, Optional, Union

from ascend_dump.errors import CorruptDump, DumpNotFound, ReadError
from ascend_dump.native.cann.graph import Node, NoDump, read_graph, why_no_dump
from ascend_dump.storage.files import NotRegularFile, open_regular

__all__ = ["GraphFile", "GraphOp", "operator_names", "parse_graph_file", "read_torchair_graph"]

_Path = Union[str, "os.PathLike[str]"]

_FILE = re.compile(
    r"dynamo_(original|optimized)_graph_(\d{1,9})_rank_(\d{1,9})_pid_(\d{1,10})_ts_(\d{20})\.py", re.ASCII
)
_BEGINNING = b"from torchair"
_LINE = re.compile(r'# File "(.+?)", line (\d{1,9}), in ')
_CODE = "## FX Code: "
_FX = re.compile(_CODE + r"(\w+)(?:: .*?)? = (?:torch\.ops\.)?([\w.]+)\(")
_STATEMENT = re.compile(r"\[?([\w, ]+)\]? = ge\.(\w+)\(")
#: The arguments of `aten.copy_`; the group is what is copied.
_COPIED = re.compile(r"\w+(?:: [^\[(,]*(?:\[[^\]]*\][^\[(,]*)?)?, (\w+)")
_NODE_NAME = re.compile(r'node_name="([^"]+)"\)$')
#: A text, a name with the equals sign of a keyword, or an opening or closing bracket or quote.
_TOKEN = re.compile(
    r"""\"[^"\\]*(?:\\.[^"\\]*)*\"|'[^'\\]*(?:\\.[^'\\]*)*'|(?<![\w.])[^\W\d]\w*(?:\s*=(?!=))?|[()\[\]{}"']"""
)
_CLOSING = {"(": ")", "[": "]", "{": "}"}
_OUTPUT = re.compile(r"(.+)_(\d+)", re.ASCII)
#: An output of the operator without a line.
_OFFSET = re.compile(r"unpack_generator_offsets((?:_\d+)?)_(\d+)", re.ASCII)
#: Constants are in the line of their operator. Beyond the second limit its inputs are not read.
_LONGEST_LINE, _LONGEST_PARSED = 64 << 20, 1 << 20
#: The outputs of an operator with a longer name are not known as inputs of others: each repeats the name.
_LONGEST_NAME = 1 << 10
#: This number of nodes in the order of earlier ones proves the same lines.
_PROOF = 64


class GraphFile(NamedTuple):
    """A parsed file name. kind: "original" or "optimized". time: UTC, YYYYmmddHHMMSS and microseconds."""

    kind: str
    id: int
    rank: int
    pid: int
    time: str


class GraphOp(NamedTuple):
    """A GE operator, or an FX node without an operator (with an empty node.type).

    node    name and type, as in `layers=` and the dump
    fx      its FX node, empty before the first one
    target  the operator that the node calls, such as `aten.addmm.default`
    source  `file:line` of the program, empty if unknown
    to_input  it assigns to an input of the graph: torchair removes it before GE
    code    the text of the node, `name: type = target(arguments)`
    """

    node: Node
    fx: str = ""
    target: str = ""
    source: str = ""
    to_input: bool = False
    code: str = ""

    def why_no_dump(self) -> Optional[NoDump]:
        """Why this operator will produce no dump; None if it can."""
        return _TAKEN_OUT if self.to_input else why_no_dump(self.node)


_NO_NODE = GraphOp(Node("", "", (), ""))
_TAKEN_OUT = NoDump("torchair makes it an output that is written over the input: GE has no such operator")
#: The first and last operators of the graph belong to no node.
_EDGES = ("Data", "NetOutput")
#: An operator of one kind of node only; the node often has no line.
_ASSIGN, _ASSIGNING = "Assign", "aten.copy_"


def parse_graph_file(name: str) -> Optional[GraphFile]:
    """Parse a file name; return None if it is no graph of torchair."""
    match = _FILE.fullmatch(name)
    return None if match is None else GraphFile(match[1], int(match[2]), int(match[3]), int(match[4]), match[5])


def operator_names(path: _Path) -> list[str]:
    """Return the operators that GE gets: of a graph of torchair as Python text, or of GE's own `ge_proto_*.txt`.

    Raises as `read_torchair_graph`.
    """
    if parse_graph_file(Path(path).name) is not None:
        return [
            operator.node.name for operator in read_torchair_graph(path) if operator.node.type and not operator.to_input
        ]
    return [node.name for node in read_graph(path)]


def read_torchair_graph(path: _Path) -> Iterator[GraphOp]:
    """Read the operators one by one, in file order.

    Raises DumpNotFound, ReadError if it is no regular file, and CorruptDump if it is no such graph.
    """
    name = parse_graph_file(Path(path).name)
    with _open(path) as file:
        # The line of a node depends on the nodes after it.
        node_lines = _NodeLines()
        for raw in _lines_of(file, path):
            node_lines.read(raw)
        file.seek(0)
        reader = _GraphReader(path, "" if name is None else f"graph_{name.id}", node_lines.lines())
        for raw in _lines_of(file, path):
            yield from reader.line(raw)
        yield from reader.end(file.tell())


def _lines_of(file: IO[bytes], path: _Path) -> Iterator[bytes]:
    for raw in iter(lambda: file.readline(_LONGEST_LINE), b""):
        if len(raw) >= _LONGEST_LINE:
            raise CorruptDump("a line is too long for a graph", path=path, offset=file.tell() - len(raw))
        if b"\0" in raw:
            raise CorruptDump(
                "a NUL byte, which no text file contains", path=path, offset=file.tell() - len(raw) + raw.index(0)
            )
        yield raw


class _GraphReader:
    """A parser of the text, line by line. sources: the lines of all nodes of PyTorch's graph, in order."""

    def __init__(self, path: _Path, graph: str, sources: list[str]) -> None:
        self._path = path
        self._graph = graph
        self._is_graph = False
        self._sources = iter(sources)
        self._fx: Optional[GraphOp] = None
        self._used = True
        #: Variable -> `name:output`.
        self._variables: dict[str, str] = {}
        self._inputs_of_graph: set[str] = set()
        #: Operators without a line that have been read.
        self._unwritten: set[str] = set()

    def line(self, raw: bytes) -> Iterator[GraphOp]:
        if raw.startswith(_BEGINNING):
            self._is_graph = True
        text = _decoded(raw)
        if text.startswith("#"):
            node = _FX.match(text)
            if node is not None:
                yield from self._unused()
                empty = Node(node[1], "", (), self._graph)
                self._fx = GraphOp(empty, node[1], node[2], next(self._sources), code=text[len(_CODE) :])
                self._used = False
            return
        match = _STATEMENT.match(text)
        if match is not None:
            names = _names_in_call(text, match.end()) if len(text) <= _LONGEST_PARSED else []
            yield from self._generator_offsets(names)
            yield self._operator(text, match, tuple(self._variables[name] for name in names if name in self._variables))

    def end(self, offset: int) -> Iterator[GraphOp]:
        yield from self._unused()
        if not self._is_graph:
            raise CorruptDump("no graph of torchair in Python text", path=self._path, offset=offset)

    def _unused(self) -> Iterator[GraphOp]:
        """Yield the preceding node, if no operator was made for it: a view, or a scope."""
        if not self._used and self._fx is not None:
            yield self._fx
        self._used = True

    def _generator_offsets(self, names: list[str]) -> Iterator[GraphOp]:
        """Yield operators without a line at the first use of their outputs."""
        for variable in names:
            match = None if variable in self._variables else _OFFSET.fullmatch(variable)
            if match is None:
                continue
            name = f"unpack_generator_offsets{match[1]}"
            is_new = name not in self._unwritten
            self._unwritten.add(name)
            self._variables[variable] = f"{name}:{match[2]}"
            if is_new:
                fx = self._fx or _NO_NODE
                node = Node(name, "Unpack", (f"offset_list{match[1]}:0",), self._graph)
                yield GraphOp(node, fx.fx, fx.target, fx.source, code=fx.code)

    def _operator(self, text: str, match: re.Match[str], inputs: tuple[str, ...]) -> GraphOp:
        outputs = [output.strip() for output in match[1].split(",")]
        named = _NODE_NAME.search(text)
        name = _name_of_outputs(outputs) if named is None else named[1]
        for index, variable in enumerate(outputs if len(name) <= _LONGEST_NAME else ()):
            self._variables[variable] = f"{name}:{index}"
        kind = match[2]
        fx = _NO_NODE if self._fx is None or kind in _EDGES else self._fx
        if kind == _ASSIGN and not fx.target.startswith(_ASSIGNING):
            fx = _NO_NODE
        else:
            self._used = True
        if kind == "Data":
            self._inputs_of_graph.add(f"{name}:0")
        to_input = kind == _ASSIGN and inputs[:1] != () and inputs[0] in self._inputs_of_graph
        node = Node(name, kind, inputs, self._graph)
        return GraphOp(node, fx.fx, fx.target, fx.source, to_input, fx.code)


def _names_in_call(text: str, begin: int) -> list[str]:
    """Return the names in the positional arguments of the call that opens before `begin`; empty if it is not closed.

    Python's syntax tree is not used: it takes 500 bytes for each character of a long constant.
    """
    names: list[str] = []
    expected = [")"]
    for match in _TOKEN.finditer(text, begin):
        token = match[0]
        if token in _CLOSING:
            expected.append(_CLOSING[token])
        elif token in (")", "]", "}"):
            if expected.pop() != token:
                return []
            if not expected:
                return names
        elif token in ('"', "'"):  # an unclosed quote
            return []
        elif token.endswith("="):
            if len(expected) == 1:
                return names
        elif token[0] not in "\"'":
            names.append(token)
    return []


class _Marked(NamedTuple):
    """A node of PyTorch's graph, and its line in the text, or ""."""

    line: str
    target: str


class _NodeLines:
    """The lines of all nodes. The text has the line of the first node of each new line only."""

    def __init__(self) -> None:
        self._line = ""
        #: Index in `_nodes` by name, without copies into inputs.
        self._positions: dict[str, int] = {}
        self._nodes: list[_Marked] = []
        #: For each node of the text, with copies into inputs: index of the node with its line, or None.
        self._takes: list[Optional[int]] = []

    def read(self, raw: bytes) -> None:
        """Read the next line of the text."""
        if not raw.startswith(b"#"):
            return
        text = _decoded(raw)
        source = _LINE.match(text)
        if source is not None:
            self._line = f"{source[1]}:{source[2]}"
            return
        node = _FX.match(text)
        if node is None:
            return
        copied = _COPIED.match(text, node.end()) if node[2].startswith(_ASSIGNING) and not self._line else None
        if copied is not None:
            self._takes.append(self._positions.get(copied[1]))
            return
        self._positions[node[1]] = len(self._nodes)
        self._takes.append(len(self._nodes))
        self._nodes.append(_Marked(self._line, node[2]))
        self._line = ""

    def lines(self) -> list[str]:
        """Return the line of each node of the text, "" if unknown."""
        lines = self._find_lines()
        return ["" if number is None else lines[number] for number in self._takes]

    def _find_lines(self) -> list[str]:
        lines: list[str] = []
        #: Indices of the first nodes of lines, by target.
        beginners: dict[str, list[int]] = {}
        line = ""
        #: Index of the node that the last one repeats; None in a new line, -1 if unknown.
        repeated: Optional[int] = None
        for number, (new, target) in enumerate(self._nodes):
            if new:
                beginners.setdefault(target, []).append(number)
                line, repeated = new, None
            elif repeated is not None and repeated >= 0 and self._nodes[repeated + 1].target == target:
                repeated += 1
            elif repeated is not None or target in beginners:
                positions = beginners.get(target, [])
                if len(positions) == 1 and self._repeats(positions[0], number, lines):
                    repeated = positions[0]
                elif repeated is None and len(positions) == 1:
                    # A part of the line above, or the whole of an earlier one.
                    lines.append(line if lines[positions[0]] == line else "")
                    continue
                else:
                    repeated = -1
            lines.append(line if repeated is None else lines[repeated] if repeated >= 0 else "")
        return lines

    def _repeats(self, earlier: int, later: int, lines: list[str]) -> bool:
        """Return True if the nodes from `now` on equal those from `then` on, for a line of several nodes or into the
        next."""
        first = self._nodes[earlier]
        for length in range(_PROOF):
            ended = later + length == len(self._nodes) or bool(self._nodes[later + length].line)
            over = earlier + length == later
            # The earlier line has ended there, or started again.
            complete = length > 0 and (
                over
                or lines[earlier + length] != lines[earlier]
                or self._nodes[earlier + length].target == first.target
            )
            if complete and length > 1:
                return True
            if ended or over or self._nodes[earlier + length].target != self._nodes[later + length].target:
                return False
            if complete:
                return True
        return True


def _decoded(raw: bytes) -> str:
    return raw.decode("utf-8", "replace").rstrip("\r\n")


def _name_of_outputs(outputs: list[str]) -> str:
    """Return `LayerNorm_1` for `LayerNorm_1_0, LayerNorm_1_1`, or another variable unchanged."""
    for index, variable in enumerate(outputs):
        match = _OUTPUT.fullmatch(variable)
        if match is not None and match[2] == str(index):
            return match[1]
    return "NetOutput" if outputs == ["_"] else outputs[0]


def _open(path: _Path) -> IO[bytes]:
    try:
        return open_regular(path)
    except FileNotFoundError:
        hint = 'dump graphs with config.debug.graph_dump.type = "py"'
        raise DumpNotFound("no such file", path=path, hint=hint) from None
    except NotRegularFile:
        raise ReadError("not a regular file", path=path, hint="pass a dynamo_*_graph_*.py file") from None
    except OSError as error:
        raise ReadError(f"cannot be opened: {error.strerror}", path=path) from None
