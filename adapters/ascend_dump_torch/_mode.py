"""The dispatch mode that sees every ATen operator of a selected step."""

from __future__ import annotations

import math
import time
from typing import TYPE_CHECKING, Any, Callable, NamedTuple

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from ascend_dump.writing import Op, Slot

if TYPE_CHECKING:
    from ascend_dump_torch._session import Session

__all__ = ["RecordMode"]

_Tensor = torch.Tensor
_COMPOSITE = torch._C.DispatchKey.CompositeImplicitAutograd


class _Schema(NamedTuple):
    """What an operator's schema says, looked up once."""

    op_type: str
    base: str
    #: Positions and names of the arguments it writes to.
    writes: tuple[tuple[int, str], ...]
    #: Its outputs are memory that nobody has filled.
    unset: bool
    #: It is made of other operators, which are recorded instead of it.
    composite: bool
    #: It works on after it returned (collectives), on the memory of its arguments.
    asynchronous: bool


def _read_schema(func: Any) -> _Schema:
    schema = func._schema
    name = schema.name
    namespace, _, base = name.partition("::")
    writes = tuple(
        (position, argument.name)
        for position, argument in enumerate(schema.arguments)
        if argument.alias_info is not None and argument.alias_info.is_write
    )
    unset = namespace == "aten" and base in _UNSET
    composite = torch._C._dispatch_has_kernel_for_dispatch_key(func.name(), "CompositeImplicitAutograd")
    return _Schema(name, base, writes, unset, composite, namespace == "c10d")


_UNSET = {
    "empty",
    "empty_like",
    "empty_strided",
    "empty_permuted",
    "empty_quantized",
    "new_empty",
    "new_empty_strided",
    "resize_",
    "resize_as_",
    "_efficientzerotensor",
}


