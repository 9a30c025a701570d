"""torchair's graphs as Python text, `dynamo_optimized_graph_{id}_rank_{r}_pid_{p}_ts_{time}.py`.

`config.debug.graph_dump.type = "py"` writes them, before and after torchair's own passes. They link the nodes of
PyTorch's graph, the operators of GE and the lines of the program:

    # File "train.py", line 94, in forward    h = torch.relu(self.a(x))
    ## FX Code: relu: torch.float32[5, 16]cpu = torch.ops.aten.relu.default(addmm: torch.float32[5, 16]cpu)
    Relu_0 = ge.Relu(Add_0, node_name="Relu")

Source: torchair 2.13, `_ge_concrete_graph/fx2ge_converter.py` and `ge/_ge_graph.py`. The text is parsed, never run.
What it does not say:

- The line of a program is written only where it comes for the first time; a node that comes from an earlier line, as
  in the second of two equal layers, stands below another one. Once an operator that began an earlier line comes again,
  the nodes are taken to follow that line as they did before, and have no `source` from the first one on that does not,
  until the next line. So `source` may be wrong where a program runs lines of equal operators in a new order.
- A node of PyTorch without a known line is not written; its GE operators stand below the node before.
- What the program writes into its inputs is copied there at the end (`aten.copy_`), from the line that computed it,
  but stands below the last line. An `Assign` that stands below another node is made for no node that is written.
- Passes after that text was made: an `Assign` to an input of the graph becomes an output of the graph, which GE
  writes over the input, and the operator itself is taken out (`_mapping_assign_op_to_graph_output`).
- An operator with several outputs has its name in those of its outputs only; constants stand within calls, unnamed.
- The operator that hands the offsets of a generator to random operators (`_GraphRngState`) has no line of its own, and
  GE runs and dumps it as any other: it is read from the first call that takes one of its outputs.
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
#: A text, a name with the sign that makes it a keyword, or what opens or closes something.
_TOKEN = re.compile(
    r"""\"[^"\\]*(?:\\.[^"\\]*)*\"|'[^'\\]*(?:\\.[^'\\]*)*'|(?<![\w.])[^\W\d]\w*(?:\s*=(?!=))?|[()\[\]{}"']"""
)
_CLOSING = {"(": ")", "[": "]", "{": "}"}
_OUTPUT = re.compile(r"(.+)_(\d+)", re.ASCII)
#: An output of the operator without a line; its input has the same name with another beginning.
_OFFSET = re.compile(r"unpack_generator_offsets((?:_\d+)?)_(\d+)", re.ASCII)
#: Constants stand in the line of their operator. Beyond the second limit its inputs are not read.
_LONGEST_LINE, _LONGEST_PARSED = 64 << 20, 1 << 20
#: The outputs of an operator with a longer name are not known as inputs of others: each repeats the name.
_LONGEST_NAME = 1 << 10
#: So many nodes in the order of earlier ones come from the same lines.
_LOOKED_AHEAD = 64


class GraphFile(NamedTuple):
    """A parsed file name. kind: "original" or "optimized". time: UTC, YYYYmmddHHMMSS and microseconds."""

    kind: str
    id: int
    rank: int
    pid: int
    time: str


class GraphOp(NamedTuple):
    """One GE operator, or one FX node that became none of its own (node.type is empty then).

    node    name and type, as `layers=` and the dump have them
    fx      the FX node it was made for, empty before the first one
    target  what that node calls, such as `aten.addmm.default`
    source  `file:line` of the program, empty where the text does not tell
    to_input  whether it assigns to an input of the graph, so that torchair takes it out and GE never gets it
    code    the text of that node, `name: type = target(arguments)`
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
_TAKEN_OUT = NoDump("torchair makes it an output that is written over the input, GE gets no such operator")
#: What the graph begins and ends with is made for no node.
_EDGES = ("Data", "NetOutput")
#: The operator of one kind of node alone, which often has no line of its own.
_ASSIGN, _ASSIGNING = "Assign", "aten.copy_"


def parse_graph_file(name: str) -> Optional[GraphFile]:
    """Parse a file name; None if it is not that of a graph of torchair."""
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

    Raises DumpNotFound, ReadError for what is no regular file, and CorruptDump where the text is no such graph.
    """
    name = parse_graph_file(Path(path).name)
    with _open(path) as file:
        # The line of a node depends on the nodes behind it.
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
    """Parses the text line by line. sources: the lines of all nodes of PyTorch's graph, in order."""

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
        """Yield the operators without a line whose outputs are read here for the first time."""
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
    """Return the names in the positional arguments of a call whose bracket opens before `begin`; empty if it is not
    closed.

    Without Python's syntax tree, which takes 500 bytes for each character of a long constant.
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
        elif token in ('"', "'"):  # one that no other ends
            return []
        elif token.endswith("="):
            if len(expected) == 1:
                return names
        elif token[0] not in "\"'":
            names.append(token)
    return []


class _Marked(NamedTuple):
    """A node of PyTorch's graph, and the line given in the text; "" if there is none."""

    line: str
    target: str


class _NodeLines:
    """Finds the lines of all nodes. The text has the line of the first node of each new line only."""

    def __init__(self) -> None:
        self._line = ""
        #: Name -> place among the nodes, without copies into inputs.
        self._positions: dict[str, int] = {}
        self._nodes: list[_Marked] = []
        #: Of each node of the text, copies into inputs among them: whose line it has; None for no line.
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
        """Return the line of each node of the text; "" if it is not known."""
        lines = self._find_lines()
        return ["" if number is None else lines[number] for number in self._takes]

    def _find_lines(self) -> list[str]:
        lines: list[str] = []
        #: What the first node of a line calls -> the places of such nodes.
        beginners: dict[str, list[int]] = {}
        line = ""
        #: Where the node stands that the last one repeats; None in a line that is new, -1 where that is not known.
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

    def _repeats(self, then: int, now: int, lines: list[str]) -> bool:
        """Return True if the nodes from `now` on equal those from `then` on, for a line of several nodes or into the
        next."""
        first = self._nodes[then]
        for length in range(_LOOKED_AHEAD):
            ended = now + length == len(self._nodes) or bool(self._nodes[now + length].line)
            over = then + length == now
            # The line has ended then, or begun once more.
            complete = length > 0 and (
                over or lines[then + length] != lines[then] or self._nodes[then + length].target == first.target
            )
            if complete and length > 1:
                return True
            if ended or over or self._nodes[then + length].target != self._nodes[now + length].target:
                return False
            if complete:
                return True
        return True


def _decoded(raw: bytes) -> str:
    return raw.decode("utf-8", "replace").rstrip("\r\n")


def _name_of_outputs(outputs: list[str]) -> str:
    """`LayerNorm_1` for its outputs `LayerNorm_1_0, LayerNorm_1_1`; another variable is returned unchanged."""
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
        raise ReadError("not a regular file", path=path, hint="give a dynamo_*_graph_*.py file") from None
    except OSError as error:
        raise ReadError(f"cannot be opened: {error.strerror}", path=path) from None
