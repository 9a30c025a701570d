"""Replay operators of GE: find the nodes of PyTorch's graph that torchair converted to them, and run these nodes.

torchair's text of the graph contains the call of each node, its arguments, and the GE operators to which the node was
converted. The values of the arguments are the recorded inputs of these GE operators. An argument that is not among
these inputs is a recorded input or output of another operator, or a view that is computed here from such a tensor. The
output of a node is the output of the last of its GE operators, if the text tells which operator is the last.
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
#: Names of torchair's graphs.
_TORCHAIR = re.compile(r"graph_\d+", re.ASCII)
#: Maximum depth of views of views that are computed.
_DEEPEST = 64
#: An output of an operator of GE: the name of the operator, and the index.
_Output = tuple[str, int]


class CalledNode(NamedTuple):
    """A node in the form of a recorded operator. Its records come from GE operators, numbered as in the node's call.

    recorded  the original records of the dump, by index of the output
    """

    operator: Operator
    call: Arguments
    recorded: dict[int, Record]


class _Run:
    """One run of a graph: its recorded GE operators, and their description in the text."""

    def __init__(self, dump: Dump, graph: FxGraph, operators: Sequence[Operator], runner: Runner) -> None:
        self._graph = graph
        self._runner = runner
        self._operators = {operator.op_name: operator for operator in operators}
        #: By name: a GE operator in the text, and the node under which the text lists it.
        self._written = {written.name: (written, node) for node in graph.nodes.values() for written in node.operators}
        self._node_of = {name: node for name, (_, node) in self._written.items()}
        self._outputs: dict[_Output, Record] = {}
        for operator in operators:
            for record in operator.outputs:
                self._outputs.setdefault((operator.op_name, record.index), record)
                # The GE graph beside the dump names the original operators of a fused operator.
                for index, origins in dump.made_of(record).outputs:
                    for name, output in origins if index == record.index else ():
                        self._outputs.setdefault((name, output), record)
                        original = graph.nodes.get(name) or self._node_of.get(name)
                        if original is not None:
                            self._node_of.setdefault(operator.op_name, original)
        #: The readers of each output of GE's operators, and of each node.
        self._readers: dict[str, list[str]] = {}
        self._users: dict[str, list[FxNode]] = {}
        for node in graph.nodes.values():
            for value in node.values:
                self._users.setdefault(value.name, []).append(node)
            for written in node.operators:
                for name in written.inputs:
                    self._readers.setdefault(name, []).append(written.name)
        #: Nodes without a line in the text, so that their operators are listed under another node.
        self._unwritten = self._users.keys() - graph.nodes.keys() - graph.inputs

    def node_of(self, op_name: str) -> Optional[FxNode]:
        """Return the node that was converted to an operator of GE; None if no text or graph of GE names the node."""
        return self._node_of.get(op_name)

    def call(self, node: FxNode) -> CalledNode:
        """Return the node as an operator that can be run again. Raises NotRun."""
        if operator_class(f"aten::{_name(node)}") in RANDOM:
            raise NotRun("random")
        if node.args is None or node.kwargs is None:
            raise NotRun("arguments", f"the text of the call of {node.value.name} cannot be read")
        outputs = self._recorded_outputs(node)
        if not outputs:
            raise NotRun("outputs", f"no recorded operator of GE is known to compute {node.value.name}")
        return self._called(node, outputs, tuple(operator.name for operator in node.operators), 0)

    def _called(self, node: FxNode, outputs: dict[int, Record], near: tuple[str, ...], depth: int) -> CalledNode:
        """Return the node as an operator. near: the operators of GE whose inputs are searched first."""
        inputs: list[Record] = []

        def add_input(value: FxValue) -> TensorOf:
            inputs.append(self._record_of(value, near, depth))
            return TensorOf("input", len(inputs) - 1)

        values = {
            name: _plain(value, name, add_input)
            for name, value in self._runner.bind(node.target, node.args or [], node.kwargs or {})
        }
        call = Arguments(node.target, values)
        text = json.dumps(call.to_dict()).encode()
        op_type = "::".join(node.target.split(".")[:2])
        source = next((record.source for record in outputs.values() if record.source), "")
        operator = Operator(0, op_type, node.value.name, "", "", source)
        operator.inputs = [record.as_argument(op_type, index, text) for index, record in enumerate(inputs)]
        operator.outputs = [_in_model(record).as_argument(op_type, index, text) for index, record in outputs.items()]
        return CalledNode(operator, call, outputs)

    def _recorded_outputs(self, node: FxNode) -> dict[int, Record]:
        """Return the recorded outputs of a node, by their indices."""
        values = {0: node.value}
        if node.value.shape is None:
            users = self._users.get(node.value.name, ())
            values = {user.item[1]: user.value for user in users if user.item is not None}
        recorded = {}
        last = self._last_of(node)
        for index, value in values.items():
            record = self._outputs.get((node.value.name, index))
            if record is None and last is not None:
                record = self._outputs.get((last, index))
            if record is not None and _fits(record, value):
                recorded[index] = record
        return recorded

    def _last_of(self, node: FxNode) -> Optional[str]:
        """Return the name of the GE operator that computes the value of a node; None if the text does not tell."""
        read = self._read_as(node)
        if read or node.value.name in self._users or self._unwritten:
            return read.pop() if len(read) == 1 else None
        # Each node has its line in the text, and no node reads this one. So the graph returns its value.
        returned = {name.rpartition(":")[0] for name in self._graph.returned}
        candidates = returned & {operator.name for operator in node.operators}
        if len(candidates) != 1:
            return None
        [last] = candidates
        kinds = {
            self._written[name][0].type
            for peer in self._graph.nodes.values()
            if peer.target == node.target
            for name in self._read_as(peer)
        }
        return last if len(node.operators) == 1 or self._written[last][0].type in kinds else None

    def _read_as(self, node: FxNode) -> set[str]:
        """Return the GE operators of a node whose outputs are read by the GE operators of the node's users."""
        names = {operator.name for operator in node.operators}
        return {name for user in self._computing_users(node) for name in _makers(user) if name in names}

    def _computing_users(self, node: FxNode) -> Iterator[FxNode]:
        """Yield the users of a node that have GE operators; for users without any, such as views, their users."""
        stack, visited = [node], {node.value.name}
        while stack:
            for user in self._users.get(stack.pop().value.name, ()):
                if user.value.name not in visited:
                    visited.add(user.value.name)
                    if user.operators:
                        yield user
                    else:
                        stack.append(user)

    def _record_of(self, value: FxValue, near: tuple[str, ...], depth: int) -> Record:
        """Return the record of the value of an argument. Raises NotRun if it is not recorded."""
        if depth > _DEEPEST:
            raise NotRun("inputs", f"{value.name} is a view of too many views")
        node = self._graph.nodes.get(value.name)
        output = self._output_of(value.name, node)
        if output is not None:
            name = f"{output[0]}:{output[1]}"
            for reader in (*near, *self._readers.get(name, ())):
                read = self._read_by(reader, name, value)
                if read is not None:
                    return read
        for source in ((value.name, 0), output):
            record = None if source is None else self._outputs.get(source)
            if record is not None and _fits(record, value):
                return _in_model(record)
        if node is not None and is_view(f"aten::{_name(node)}") and node.args is not None:
            return self._view(node, near, depth)
        target = "" if node is None else f" ({node.target})"
        raise NotRun(
            "inputs",
            f"{value.name}{target} was not recorded: its operator was fused with others, or its value is not a tensor",
        )

    def _output_of(self, name: str, node: Optional[FxNode]) -> Optional[_Output]:
        """Return the output of a GE operator that has the value of a node; None if the text does not tell.

        An input of the graph is the output of the Data operator with the same name.
        """
        if node is None:
            return name, 0
        whole, index = node.item or (node.value, 0)
        source = self._graph.nodes.get(whole.name)
        last = None if source is None else self._last_of(source)
        return None if last is None else (last, index)

    def _read_by(self, reader: str, name: str, value: FxValue) -> Optional[Record]:
        """Return the recorded input of the operator `reader` that is the output `name`; None if there is none."""
        written, operator = self._written.get(reader), self._operators.get(reader)
        if written is None or operator is None or written[0].inputs.count(name) != 1:
            return None
        fitting = [record for record in operator.inputs if _fits(record, value)]
        # Constants of the call are recorded inputs too, but the text does not name them.
        if len(operator.inputs) == len(written[0].inputs):
            fitting = [record for record in fitting if record.index == written[0].inputs.index(name)]
        return _in_model(fitting[0]) if len(fitting) == 1 else None

    def _view(self, node: FxNode, near: tuple[str, ...], depth: int) -> Record:
        """Return the record of a view, computed here in its own type."""
        called = self._called(node, {}, near, depth + 1)
        operator = called.operator
        if not operator.inputs:
            raise NotRun("inputs", f"{node.value.name} ({node.target}) has no tensor as an input")
        source = operator.inputs[0]
        operator.outputs.append(source)
        return _of_array(source, self._runner.run(operator, called.call, None)[0])


