"""Operators of a dump of GE as the nodes of PyTorch's graph that torchair made them for, so that they can be run again.

torchair's text of the graph says what a node calls, with which arguments, and which operators of GE were made for it.
Its inputs are what these read, as they were recorded; else what other operators made or read of the same value; and
what is a view of such a value is made of it. Its output is that of the last of its operators, where the text leaves no
doubt which one that is.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Optional

from ascend_dump.analysis.numerics.device_formats import as_in_model, shape_in_model
from ascend_dump.analysis.operators.names import is_source, is_view
from ascend_dump.analysis.operators.operator import Operator, operators
from ascend_dump.analysis.operators.properties import RANDOM, operator_class
from ascend_dump.analysis.replay.reasons import NotRun
from ascend_dump.analysis.replay.runner import Runner
from ascend_dump.dump_format import Arguments, Named, TensorOf
from ascend_dump.errors import AscendDumpError, ReadError
from ascend_dump.native.torchair.fx import FxGraph, FxNode, FxValue, NotPlain, read_fx_graph
from ascend_dump.reading import Dump, Record

if TYPE_CHECKING:
    import numpy as np

    from ascend_dump.statistics import Statistics

__all__ = ["CalledNode", "GraphNodes", "NodeOf"]

_LAYOUTS = ("strided", "sparse_coo")
_FORMATS = ("contiguous_format", "preserve_format", "channels_last", "channels_last_3d")
#: As torchair calls graphs.
_TORCHAIR = re.compile(r"graph_\d+", re.ASCII)
#: Views of views.
_DEEPEST = 64
#: An output of an operator of GE: its name, and the number.
_Output = tuple[str, int]


class CalledNode(NamedTuple):
    """A node as an operator: its records are those of GE's operators, with the places that they have in the call.

    recorded  the records as they are in the dump, of each output
    """

    operator: Operator
    call: Arguments
    recorded: dict[int, Record]


class _Run:
    """One run of a graph: its operators of GE, and what the text says of them."""

    def __init__(self, dump: Dump, graph: FxGraph, operators: Sequence[Operator], runner: Runner) -> None:
        self._graph = graph
        self._runner = runner
        self._operators = {one.op_name: one for one in operators}
        #: GE's operators of the text, and the nodes that they stand below.
        self._written = {node.name: (node, one) for one in graph.nodes.values() for node in one.operators}
        self._made_for = {name: one for name, (_, one) in self._written.items()}
        self._outputs: dict[_Output, Record] = {}
        for operator in operators:
            for record in operator.outputs:
                self._outputs.setdefault((operator.op_name, record.index), record)
                # Of one that GE made of several, the graph beside the dump tells.
                for number, told in dump.made_of(record).outputs:
                    for name, output in told if number == record.index else ():
                        self._outputs.setdefault((name, output), record)
                        made_for = graph.nodes.get(name) or self._made_for.get(name)
                        if made_for is not None:
                            self._made_for.setdefault(operator.op_name, made_for)
        #: Who reads an output of GE's operators, and who reads a node.
        self._readers: dict[str, list[str]] = {}
        self._users: dict[str, list[FxNode]] = {}
        for one in graph.nodes.values():
            for value in one.values:
                self._users.setdefault(value.name, []).append(one)
            for node in one.operators:
                for name in node.inputs:
                    self._readers.setdefault(name, []).append(node.name)
        #: Nodes of which torchair writes no line, so that their operators stand below another one.
        self._unwritten = self._users.keys() - graph.nodes.keys() - graph.inputs

    def node_of(self, op_name: str) -> Optional[FxNode]:
        """The node that an operator of GE was made for; None where neither the text nor a graph of GE tells."""
        return self._made_for.get(op_name)

    def call(self, node: FxNode) -> CalledNode:
        """The node as an operator that can be run again. Raises NotRun."""
        if operator_class(f"aten::{_name(node)}") in RANDOM:
            raise NotRun("random")
        if node.args is None or node.kwargs is None:
            raise NotRun("arguments", f"the text of the call of {node.value.name} cannot be read")
        made = self._made_by(node)
        if not made:
            raise NotRun("outputs", f"no recorded operator of GE is known to give what {node.value.name} does")
        return self._called(node, made, tuple(one.name for one in node.operators), 0)

    def _called(self, node: FxNode, made: dict[int, Record], near: tuple[str, ...], depth: int) -> CalledNode:
        """made: its outputs; near: the operators of GE that are asked first for what they read."""
        inputs: list[Record] = []

        def place(value: FxValue) -> TensorOf:
            inputs.append(self._record_of(value, near, depth))
            return TensorOf("input", len(inputs) - 1)

        values = {
            name: _plain(value, name, place)
            for name, value in self._runner.bind(node.target, node.args or [], node.kwargs or {})
        }
        call = Arguments(node.target, values)
        text = json.dumps(call.to_dict()).encode()
        op_type = "::".join(node.target.split(".")[:2])
        source = next((record.source for record in made.values() if record.source), "")
        operator = Operator(0, op_type, node.value.name, "", "", source)
        operator.inputs = [one.as_argument(op_type, index, text) for index, one in enumerate(inputs)]
        operator.outputs = [_in_model(one).as_argument(op_type, index, text) for index, one in made.items()]
        return CalledNode(operator, call, made)

    def _made_by(self, node: FxNode) -> dict[int, Record]:
        """The recorded outputs of a node, by their numbers."""
        wanted = {0: node.value}
        if node.value.shape is None:
            users = self._users.get(node.value.name, ())
            wanted = {one.item[1]: one.value for one in users if one.item is not None}
        found = {}
        last = self._last_of(node)
        for number, value in wanted.items():
            told = self._outputs.get((node.value.name, number))
            record = told if told is not None or last is None else self._outputs.get((last, number))
            if record is not None and _fits(record, value):
                found[number] = record
        return found

    def _last_of(self, node: FxNode) -> Optional[str]:
        """The operator that gives what the node does."""
        read = self._read_as(node)
        if read or node.value.name in self._users or self._unwritten:
            return read.pop() if len(read) == 1 else None
        # Nobody reads it: the graph returns it, if that is not what a node without a line gives, below this one.
        given = {name.rpartition(":")[0] for name in self._graph.returned} & {one.name for one in node.operators}
        if len(given) != 1:
            return None
        [last] = given
        kinds = {
            self._written[name][0].type
            for other in self._graph.nodes.values()
            if other.target == node.target
            for name in self._read_as(other)
        }
        return last if len(node.operators) == 1 or self._written[last][0].type in kinds else None

    def _read_as(self, node: FxNode) -> set[str]:
        """The operators that stand below a node and are read by those that read it."""
        own = {one.name for one in node.operators}
        return {name for user in self._computing_users(node) for name in _makers(user) if name in own}

    def _computing_users(self, node: FxNode) -> Iterator[FxNode]:
        """Those that have operators of their own, behind views that have none."""
        stack, seen = [node], {node.value.name}
        while stack:
            for user in self._users.get(stack.pop().value.name, ()):
                if user.value.name not in seen:
                    seen.add(user.value.name)
                    if user.operators:
                        yield user
                    else:
                        stack.append(user)

    def _record_of(self, value: FxValue, near: tuple[str, ...], depth: int) -> Record:
        """What a node among the arguments gives. Raises NotRun where that is not recorded."""
        if depth > _DEEPEST:
            raise NotRun("inputs", f"{value.name} is a view of too many views")
        node = self._graph.nodes.get(value.name)
        output = self._output_of(value.name, node)
        if output is not None:
            name = f"{output[0]}:{output[1]}"
            for reader in (*near, *self._readers.get(name, ())):
                found = self._read_by(reader, name, value)
                if found is not None:
                    return found
        for known in ((value.name, 0), output):
            record = None if known is None else self._outputs.get(known)
            if record is not None and _fits(record, value):
                return _in_model(record)
        if node is not None and is_view(f"aten::{_name(node)}") and node.args is not None:
            return self._view(node, near, depth)
        called = "" if node is None else f" ({node.target})"
        raise NotRun(
            "inputs",
            f"{value.name}{called} was not recorded: its operator was fused with others, or its value is not a tensor",
        )

    def _output_of(self, name: str, node: Optional[FxNode]) -> Optional[_Output]:
        """Which output of GE's operators a node is; an input of the graph has the name of its Data."""
        if node is None:
            return name, 0
        of, number = node.item or (node.value, 0)
        source = self._graph.nodes.get(of.name)
        last = None if source is None else self._last_of(source)
        return None if last is None else (last, number)

    def _read_by(self, reader: str, name: str, value: FxValue) -> Optional[Record]:
        """The recorded input of an operator that is this output of another one."""
        written, operator = self._written.get(reader), self._operators.get(reader)
        if written is None or operator is None or written[0].inputs.count(name) != 1:
            return None
        fitting = [one for one in operator.inputs if _fits(one, value)]
        # Constants that stand within the call are inputs too, and have no names there.
        if len(operator.inputs) == len(written[0].inputs):
            fitting = [one for one in fitting if one.index == written[0].inputs.index(name)]
        return _in_model(fitting[0]) if len(fitting) == 1 else None

    def _view(self, node: FxNode, near: tuple[str, ...], depth: int) -> Record:
        """A node that gives what it was given in another shape, order or type: made here, in its own type."""
        called = self._called(node, {}, near, depth + 1)
        operator = called.operator
        if not operator.inputs:
            raise NotRun("inputs", f"{node.value.name} ({node.target}) is made of no tensor")
        given = operator.inputs[0]
        operator.outputs.append(given)
        return _of_array(given, self._runner.run(operator, called.call, None)[0])


