"""The dispatch mode of the scene `overflow`: it records the operators with NaN or Inf in an output."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any, Optional

import torch

from ascend_dump_torch._arguments import collect
from ascend_dump_torch._call_arguments import describe_call
from ascend_dump_torch._call_site import CallSite, operator_name
from ascend_dump_torch._masks import is_mask
from ascend_dump_torch._mode import NO_CALL, BegunCall, PendingOperator, RecordMode, outputs_of
from ascend_dump_torch._overflow import copy_overwritten, nonfinite, nonfinite_numbers
from ascend_dump_torch._schema import Schema
from ascend_dump_torch.memory.records import OperatorCall

__all__ = ["OverflowMode"]


class OverflowMode(RecordMode):
    """Dispatch mode that looks for NaN and Inf in the outputs of each operator.

    Almost all outputs are finite. So only the call site is determined before an operator runs; the other fields of its
    records are computed if an output has NaN or Inf. Views are not checked: they have the values of their input, which
    is an output of an earlier operator. The exception is `lift_fresh`: it returns a view of a constant of the program,
    which is no operator's output, so its result is checked.
    """

    _checks_inputs = True

    def _before(self, schema: Schema, args: Any, kwargs: Any) -> Optional[BegunCall]:
        session = self._session
        session.tensors.next_operator()
        if schema.views and not schema.writes:
            self._count(schema)
            return None
        if schema.ordinary and self._is_simple():
            call_site, number, seq = self._count(schema)
            call = _NotedCall(None, seq, time.time_ns() // 1000, call_site, number, args, kwargs)
            if schema.writes:
                inputs = _tensors_of(schema, args, kwargs)
                written: list[torch.Tensor] = []
                for argument in schema.writes:
                    collect((argument.of(args, kwargs),), written)
                call.copies = copy_overwritten(inputs, written)
                call.inputs, call.written = inputs, written
                self._protect(written)
            return call
        pending = self._begin(schema, args, kwargs)
        if pending.selected:
            if pending.replacement is not None:
                args, kwargs = pending.replacement
            if schema.signature.seeded:
                # The description includes the state of the generator, which the operator changes.
                pending.call = describe_call(schema.signature, args, kwargs)
            # A collective is recorded after the program has waited for it; its inputs may be overwritten by then.
            late = schema.asynchronous or schema.functional
            if late or pending.written:
                pending.copies = copy_overwritten(pending.inputs, pending.inputs if late else pending.written)
            pending.called = args, kwargs
        if pending.written:
            self._announce_writes(pending)
        return pending

    def _record_view(self, schema: Schema, args: Any, kwargs: Any, result: Any) -> None:
        call_site, number, seq = self._count(schema)
        if schema.base == "lift_fresh" and nonfinite(result):
            call = _NotedCall(None, seq, time.time_ns() // 1000, call_site, number, args, kwargs)
            self._record(call.described(schema), [result], (), [result])

    def _count(self, schema: Schema) -> tuple[CallSite, int, int]:
        """Return the call site of a call, its index among the calls of this operator in the same module, and its `seq`.

        Advances both counters.
        """
        session = self._session
        call_site = session.tracker.call_site()
        return call_site, session.tracker.count(call_site.module, schema.base), session.next_seq()

    def _is_simple(self) -> bool:
        """Return True if no selection, no `graft=` and no running collective affects the recording."""
        session = self._session
        return (
            session.selects is None
            and session.grafts is None
            and not session.tensors.any_in_flight
            and not self._collectives.running
        )

    def _after(self, schema: Schema, pending: BegunCall, result: Any) -> None:
        if not isinstance(pending, _NotedCall):
            super()._after(schema, pending, result)
            return
        if pending.written:
            self._protect(pending.written)
        outputs, names = outputs_of(schema, result)
        if self._devices is not None:
            self._devices.wait_for_copies(_tensors_of(schema, pending.args, pending.kwargs), outputs)
        wrong = [tensor for tensor in outputs if nonfinite(tensor)]
        if wrong:
            self._record(pending.described(schema), outputs, names, wrong)

    def _conclude(self, pending: PendingOperator, outputs: list[torch.Tensor], names: Sequence[str]) -> None:
        tensors = self._session.tensors
        settled = outputs
        if tensors.any_in_flight:
            settled = [tensor for tensor in outputs if not tensors.is_in_flight(tensor)]
        wrong = [] if pending.unset else [tensor for tensor in settled if nonfinite(tensor)]
        if wrong:
            self._record(pending, outputs, names, wrong)

    def _record(
        self, pending: PendingOperator, outputs: list[torch.Tensor], names: Sequence[str], wrong: list[torch.Tensor]
    ) -> None:
        """Write the records of an operator with NaN or Inf in the outputs `wrong`, unless it makes or moves a mask."""
        session = self._session
        schema = pending.schema
        copies = [(pending.copies or {}).get(i) for i in range(len(pending.inputs))]
        before = [tensor if copy is None else copy for tensor, copy in zip(pending.inputs, copies)]
        read = before[1:] if pending.first_unset else before
        filled = before[1:] if schema.ignores_first and schema.writes else read
        args, kwargs = pending.called
        constants = nonfinite_numbers(args) + nonfinite_numbers(kwargs.values())
        tensors = session.tensors
        # Inf that an operator computed is often scaled or moved later, by operators that look like mask operators. So
        # an operator that reads such Inf never counts as a mask operator, nor does one that writes into a parameter.
        is_computed = any(tensors.is_infinite(tensor) for tensor in before) or any(map(_is_of_leaf, pending.written))
        if not is_computed and is_mask(schema.base, schema.views, filled, constants, wrong):
            return
        if not session.aftermath.records():
            return
        for tensor in wrong:
            tensors.mark_infinite(tensor)
        if pending.call is NO_CALL:
            pending.call = describe_call(schema.signature, args, kwargs)
        if session.records_inputs:
            item = tensors.item
            pending.items = [
                item(pending.op, tensor, "input", i, pending.first_unset and not i, copy)
                for i, (tensor, copy) in enumerate(zip(pending.inputs, copies))
            ]
            self._name_parameters(pending.op, pending.items, pending.inputs)
            self._describe_ranks(pending.collective, pending.items, pending.inputs)
        origin = not constants and not any(nonfinite(tensor) for tensor in read)
        self._write(pending, outputs, names, origin)


class _NotedCall(BegunCall, eq=False):
    """The state of an ordinary operator before it runs. `described` adds the other fields if an output is not finite.

    time     in microseconds since the epoch
    number   the result of `Tracker.count`
    written  the arguments that it overwrites
    inputs   its input tensors; noted here only if it overwrites arguments
    copies   copies of the inputs that it overwrites, by position; None if it overwrites none
    """

    seq: int
    time: int
    call_site: CallSite
    number: int
    args: Any
    kwargs: Any
    written: Sequence[torch.Tensor] = ()
    inputs: Sequence[torch.Tensor] = ()
    copies: Optional[dict[int, torch.Tensor]] = None

    def described(self, schema: Schema) -> PendingOperator:
        site = self.call_site
        name = operator_name(site.module, schema.base, self.number)
        op = OperatorCall(self.seq, schema.op_type, name, self.time, site.phase, site.module, site.source)
        inputs = list(self.inputs) or _tensors_of(schema, self.args, self.kwargs)
        pending = PendingOperator(None, schema, op, inputs, True, [], list(self.written), NO_CALL, False, site.stack)
        pending.copies = self.copies
        pending.called = self.args, self.kwargs
        return pending


def _is_of_leaf(tensor: torch.Tensor) -> bool:
    """Return True for a parameter or a view of a parameter: programs do not write masks into parameters."""
    whole = tensor if tensor._base is None else tensor._base
    return bool(whole.is_leaf and whole.requires_grad)


def _tensors_of(schema: Schema, args: Any, kwargs: Any) -> list[torch.Tensor]:
    """Return the input tensors of an operator, without those passed as `out=`."""
    tensors: list[torch.Tensor] = []
    collect(args, tensors)
    if kwargs:
        outs = schema.outs
        collect((value for key, value in kwargs.items() if key not in outs), tensors)
    return tensors