class NodeOf(NamedTuple):
    """The node that was converted to an operator of GE. key: identifies the node in one run of the graph."""

    key: Any
    node: FxNode
    run: _Run

    def call(self) -> CalledNode:
        """Return the node as an operator that can be run again. Raises NotRun."""
        return self.run.call(self.node)


class GraphNodes:
    """The nodes that were converted to operators of GE. The text and the records of a graph are read on first use."""

    def __init__(self, dump: Dump, runner: Runner) -> None:
        self._dump = dump
        self._runner = runner
        self._graphs: dict[Path, FxGraph] = {}
        self._records: Optional[dict[Any, list[Record]]] = None
        self._runs: dict[Any, _Run] = {}

    def of(self, operator: Operator) -> Optional[NodeOf]:
        """Return the node of a GE operator; None for a PyTorch operator, and for a graph that torchair did not make.

        Raises NotRun if torchair's text of the graph is missing, or has no node for this operator.
        """
        first = next(operator.records)
        if "::" in operator.op_type or first.model is None:
            return None
        path = self._dump.torchair_graph(first)
        if path is None:
            if _TORCHAIR.fullmatch(first.model) is None:
                return None
            raise NotRun("graph", "capture with options={'graph_dump': 'py'}")
        if is_source(operator.op_type):
            raise NotRun("graph", "it only returns an input of the graph, or a constant")
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
                for member in self._dump.unselected():
                    self._records.setdefault(_run_of(member), []).append(member)
            self._runs[key] = _Run(self._dump, self._graphs[path], operators(self._records.get(key, ())), self._runner)
        return self._runs[key]