class NodeOf(NamedTuple):
    """The node that an operator of GE was made for. key: of its run."""

    key: Any
    node: FxNode
    run: _Run

    def call(self) -> CalledNode:
        """The node as an operator that can be run again. Raises NotRun."""
        return self.run.call(self.node)


class GraphNodes:
    """The nodes that operators of GE were made for, graph by graph, each run of it read when it is first asked for."""

    def __init__(self, dump: Dump, runner: Runner) -> None:
        self._dump = dump
        self._runner = runner
        self._graphs: dict[Path, FxGraph] = {}
        self._records: Optional[dict[Any, list[Record]]] = None
        self._runs: dict[Any, _Run] = {}

    def of(self, operator: Operator) -> Optional[NodeOf]:
        """None for an operator of PyTorch. Raises NotRun where no text of torchair's graph tells."""
        first = next(operator.records)
        if "::" in operator.op_type or first.model is None:
            return None
        path = self._dump.torchair_graph(first)
        if path is None:
            if _TORCHAIR.fullmatch(first.model) is None:
                return None
            raise NotRun("graph", "capture with options={'graph_dump': 'py'}")
        if is_source(operator.op_type):
            raise NotRun("graph", "it brings an input of the graph, or a constant")
        run = self._run(first, path)
        node = run.node_of(operator.op_name)
        if node is None:
            raise NotRun("graph", f"no node of the graph has an operator {operator.op_name}")
        return NodeOf((_run_of(first), node.value.name), node, run)

    def _run(self, record: Record, path: Path) -> _Run:
        key = _run_of(record)
        if key not in self._runs:
            if path not in self._graphs:
                try:
                    self._graphs[path] = read_fx_graph(path)
                except ReadError as error:
                    raise NotRun("graph", str(error)[:200]) from None
            if self._records is None:
                self._records = {}
                for one in self._dump.unselected():
                    self._records.setdefault(_run_of(one), []).append(one)
            self._runs[key] = _Run(self._dump, self._graphs[path], operators(self._records.get(key, ())), self._runner)
        return self._runs[key]


