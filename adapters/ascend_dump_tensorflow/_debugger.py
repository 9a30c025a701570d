"""Record one run of a session with the files of TensorFlow's debugger (tfdbg).

The debugger writes the outputs of operators. While a run is debugged, TensorFlow runs loops one iteration at a time
(`debug_utils.add_debug_tensor_watch`). So the input of an operator is the newest output of the operator that produced
it. Functional control flow (While, If) is lowered before it runs, so operators in its bodies have other names than in
the program's graph.
"""

from __future__ import annotations

import bisect
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Callable, NamedTuple, Optional

from ascend_dump.writing import Payload
from ascend_dump_tensorflow._arrays import RecordedTensor, payload_of

__all__ = ["read", "watch"]


class _OutputInTime(NamedTuple):
    """The values that one output of a node had in this run, ordered by time."""

    times: list[int]
    payloads: list[Optional[Payload]]


#: Operators with a body. The operators of the body run with names that do not occur in the graph.
_FUNCTIONAL = frozenset(
    (
        *("While", "StatelessWhile", "For", "If", "StatelessIf", "Case", "StatelessCase"),
        *("PartitionedCall", "StatefulPartitionedCall"),
    )
)


def watch(options: Any, graph: Any, directory: Path, selects: Optional[Callable[[str], bool]], inputs: bool) -> None:
    """Request in RunOptions that the debugger writes tensors of operators, and that the executed graph is returned.

    selects  a function that returns True for names of operators to record; None to record all operators
    inputs   True to request the inputs of these operators too
    """
    from tensorflow.python.debug.lib import debug_utils

    options.output_partition_graphs = True
    options.debug_options.reset_disk_byte_usage = True
    url = f"file://{directory}"
    operators = graph.get_operations()
    requested = type(options)()
    if selects is None or any(op.type in _FUNCTIONAL for op in operators):
        debug_utils.watch_graph(requested, graph, debug_urls=url, tolerate_debug_op_creation_failures=True)
        _add(options, requested)
        return
    chosen = [op for op in operators if selects(op.name)]
    tensors = [tensor for op in chosen for tensor in (*op.outputs, *(op.inputs if inputs else ()))]
    for name in dict.fromkeys(tensor.name for tensor in tensors):
        node, slot = _tensor(name)
        debug_utils.add_debug_tensor_watch(
            requested,
            node,
            output_slot=slot,
            debug_urls=url,
            # Tensors of some types cannot be watched; that must not be an error.
            tolerate_debug_op_creation_failures=True,
        )
    _add(options, requested)


def _add(options: Any, requested: Any) -> None:
    """Add the requested watches to the options. TensorFlow uses only one watch per tensor, so equal ones are merged.

    Other watches may come from another capture or from the program.
    """
    watched = options.debug_options.debug_tensor_watch_opts
    before = {(option.node_name, option.output_slot, tuple(option.debug_ops)): option for option in watched}
    for option in requested.debug_options.debug_tensor_watch_opts:
        same = before.get((option.node_name, option.output_slot, tuple(option.debug_ops)))
        if same is None:
            watched.add().CopyFrom(option)
        else:
            same.debug_urls.extend(option.debug_urls)


def read(
    directory: Path, metadata: Any, selects: Callable[[str], bool], inputs: bool, outputs: bool
) -> tuple[list[RecordedTensor], set[str]]:
    """Return the tensors of selected operators in execution order, and the names of all operators that ran."""
    from tensorflow.python.debug.lib import debug_data

    # Nodes that TensorFlow and the debugger add (feeds, fetches, transfers) are not operators of the program.
    names = {node.name for part in metadata.partition_graphs for node in part.node if not node.name.startswith("_")}
    tensors: list[RecordedTensor] = []
    if any(directory.iterdir()):
        dump = debug_data.DebugDumpDir(str(directory), partition_graphs=metadata.partition_graphs, validate=False)
        for device in dump.devices():
            tensors += _Device(dump, device).read(lambda name: name in names and selects(name), inputs, outputs)
    # The sort is stable, so the tensors of one operator stay together.
    tensors.sort(key=lambda tensor: tensor.time)
    return tensors, names


