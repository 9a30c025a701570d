"""The simulated dump service: it decides which files are written for an executed operator, and writes them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Callable, NamedTuple, Optional, Union

import numpy as np

from ascend_dump.fakes.device._arming import Arming, ExceptionDump
from ascend_dump.fakes.device._files import (
    Addresses,
    KernelCall,
    exception_file,
    opdebug_file,
    operator_file,
    tensors_of,
)
from ascend_dump.fakes.device._model import LoadedModel
from ascend_dump.fakes.device.disk import Disk
from ascend_dump.fakes.device.select import NodeInfo
from ascend_dump.native.cann.graph import Node
from ascend_dump.native.cann.names import DumpName, watch_name

if TYPE_CHECKING:
    _Array = np.ndarray[Any, Any]

__all__ = ["DumpService", "Producers", "TrampleFault"]

_DATA = "Data"
_FLOATS = ("float", "bfloat", "complex")
_FLOAT_OVERFLOW, _CONVERSION_OVERFLOW = 0x20, 0x100

#: The operators that produced the inputs of an operator, one for each input; None if they are not known.
Producers = Optional[Sequence[Union[NodeInfo, Node, None]]]


class TrampleFault(NamedTuple):
    """A fault: `layer` overwrites output 0 of `watched` with `data`, from byte `offset` on."""

    layer: str
    watched: str
    offset: int
    data: bytes


class DumpService:
    """The dump service of one device.

    overflows  fault: name of an operator that overflows -> status and unit
    tramples   faults: operators that overwrite the output of another one
    addresses  the addresses of tensors
    """

    def __init__(self, device_id: int, soc: str, clock: Callable[[], float], disk: Disk) -> None:
        self.disk = disk
        self.overflows: dict[str, tuple[int, str]] = {}
        self.tramples: list[TrampleFault] = []
        self.device_id = device_id
        self._soc = soc
        self._clock = clock
        self.addresses = Addresses()

    def run_in_model(
        self, call: KernelCall, model: LoadedModel, step: Optional[int], producers: Producers, *, on: bool
    ) -> None:
        """Dump an operator of a model, watch it, or check it for overflow, as the settings of the model request.

        on: False if the dump was ended after the model was loaded; then nothing is written.
        """
        node, arming = call.node, model.arming
        self._remember(call, model)
        if arming is None or arming.ge is None or not on:
            return
        folder = "/".join((self.base(arming), *model.folder(step)))
        if model.dumps(node, step):
            inputs, outputs = self._sides(call, arming.mode)
            inputs, outputs = model.leave_out(node, inputs, outputs)
            self._write(call, folder, [*inputs, *outputs], arming)
            if arming.mode != "input":
                self._write_producers(call, folder, model, producers, arming)
        elif model.detects and model.at_step(step):
            self._report_overflow(call, folder, arming)
        if model.watches:
            self._watch(call, model, step, folder, arming)

    def _remember(self, call: KernelCall, model: LoadedModel) -> None:
        """Store the outputs of an operator that is watched or trampled, and overwrite the outputs that it tramples."""
        name = call.node.name
        ge = None if model.arming is None else model.arming.ge
        watched = {trample.watched for trample in self.tramples} | (frozenset() if ge is None else ge.watched)
        if name in watched:
            model.memory[name] = call._replace(outputs=tuple(array.copy(order="C") for array in call.outputs))
        for trample in self.tramples:
            outputs = model.outputs_of(trample.watched)
            if trample.layer == name and outputs:
                _overwrite(outputs[0], trample.offset, trample.data)

    def _watch(self, call: KernelCall, model: LoadedModel, step: Optional[int], folder: str, arming: Arming) -> None:
        """Write the output of a watched operator, and after other operators the outputs that are watched."""
        # (assumption cann.watch_name)
        if model.is_watched(call.node, step):
            self._write(call, folder, tensors_of(call, "output", self.addresses), arming)
        if not model.is_suspect(call.node):
            return
        for name, watched in model.memory.items():
            if name == call.node.name or not model.is_watched(watched.node, step):
                continue
            copy = watched._replace(task=call.task, stream=call.stream)
            tensors = tensors_of(copy, "output", self.addresses)
            self._write(copy, folder, tensors, arming, name=watch_name(call.node.name, name))

    def _write_producers(
        self,
        call: KernelCall,
        folder: str,
        model: LoadedModel,
        producers: Producers,
        arming: Arming,
    ) -> None:
        """Write a file for each operator of type Data (an input of the model) that this operator reads.

        The file has the task id of the reading operator.

        (assumption cann.data_operators)
        """
        if producers is None:
            producers = [model.nodes.get(source.rpartition(":")[0]) for source in call.node.inputs]
        for producer, array in zip(producers, call.inputs):
            if producer is not None and producer.type == _DATA:
                node = producer.node() if isinstance(producer, NodeInfo) else producer
                data = KernelCall(node, (), (array,), call.task, call.stream, call.model_id)
                self._write(data, folder, tensors_of(data, "output", self.addresses), arming)

    def run_single(self, call: KernelCall, arming: Optional[Arming]) -> None:
        """Dump an operator outside of models, or check it for overflow. (assumption cann.single_operators)"""
        if arming is None:
            return
        if arming.overflow:
            self._report_overflow(call, self.base(arming), arming)
        elif arming.single_ops:
            inputs, outputs = self._sides(call, arming.mode)
            self._write(call, self.base(arming), [*inputs, *outputs], arming)

    def _report_overflow(self, call: KernelCall, folder: str, arming: Arming) -> None:
        # (assumption cann.overflow_operator)
        overflow = self.overflows.get(call.node.name)
        if overflow is None and _went_out_of_range(call):
            overflow = (_CONVERSION_OVERFLOW if _converts_to_half(call) else _FLOAT_OVERFLOW, "AIC")
        if overflow is None:
            return
        inputs, outputs = self._sides(call, "all")
        self._write(call, folder, [*inputs, *outputs], arming)
        address = self.addresses.find(0, call.model_id, "overflow buffer")
        opdebug_file(
            self.disk, folder, call, address, status=overflow[0], unit=overflow[1], soc=self._soc, stamp=self.now()
        )

    def report_failure(self, call: KernelCall, exception: Optional[ExceptionDump]) -> None:
        """Write the exception dump of a failed operator, if one is set."""
        if exception is None:
            return
        exception_file(self.disk, exception.path, self.device_id, exception.kind, call, self.addresses, self._clock())

    def _write(self, call: KernelCall, folder: str, tensors: Sequence[Any], arming: Arming, *, name: str = "") -> None:
        written = name or call.node.name
        operator_file(
            self.disk,
            folder,
            DumpName("device", call.node.type, written, self.now(), call.task, call.stream),
            written,
            tensors,
            data=arming.data,
            stats=arming.stats,
            attrs=call.attrs,
        )

    def _sides(self, call: KernelCall, mode: str) -> tuple[list[Any], list[Any]]:
        inputs = tensors_of(call, "input", self.addresses) if mode != "output" else []
        outputs = tensors_of(call, "output", self.addresses) if mode != "input" else []
        return inputs, outputs

    def base(self, arming: Arming) -> str:
        # The slash at the end leads to a double slash in paths. CANN has it too, and it changes the hash of long names.
        # (assumption cann.device_directory)
        return f"{arming.root}/{self.device_id}/"

    def now(self) -> int:
        # (assumption cann.timestamp)
        return int(self._clock() * 1e6)


def _overwrite(array: _Array, offset: int, data: bytes) -> None:
    memory = array.reshape(-1).view(np.uint8)
    part = memory[offset : offset + len(data)]
    part[:] = np.frombuffer(data, np.uint8)[: part.size]


def _converts_to_half(call: KernelCall) -> bool:
    # (assumption cann.overflow_of_conversion)
    return call.node.type == "Cast" and any(array.dtype.name == "float16" for array in call.outputs)


def _went_out_of_range(call: KernelCall) -> bool:
    # (assumption cann.overflow_condition)
    def finite(array: _Array) -> bool:
        return not array.dtype.name.startswith(_FLOATS) or bool(np.isfinite(array).all())

    return all(map(finite, call.inputs)) and not all(map(finite, call.outputs))