class RecordMode(TorchDispatchMode):
    """Hands each operator's tensors to the session, before it runs and after."""

    supports_higher_order_operators = True

    def __init__(self, session: Session) -> None:
        super().__init__()
        self._session = session
        self._schemas: dict[Any, _Schema] = {}

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        # PyTorch would wrap the method below and import all of torch._dynamo for it.
        return False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        session = self._session
        if not session.recording:
            return func(*args, **kwargs)
        if types and any(kind is not _Tensor and kind is not torch.nn.Parameter for kind in types):
            # A tensor subclass takes the operator apart; its parts come here again.
            return NotImplemented
        schema = self._schemas.get(func)
        if schema is None:
            if not isinstance(func, torch._ops.OpOverload):
                session.note_skipped(f"higher-order operator {func}")
                return func(*args, **kwargs)
            schema = self._schemas[func] = _read_schema(func)
        if schema.composite:
            # Happens in inference mode, where autograd has not taken it apart already. The
            # kernel is the one that would run without us.
            with self:
                return func._op_dk(_COMPOSITE, *args, **kwargs)
        before = session.guard(self._before, schema, args, kwargs)
        result = func(*args, **kwargs)
        if before is not None:
            session.guard(self._after, schema, before, result)
        return result

    def _before(self, schema: _Schema, args: Any, kwargs: Any) -> _Pending:
        session = self._session
        tensors = session.tensors
        place = session.tracker.place()
        name = session.tracker.name(place.module, schema.base)
        inputs: list[torch.Tensor] = []
        _collect(args, inputs)
        if kwargs:
            _collect(kwargs.values(), inputs)
        pending = _Pending(place, name, inputs, session.selects(name, place.module), time.time_ns() // 1000)
        if session.holds_gradients:
            for tensor in inputs:
                if tensor.layout is torch.strided:
                    tensors.release(tensor)
        if pending.selected and session.records_inputs and not session.overflow_only:
            pending.slots = [tensors.slot(tensor, "input", i) for i, tensor in enumerate(inputs)]
        written: list[torch.Tensor] = []
        for position, argument in schema.writes:
            _collect((args[position] if position < len(args) else kwargs.get(argument),), written)
        if schema.asynchronous:
            for tensor in inputs:
                tensors.distrust(tensor)
        if session.overflow_only and pending.selected and session.records_inputs:
            pending.copies = {id(tensor): tensor.clone() for tensor in written if tensor.layout is torch.strided}
        for tensor in written:
            tensors.protect(tensor)
        pending.written = written
        pending.constants = session.overflow_only and _has_nonfinite_number(args)
        return pending

    def _after(self, schema: _Schema, pending: _Pending, result: Any) -> None:
        session = self._session
        tensors = session.tensors
        for tensor in pending.written:
            # What was known of this memory was its content before.
            tensors.protect(tensor)
        if not pending.selected:
            return
        outputs: list[torch.Tensor] = []
        _collect(result if isinstance(result, (tuple, list)) else (result,), outputs)
        slots = pending.slots
        origin = False
        if session.overflow_only:
            if schema.unset or not any(nonfinite(tensor) for tensor in outputs):
                return
            before = [pending.copies.get(id(tensor), tensor) for tensor in pending.inputs]
            origin = not pending.constants and not any(nonfinite(tensor) for tensor in before)
            if session.records_inputs:
                slots = [tensors.slot(tensor, "input", i) for i, tensor in enumerate(before)]
        if session.records_outputs:
            if schema.asynchronous:
                session.note_skipped(f"outputs of {schema.op_type}: still being written when it returns")
            else:
                slots = slots + [_output(tensors, tensor, i, schema, origin) for i, tensor in enumerate(outputs)]
                if session.holds_gradients and pending.place.phase == "backward":
                    for tensor in outputs:
                        if tensor.layout is torch.strided:
                            tensors.hold(tensor)
        if slots:
            place = pending.place
            session.write(
                Op(
                    session.next_seq(),
                    schema.op_type,
                    pending.name,
                    place.phase,
                    place.module,
                    place.source,
                    pending.time,
                    slots,
                )
            )


class _Pending:
    """One operator between before and after."""

    __slots__ = ("constants", "copies", "inputs", "name", "place", "selected", "slots", "time", "written")

    def __init__(self, place: Any, name: str, inputs: list[torch.Tensor], selected: bool, time: int) -> None:
        self.place = place
        self.name = name
        self.inputs = inputs
        self.selected = selected
        self.time = time
        self.slots: list[Slot] = []
        self.written: list[torch.Tensor] = []
        self.copies: dict[int, torch.Tensor] = {}
        self.constants = False


def _output(tensors: Any, tensor: torch.Tensor, index: int, schema: _Schema, origin: bool) -> Slot:
    slot: Slot = tensors.slot(tensor, "output", index, unset=schema.unset)
    return slot._replace(origin=True) if origin and nonfinite(tensor) else slot


def _collect(values: Any, found: list[torch.Tensor]) -> None:
    for value in values:
        if isinstance(value, _Tensor):
            found.append(value)
        elif isinstance(value, (tuple, list)):
            _collect(value, found)


def nonfinite(tensor: torch.Tensor) -> bool:
    """Whether a NaN or Inf is in the tensor; reads it once, waits for the device."""
    if not (tensor.is_floating_point() or tensor.is_complex()) or tensor.layout is not torch.strided:
        return False
    if tensor.is_meta or not tensor.numel():
        return False
    if tensor.element_size() == 1:  # float8 has no arithmetic
        tensor = tensor.float()
    # A sum is the cheapest pass and never misses; it can overflow by itself, hence the second.
    total = tensor.sum()
    if all(math.isfinite(part) for part in _parts(total)):
        return False
    return not bool(torch.isfinite(tensor).all())


def _parts(number: torch.Tensor) -> tuple[float, ...]:
    value = number.item()
    return (value.real, value.imag) if isinstance(value, complex) else (value,)


def _has_nonfinite_number(args: Any) -> bool:
    return any(isinstance(value, float) and not math.isfinite(value) for value in args)


_Guarded = Callable[..., Any]