class _Device:
    """The part of a run that one device executed."""

    def __init__(self, dump: Any, name: str) -> None:
        self._dump = dump
        self._name = name
        self._label = _label(name)
        self._files: dict[tuple[str, int], list[tuple[int, Any]]] = {}
        for datum in dump.dumped_tensor_data:
            if datum.device_name == name:
                self._files.setdefault((datum.node_name, datum.output_slot), []).append((datum.timestamp, datum))
        for files in self._files.values():
            files.sort(key=lambda pair: pair[0])
        self._values: dict[tuple[str, int], _OutputInTime] = {}
        self._slots: dict[str, list[int]] = {}
        for node, slot in sorted(self._files):
            self._slots.setdefault(node, []).append(slot)

    def read(self, selects: Callable[[str], bool], inputs: bool, outputs: bool) -> Iterator[RecordedTensor]:
        for node in self._dump.nodes(device_name=self._name):
            if selects(node):
                yield from self._of_node(node, inputs, outputs)

    def _of_node(self, node: str, inputs: bool, outputs: bool) -> Iterator[RecordedTensor]:
        kind = self._dump.node_op_type(node, device_name=self._name)
        for time, written in self._executions(node):
            if inputs:
                taken = self._forwarded_input(node, kind, written)
                for index, name in enumerate(self._dump.node_inputs(node, device_name=self._name)):
                    if taken not in (None, index):
                        continue
                    value = self._value(*_tensor(name))
                    position = bisect.bisect_right(value.times, time) - 1
                    yield from self._recorded(kind, node, "input", index, time, value, position)
            if outputs:
                for slot, position in written:
                    yield from self._recorded(kind, node, "output", slot, time, self._value(node, slot), position)

    def _forwarded_input(self, node: str, kind: str, written: list[tuple[int, int]]) -> Optional[int]:
        """Return the index of the input that a Merge has forwarded, which is the value of its second output.

        None for other operators.
        """
        if kind not in ("Merge", "RefMerge"):
            return None
        payload = next((self._value(node, slot).payloads[position] for slot, position in written if slot == 1), None)
        return None if payload is None else int(payload.owner.reshape(()))

    def _executions(self, node: str) -> list[tuple[int, list[tuple[int, int]]]]:
        """Return the executions of an operator: the time, and (slot, index of the value) for each output written."""
        slots = self._slots.get(node, [])
        if not slots:
            time = self._time_without_outputs(node)
            return [] if time is None else [(time, [])]
        times = [self._times(node, slot) for slot in slots]
        if len(set(map(len, times))) == 1:
            return [(min(row), [(slot, index) for slot in slots]) for index, row in enumerate(zip(*times))]
        # A Switch writes only one of its outputs in each execution, so each value is an execution of its own.
        return sorted((time, [(slot, i)]) for slot, column in zip(slots, times) for i, time in enumerate(column))

    def _recorded(
        self, kind: str, node: str, io: str, index: int, time: int, value: _OutputInTime, position: int
    ) -> Iterator[RecordedTensor]:
        payload = value.payloads[position] if position >= 0 else None
        if payload is not None:
            yield RecordedTensor(kind, node, io, index, time, payload, self._label)

    def _time_without_outputs(self, node: str) -> Optional[int]:
        """Return the time of an operator without outputs: that of its last input.

        None if no input was written, as in a branch that was not taken, or if an input was written several times, as in
        a loop.
        """
        last = None
        for name in self._dump.node_inputs(node, device_name=self._name):
            times = self._times(*_tensor(name))
            if len(times) > 1:
                return None
            last = max([last or 0, *times]) if times else last
        return last

    def _times(self, node: str, slot: int) -> list[int]:
        return [time for time, _ in self._files.get((node, slot), ())]

    def _value(self, node: str, slot: int) -> _OutputInTime:
        output = self._values.get((node, slot))
        if output is None:
            files = self._files.get((node, slot), [])
            output = _OutputInTime([time for time, _ in files], [payload_of(datum.get_tensor()) for _, datum in files])
            self._values[(node, slot)] = output
        return output


def _tensor(name: str) -> tuple[str, int]:
    node, colon, slot = name.partition(":")
    return node, int(slot) if colon else 0


def _label(device: str) -> str:
    """Return `cpu` or `gpu:0`, from a name such as `/job:localhost/replica:0/task:0/device:GPU:0`."""
    kind, _, number = device.rpartition("device:")[2].partition(":")
    return "cpu" if kind.lower() == "cpu" else f"{kind.lower()}:{number}"
