"""Read torchair's graph files, which are Python text: `dynamo_optimized_graph_{id}_rank_{r}_pid_{p}_ts_{time}.py`.

torchair writes them with `config.debug.graph_dump.type = "py"`, before and after its own passes. They link the nodes of
PyTorch's graph, the operators of GE and the lines of the program:

    # File "train.py", line 94, in forward    h = torch.relu(self.a(x))
    ## FX Code: relu: torch.float32[5, 16]cpu = torch.ops.aten.relu.default(addmm: torch.float32[5, 16]cpu)
    Relu_0 = ge.Relu(Add_0, node_name="Relu")

Source: torchair 2.13, `_ge_concrete_graph/fx2ge_converter.py` and `ge/_ge_graph.py`. The text is parsed, never run.
Limits of the text:

- A line of the program is written only once. If a line runs again, as in the second of two equal layers, its nodes are
  written below another line. So if a node calls the same operator as the first node of an earlier line, the nodes from
  it on are assumed to repeat that line, up to the first node that differs. From there to the next line, nodes have no
  `source`. `source` may be wrong if a program runs lines with equal operators in a new order.
- A node of PyTorch whose line is unknown is not written. Its GE operators are below the node before it.
- Values that the program writes into its inputs are copied at the end (`aten.copy_`), below the last line. An `Assign`
  below a node with another call belongs to a node that is not written.
- The effect of a later pass is missing (`_mapping_assign_op_to_graph_output`): it removes each `Assign` to an input of
  the graph. The assigned value becomes an output of the graph, which GE writes over the input.
- An operator with several outputs has no name in the text; its outputs have the name with a number. Constants in calls
  have no names.
- The operator that passes the offsets of a generator to random operators (`_GraphRngState`) is not written, but GE runs
  and dumps it. It is yielded before the first call that reads one of its outputs.
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
#: The arguments of `aten.copy_`; the group is the node whose value is copied.
_COPIED = re.compile(r"\w+(?:: [^\[(,]*(?:\[[^\]]*\][^\[(,]*)?)?, (\w+)")
_NODE_NAME = re.compile(r'node_name="([^"]+)"\)$')
#: A token of a call: a string, a name, a keyword with its equals sign, a bracket, or an unclosed quote.
_TOKEN = re.compile(
    r"""\"[^"\\]*(?:\\.[^"\\]*)*\"|'[^'\\]*(?:\\.[^'\\]*)*'|(?<![\w.])[^\W\d]\w*(?:\s*=(?!=))?|[()\[\]{}"']"""
)
_CLOSING = {"(": ")", "[": "]", "{": "}"}
_OUTPUT = re.compile(r"(.+)_(\d+)", re.ASCII)
#: A variable for an output of the operator `_GraphRngState`, which is not written.
_OFFSET = re.compile(r"unpack_generator_offsets((?:_\d+)?)_(\d+)", re.ASCII)
#: Maximum length of a line in bytes, and maximum length of a line whose inputs are parsed, in characters. Lines with
#: constants are long.
_LONGEST_LINE, _LONGEST_PARSED = 64 << 20, 1 << 20
#: Maximum length of an operator's name whose outputs are stored as variables, because each of them repeats the name.
_LONGEST_NAME = 1 << 10
#: If this number of consecutive nodes equals earlier ones, they are assumed to have the same lines.
_PROOF = 64


class GraphFile(NamedTuple):
    """The fields of a file name. kind: "original" or "optimized". time: in UTC, YYYYmmddHHMMSS and microseconds."""

    kind: str
    id: int
    rank: int
    pid: int
    time: str


class GraphOp(NamedTuple):
    """An operator of GE; or an FX node for which no operator was made, then `node.type` is empty.

    node    name and type, as in `layers=` and the dump
    fx      the name of the FX node for which the operator was made; "" if it is unknown
    target  the operator that the FX node calls, such as `aten.addmm.default`
    source  `file:line` of the program; "" if it is unknown
    to_input  True for an assignment to an input of the graph, which torchair removes before it passes the graph to GE
    code    the text of the FX node, `name: type = target(arguments)`
    """

    node: Node
    fx: str = ""
    target: str = ""
    source: str = ""
    to_input: bool = False
    code: str = ""

    def why_no_dump(self) -> Optional[NoDump]:
        """Return the reason why the operator is never dumped; None if it can be dumped."""
        return _TAKEN_OUT if self.to_input else why_no_dump(self.node)


_NO_NODE = GraphOp(Node("", "", (), ""))
_TAKEN_OUT = NoDump("torchair replaces it by an output that is written over the input: GE has no such operator")
#: Types of the first and last operators of a graph. They belong to no FX node.
_EDGES = ("Data", "NetOutput")
#: The type of operator for assignments, and the only call of an FX node for which it is made.
_ASSIGN, _ASSIGNING = "Assign", "aten.copy_"


def parse_graph_file(name: str) -> Optional[GraphFile]:
    """Return the fields of a file name; None if it is not the name of a graph file of torchair."""
    match = _FILE.fullmatch(name)
    return None if match is None else GraphFile(match[1], int(match[2]), int(match[3]), int(match[4]), match[5])


def operator_names(path: _Path) -> list[str]:
    """Return the names of the operators that GE runs. path: a graph file of torchair, or one of GE (`ge_proto_*.txt`).

    Raises as `read_torchair_graph`.
    """
    if parse_graph_file(Path(path).name) is not None:
        return [
            operator.node.name for operator in read_torchair_graph(path) if operator.node.type and not operator.to_input
        ]
    return [node.name for node in read_graph(path)]


def read_torchair_graph(path: _Path) -> Iterator[GraphOp]:
    """Yield the operators of a graph file in their order in the file.

    Raises DumpNotFound, ReadError if it is not a regular file, and CorruptDump if it is not a graph of torchair.
    """
    name = parse_graph_file(Path(path).name)
    with _open(path) as file:
        # The text is read twice, because the line of a node depends on the nodes after it.
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
                "a zero byte, which no text file contains", path=path, offset=file.tell() - len(raw) + raw.index(0)
            )
        yield raw