def _run_of(record: Record) -> Any:
    return record.run, record.rank, record.device, record.model, record.model_id, record.step


class _Made:
    """Reads what was made here."""

    def tensor(self, record: Record, format: Optional[str]) -> np.ndarray:
        found: np.ndarray = record.key
        return found

    def statistics(self, record: Record) -> Optional[Statistics]:
        return None


def _of_array(like: Record, array: np.ndarray) -> Record:
    return Record(
        _Made(),
        key=array,
        path=like.path,
        op_name=like.op_name,
        io=like.io,
        step=like.step,
        rank=like.rank,
        model=like.model,
        dtype=array.dtype.name,
        shape=array.shape,
        format="ND",
        nbytes=array.nbytes,
    )


def _in_model(record: Record) -> Record:
    """The record, in the layout that its tensor has in the program."""
    if shape_in_model(record) == record.shape:
        return record
    try:
        return _of_array(record, as_in_model(record))
    except AscendDumpError as error:
        raise NotRun("type", str(error)[:200]) from None


def _name(node: FxNode) -> str:
    parts = node.target.split(".")
    return parts[1] if len(parts) > 1 else parts[0]


def _makers(node: FxNode) -> Iterator[str]:
    """The operators of GE whose outputs those of a node read."""
    for operator in node.operators:
        for name in operator.inputs:
            yield name.rpartition(":")[0]


def _fits(record: Record, value: FxValue) -> bool:
    """Whether a record has the shape of a node, as far as both are known."""
    shape = shape_in_model(record)
    if shape is None or value.shape is None:
        return value.shape is None
    return len(shape) == len(value.shape) and all(b is None or a == b for a, b in zip(shape, value.shape))


def _plain(value: Any, name: str, place: Callable[[FxValue], TensorOf]) -> Any:
    """An argument as `Arguments` has it. name: that of the schema."""
    if isinstance(value, list):
        return [_plain(one, name, place) for one in value]
    if isinstance(value, FxValue):
        return place(value)
    if not isinstance(value, NotPlain):
        return value
    if name == "device":
        return Named(name, value.text)
    of, _, word = value.text.partition(".")
    if of == "torch" and word:
        return Named("layout" if word in _LAYOUTS else "memory_format" if word in _FORMATS else "dtype", word)
    return value.text