def _run_of(record: Record) -> Any:
    return record.run, record.rank, record.device, record.model, record.model_id, record.step


class _ComputedReader:
    """Reads tensors that were computed here."""

    def tensor(self, record: Record, format: Optional[str]) -> np.ndarray:
        array: np.ndarray = record.key
        return array

    def statistics(self, record: Record) -> Optional[Statistics]:
        return None


def _of_array(like: Record, array: np.ndarray) -> Record:
    return Record(
        _ComputedReader(),
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
    """Return the record with its tensor in the layout that the tensor has in the program."""
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
    """Yield the operators of GE whose outputs the operators of a node read."""
    for operator in node.operators:
        for name in operator.inputs:
            yield name.rpartition(":")[0]


def _fits(record: Record, value: FxValue) -> bool:
    """Return True if a record has the shape of a value; dimensions that the text does not give are not compared."""
    shape = shape_in_model(record)
    if shape is None or value.shape is None:
        return value.shape is None
    return len(shape) == len(value.shape) and all(b is None or a == b for a, b in zip(shape, value.shape))


def _plain(value: Any, name: str, add_input: Callable[[FxValue], TensorOf]) -> Any:
    """Return an argument in the form of `Arguments`. name: its name in the schema."""
    if isinstance(value, list):
        return [_plain(element, name, add_input) for element in value]
    if isinstance(value, FxValue):
        return add_input(value)
    if not isinstance(value, NotPlain):
        return value
    if name == "device":
        return Named(name, value.text)
    module, _, word = value.text.partition(".")
    if module == "torch" and word:
        return Named("layout" if word in _LAYOUTS else "memory_format" if word in _FORMATS else "dtype", word)
    return value.text
