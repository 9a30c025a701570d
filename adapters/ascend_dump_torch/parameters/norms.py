"""Norms of parameters, of their gradients and of their changes, at each optimizer step of a recorded step.

`level="module"` with `data="stats"` records them as statistics that contain only a count and the L2 norm. The norms are
computed on the device of the tensors, so only one number per tensor is copied to the host. A parameter or gradient with
NaN or Inf is recorded with all statistics.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple, Optional

import msgspec
import torch

from ascend_dump.dump_format import Line, stored_statistics
from ascend_dump.statistics import Statistics
from ascend_dump.writing import Item
from ascend_dump.writing.summary import as_stored
from ascend_dump_torch._call_site import user_line
from ascend_dump_torch._devices import find_devices
from ascend_dump_torch._looks import parameters_of, plain_values
from ascend_dump_torch._session_protocol import Recording
from ascend_dump_torch.memory.layouts import name_of
from ascend_dump_torch.memory.records import OperatorCall

__all__ = ["ParameterNorms"]

#: The change of a larger parameter is estimated from about this many elements, with an error of about 1 %: a copy of
#: all elements would take as much memory as the model.
_SAMPLE = 1 << 14


class _Update(NamedTuple):
    """A parameter at an optimizer step.

    inputs  the records of the parameter and of its gradient, with a `seq` that is set later
    elements  number of elements of the parameter
    sample  a copy of some of its elements before the step, see `_sampled`
    """

    op: OperatorCall
    name: str
    parameter: torch.Tensor
    inputs: list[Item]
    elements: int
    sample: torch.Tensor


class ParameterNorms:
    """Records the updates of the parameters in one step of a program, each as a call of its optimizer.

    The inputs are a parameter and its gradient before the optimizer step. The output is the change of the parameter up
    to the next step of this optimizer, or up to the end of the recorded step.

    seconds  the time spent in this object
    """

    def __init__(self, session: Recording, statistics: Sequence[str]) -> None:
        """statistics: names of the requested statistics; empty for the default ones."""
        self._session = session
        #: Number of values in `Line.stats`.
        self._values = 1 + len(stored_statistics(statistics))
        #: The updates that are not written yet, by the id of their optimizer.
        self._updates: dict[int, list[_Update]] = {}
        self._devices = find_devices()
        self.seconds = 0.0

    def optimizer_begins(self, optimizer: torch.optim.Optimizer) -> None:
        """Write the previous updates of an optimizer, and measure its parameters again. Call before its step."""
        if self._devices is not None and self._devices.graph():
            return  # reading a number would break the captured graph
        began = time.perf_counter()
        with torch._C._DisableTorchDispatch(), torch._C.DisableTorchFunction(), torch.no_grad():
            self._write(self._updates.pop(id(optimizer), []))
            self._updates[id(optimizer)] = list(self._begun(optimizer))
        self.seconds += time.perf_counter() - began

    def end_step(self) -> None:
        """Write the updates of the step, and release the parameters."""
        began = time.perf_counter()
        updates, self._updates = self._updates, {}
        with torch._C._DisableTorchDispatch(), torch._C.DisableTorchFunction(), torch.no_grad():
            for of_optimizer in updates.values():
                self._write(of_optimizer)
        self.seconds += time.perf_counter() - began

    def _begun(self, optimizer: torch.optim.Optimizer) -> Iterator[_Update]:
        chosen, weights, gradients = [], [], []
        for op, name, parameter in self._selected(optimizer):
            weight, gradient = plain_values(parameter), plain_values(parameter.grad)
            if weight is not None and gradient is not None:
                chosen.append((op, name, parameter))
                weights.append(weight)
                gradients.append(gradient)
        norms = _norms([*weights, *gradients])
        for (op, name, parameter), weight, *pair in zip(chosen, weights, norms, norms[len(weights) :]):
            inputs: list[Item] = []
            if self._session.records_inputs:
                for tensor, label, norm in zip((parameter, parameter.grad), (name, f"{name}.grad"), pair):
                    inputs.append(self._item(op, tensor, "input", len(inputs), label, norm))
            yield _Update(op, name, parameter, inputs, weight.numel(), _sampled(weight).clone())

    def _selected(self, optimizer: torch.optim.Optimizer) -> Iterator[tuple[OperatorCall, str, torch.Tensor]]:
        """Yield the selected parameters that have a gradient, with the calls of their updates and their names."""
        session, tracker = self._session, self._session.tracker
        source, now = user_line(), time.time_ns() // 1000
        for number, parameter in enumerate(parameters_of(optimizer)):
            if parameter.grad is None:
                continue
            name = tracker.parameter_of(parameter) or f"parameter_{number}"
            module = name.rpartition(".")[0]
            op = OperatorCall(0, type(optimizer).__name__, tracker.name(module, "update"), now, "other", module, source)
            if session.selects is None or session.selects(op.name, module):
                yield op, name, parameter

    def _write(self, updates: Sequence[_Update]) -> None:
        """Write the updates of an optimizer after its step, with the changes of the parameters since the step began."""
        changes = _changes(updates) if self._session.records_outputs else [None] * len(updates)
        for (op, name, parameter, items, *_), change in zip(updates, changes):
            if change is not None:
                items.append(self._item(op, parameter, "output", 0, f"change of {name}", change))
            seq = self._session.next_seq()
            for item in items:
                item.line.seq = seq
            self._session.write(items)

    def _item(self, op: OperatorCall, tensor: Any, io: str, index: int, name: str, norm: float) -> Item:
        """Return the record of a norm. If an input has the norm NaN or Inf, return the record of the tensor itself."""
        if math.isfinite(norm) or io == "output":
            values = plain_values(tensor)
            assert values is not None, "its norm is known"
            device = "cpu" if values.is_cpu else str(values.device)
            line = Line(
                op.seq, op.op_type, op.name, io, index, op.time, name_of(tensor.dtype), tuple(values.shape),
                values.nbytes, device, op.phase, op.module, op.source,
            )  # fmt: skip
            stored = as_stored(Statistics(values.numel(), l2norm=norm))[: self._values]
            # JSON, as in `MeasuredBytes.stats`.
            line.stats = msgspec.Raw(msgspec.json.encode(stored))  # type: ignore[assignment]
            item = Item(line, None)
        else:
            self._session.tensors.next_operator()
            item = self._session.tensors.item(op, tensor, io, index)
            item.line.requires_grad = False
        item.line.parameter = name
        return item


def _sampled(values: torch.Tensor) -> torch.Tensor:
    """Return all elements of a tensor that has at most `_SAMPLE`; of a larger tensor, elements at equal distances."""
    if values.numel() <= _SAMPLE:
        return values.reshape(-1)
    distance = values.numel() // _SAMPLE
    # A distance that shares a factor with the length of a row would leave out columns.
    while math.gcd(distance, values.shape[-1]) > 1:
        distance += 1
    return values.reshape(-1)[::distance]


def _changes(updates: Sequence[_Update]) -> list[Optional[float]]:
    """Return the norms of the changes of the parameters. Norms of large parameters are estimated from their samples.

    The norm is None if the number of elements of a parameter has changed: some wrappers divide parameters among ranks.
    """
    changes: list[Optional[float]] = [None] * len(updates)
    differences: dict[int, torch.Tensor] = {}
    for number, update in enumerate(updates):
        values = plain_values(update.parameter)
        if values is not None and values.numel() == update.elements:
            wide = _sum_type(values.dtype)
            differences[number] = _sampled(values).to(wide) - update.sample.to(wide)
    for (number, difference), norm in zip(differences.items(), _norms([*differences.values()])):
        changes[number] = norm * math.sqrt(updates[number].elements / difference.numel())
    return changes


def _norms(tensors: Sequence[torch.Tensor]) -> list[float]:
    """Return the L2 norms of tensors, with one copy to the host for each device and dtype."""
    groups: dict[Any, list[int]] = {}
    for number, tensor in enumerate(tensors):
        groups.setdefault((tensor.device, tensor.dtype), []).append(number)
    norms = [0.0] * len(tensors)
    for (_, dtype), numbers in groups.items():
        of_group = [tensors[number] for number in numbers]
        for number, norm in zip(numbers, torch.stack(_norms_of(of_group, _sum_type(dtype))).tolist()):
            norms[number] = norm
    return norms


def _norms_of(tensors: list[torch.Tensor], wide: torch.dtype) -> Sequence[torch.Tensor]:
    try:
        norms: Sequence[torch.Tensor] = torch._foreach_norm(tensors, 2, wide)
    except (NotImplementedError, RuntimeError, TypeError):  # a device without this kernel
        return [torch.linalg.vector_norm(tensor, dtype=wide) for tensor in tensors]
    return norms


def _sum_type(dtype: torch.dtype) -> torch.dtype:
    """Return the dtype in which squares of elements are summed: a sum in half precision would overflow."""
    return torch.float64 if dtype is torch.float64 else torch.float32