class _GraphReader:
    """A parser of the text, line by line. sources: the lines of the program for all FX nodes in the text, in order."""

    def __init__(self, path: _Path, graph: str, sources: list[str]) -> None:
        self._path = path
        self._graph = graph
        self._is_graph = False
        self._sources = iter(sources)
        self._fx: Optional[GraphOp] = None
        self._used = True
        #: The outputs of operators as `name:output`, by the variables of the text.
        self._variables: dict[str, str] = {}
        self._inputs_of_graph: set[str] = set()
        #: Names of operators that are not written and have been yielded.
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
            raise CorruptDump("it is not a graph file of torchair", path=self._path, offset=offset)

    def _unused(self) -> Iterator[GraphOp]:
        """Yield the preceding FX node if no operator was made for it, as for a view or a scope."""
        if not self._used and self._fx is not None:
            yield self._fx
        self._used = True

    def _generator_offsets(self, names: list[str]) -> Iterator[GraphOp]:
        """Yield the operators that are not written and whose outputs are in `names` for the first time."""
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
    """Return the names in the positional arguments of a call; [] if the call is not closed.

    begin: position after the call's opening bracket. Python's parser is not used, because its syntax tree takes 500
    bytes of memory for each character of a long constant.
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
    """An FX node: the line of the program that is written above it ("" if none is), and the operator that it calls."""

    line: str
    target: str


class _NodeLines:
    """A finder of the lines of the program for all FX nodes. The text has a line only above the line's first node."""

    def __init__(self) -> None:
        self._line = ""
        #: Index in `_nodes` by the node's name. Nodes that copy into inputs are left out.
        self._positions: dict[str, int] = {}
        self._nodes: list[_Marked] = []
        #: For each node of the text: index in `_nodes` of the node that has the same line; None if it is unknown. A
        #: node that copies into an input has the line of the node whose value it copies.
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
        """Return the line of the program for each node of the text; "" if it is unknown."""
        lines = self._find_lines()
        return ["" if number is None else lines[number] for number in self._takes]

    def _find_lines(self) -> list[str]:
        lines: list[str] = []
        #: Indices of the nodes that are the first of a line, by the operator that they call.
        beginners: dict[str, list[int]] = {}
        line = ""
        #: Index of the earlier node that the current node repeats; None in a new line, -1 if it is unknown.
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
                    # The node may belong to the line above, or repeat an earlier line. Both are equal only in one case.
                    lines.append(line if lines[positions[0]] == line else "")
                    continue
                else:
                    repeated = -1
            lines.append(line if repeated is None else lines[repeated] if repeated >= 0 else "")
        return lines

    def _repeats(self, earlier: int, later: int, lines: list[str]) -> bool:
        """Return True if the nodes from `later` on repeat the line that begins with the node `earlier`.

        The nodes of this line have to be equal. If the line has a single node, the node after it has to be equal too,
        because a single node may belong to the line above.
        """
        first = self._nodes[earlier]
        for length in range(_PROOF):
            ended = later + length == len(self._nodes) or bool(self._nodes[later + length].line)
            over = earlier + length == later
            # True if the earlier line ends before this node, or begins again with it.
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
    """Return the operator's name from the variables of its outputs: `LayerNorm_1` for `LayerNorm_1_0, LayerNorm_1_1`.

    A variable without a number is the name itself.
    """
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
