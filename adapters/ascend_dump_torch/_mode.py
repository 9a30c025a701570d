"""The dispatch mode that sees every ATen operator of a selected step."""

from __future__ import annotations

import functools
import math
import threading
import time
import types
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Optional

import msgspec
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from ascend_dump.writing import Item
from ascend_dump_torch._devices import HAS_CUDA, is_recording_graph, wait_for_copies
from ascend_dump_torch._memory import is_plain, storages_of
from ascend_dump_torch._schema import Schema, read_schema
from ascend_dump_torch._tensors import Operator

if TYPE_CHECKING:
    from ascend_dump_torch._session import TorchSession

__all__ = ["RecordMode"]

_Tensor = torch.Tensor
_Parameter = torch.nn.Parameter
_function_modes = torch._C._len_torch_function_stack
_COMPOSITE = torch._C.DispatchKey.CompositeImplicitAutograd
_EXPLICIT = torch._C.DispatchKey.CompositeExplicitAutograd
#: Their kernels for every device may run under a mode; others assert that there is none.
_SEEN_THROUGH = ("flex_attention", "flex_attention_backward")
#: Most of what is passed beside tensors; to ask whether it is one takes longer.
_NO_TENSORS = frozenset(
    (bool, int, float, str, type(None), torch.dtype, torch.layout, torch.device, torch.memory_format)
)
_FUNCTIONS = (types.FunctionType, types.MethodType, torch.nn.Module)


#: Floating-point types without Inf and NaN.
_FINITE_ONLY = {getattr(torch, name) for name in ("float4_e2m1fn_x2",) if hasattr(torch, name)}


class RecordMode(TorchDispatchMode):
    """Hands each operator's tensors to the session, before it runs and after."""

    supports_higher_order_operators = True

    def __init__(self, session: TorchSession) -> None:
        super().__init__()
        self._session = session
        # The backward passes of several devices run in a thread each, with this mode in all of them.
        self._lock = threading.RLock()
        #: By the id of the operator, which has a hash of its own that takes longer.
        self._schemas: dict[int, Schema] = {}

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        # PyTorch would wrap the method below and import all of torch._dynamo for it.
        return False

    def __torch_dispatch__(self, func: Any, kinds: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        session = self._session
        if not session.recording:
            return func(*args, **kwargs)
        if kinds and not all(map(is_plain, kinds)):
            if torch._C._len_torch_dispatch_stack():
                return func(*args, **kwargs)  # for a mode of PyTorch's own below, such as FakeTensorMode
            # A tensor subclass takes the operator apart; its parts come here again.
            return NotImplemented
        if HAS_CUDA and is_recording_graph():
            session.note_skipped("operators that go into a CUDA graph")
            return func(*args, **kwargs)
        schema = self._schemas.get(id(func))
        if schema is None:
            if not isinstance(func, torch._ops.OpOverload):
                return self._run_higher_order(func, args, kwargs)
            schema = self._schemas[id(func)] = read_schema(func)
        if schema.composite and not _any_nested(args):
            # Happens in inference mode, where autograd has not taken it apart already. The
            # kernel is the one that would run without us.
            with self:
                return func._op_dk(_COMPOSITE, *args, **kwargs)
        # What goes wrong in our functions ends the recording, never the user's run.
        try:
            with self._lock:
                if _function_modes():
                    pending = _apart(self._before, schema, args, kwargs)
                else:
                    pending = self._before(schema, args, kwargs)
        except Exception as error:
            session.give_up(error)
            pending = None
        result = func(*args, **kwargs)
        if pending is not None:
            try:
                with self._lock:
                    if _function_modes():
                        _apart(self._after, schema, pending, result)
                    else:
                        self._after(schema, pending, result)
            except Exception as error:
                session.give_up(error)
        return result

    def _run_higher_order(self, func: Any, args: Any, kwargs: Any) -> Any:
        """Record the operators inside (`cond`, `flex_attention`), and mind what they write to."""
        if func.name() in _SEEN_THROUGH and _EXPLICIT in func.py_kernels:
            # What would run without us: everything that goes before it has run above us.
            with self:
                return func.py_kernels[_EXPLICIT](*args, **kwargs)
        tensors: list[torch.Tensor] = []
        _collect((args, tuple(kwargs.values())), tensors)
        guard = self._session.guard
        guard(_apart, self._protect, tensors)
        result = func(*(self._enter_in(value) for value in args), **kwargs)
        guard(_apart, self._protect, tensors)
        return result

    def _enter_in(self, value: Any) -> Any:
        """A function that a higher-order operator calls, with this mode active inside."""
        if isinstance(value, (tuple, list)) and any(isinstance(one, _FUNCTIONS) for one in value):
            return type(value)(self._enter_in(one) for one in value)
        if not isinstance(value, _FUNCTIONS):
            return value

        @functools.wraps(value)
        def entered(*args: Any, **kwargs: Any) -> Any:
            with self:
                return value(*args, **kwargs)

        return entered

    def _protect(self, tensors: Sequence[torch.Tensor]) -> None:
        for tensor in tensors:
            self._session.tensors.protect(tensor)

    def _before(self, schema: Schema, args: Any, kwargs: Any) -> _Pending:
        session = self._session
        tensors = session.tensors
        tensors.next_operator()
        place = session.tracker.place()
        name = session.tracker.name(place.module, schema.base)
        now = time.time_ns() // 1000
        op = Operator(session.next_seq(), schema.op_type, name, now, place.phase, place.module, place.source)
        inputs: list[torch.Tensor] = []
        _collect(args, inputs)
        if kwargs:
            outs = schema.outs
            _collect((value for key, value in kwargs.items() if key not in outs), inputs)
        pending = _Pending(op, inputs, session.selects(name, place.module), [])
        overflow = session.overflow_only
        if schema.reads:
            tensors.settle(inputs)
        pending.first_unset = schema.ignores_first and bool(inputs) and tensors.is_unset(inputs[0])
        if pending.selected and session.records_inputs and not overflow:
            pending.items = [
                tensors.item(op, tensor, "input", i, unset=pending.first_unset and i == 0)
                for i, tensor in enumerate(inputs)
            ]
        if schema.writes:
            written: list[torch.Tensor] = []
            for position, argument in schema.writes:
                _collect((args[position] if position < len(args) else kwargs.get(argument),), written)
            self._protect(written)
            pending.written = written
            if schema.asynchronous:
                for tensor in written:
                    tensors.set_in_flight(tensor, True)
            if overflow and pending.selected:
                pending.copies = _copy_overwritten(inputs, written)
        if overflow:
            pending.constants = _has_nonfinite_number(args) or _has_nonfinite_number(kwargs.values())
        return pending

    def _after(self, schema: Schema, pending: _Pending, result: Any) -> None:
        session = self._session
        tensors = session.tensors
        if pending.written:
            # What was known of this memory was its content before.
            self._protect(pending.written)
        outputs: list[torch.Tensor] = []
        _collect(result if isinstance(result, (tuple, list)) else (result,), outputs)
        if schema.functional or schema.waits:
            for tensor in outputs:
                tensors.set_in_flight(tensor, schema.functional)
        if schema.unset and not schema.resizes:
            for tensor in outputs:
                tensors.mark_unset(tensor)
        if not pending.selected:
            return
        if HAS_CUDA:
            wait_for_copies(pending.inputs, outputs)
        op = pending.op
        items = pending.items
        origin = False
        unset = schema.unset or (pending.first_unset and not schema.writes)
        if session.overflow_only:
            settled = [tensor for tensor in outputs if not tensors.is_in_flight(tensor)]
            if unset or schema.asynchronous or not any(nonfinite(tensor) for tensor in settled):
                return
            kept = pending.copies or {}
            copies = [kept.get(i) for i in range(len(pending.inputs))]
            before = [tensor if copy is None else copy for tensor, copy in zip(pending.inputs, copies)]
            read = before[1:] if pending.first_unset else before
            origin = not pending.constants and not any(nonfinite(tensor) for tensor in read)
            if session.records_inputs:
                items = [
                    tensors.item(op, tensor, "input", i, copy=copy, unset=pending.first_unset and i == 0)
                    for i, (tensor, copy) in enumerate(zip(pending.inputs, copies))
                ]
        if session.records_outputs:
            if schema.asynchronous:
                session.note_skipped(f"outputs of {schema.op_type}: still being written when it returns")
            else:
                for i, tensor in enumerate(outputs):
                    item = tensors.item(op, tensor, "output", i, unset=unset)
                    if origin:
                        item.line.origin = nonfinite(tensor)
                    items.append(item)
        if items:
            session.write(items)


class _Pending(msgspec.Struct, eq=False):
    """One operator between before and after; an exception of the operator's may keep it, in a frame of its traceback.

    copies       of the inputs that it writes to, as they were, by position
    first_unset  what its first argument held was nobody's
    """

    op: Operator
    inputs: list[torch.Tensor]
    selected: bool
    items: list[Item]
    written: Sequence[torch.Tensor] = ()
    copies: Optional[dict[int, torch.Tensor]] = None
    constants: bool = False
    first_unset: bool = False


def _apart(function: Any, *args: Any) -> Any:
    """Call one of our functions; the user's modes for functions do not see it looking at tensors."""
    with torch._C.DisableTorchFunction():
        return function(*args)


def _collect(values: Any, found: list[torch.Tensor]) -> None:
    for value in values:
        kind = type(value)
        if kind is _Tensor or kind is _Parameter:
            found.append(value)
        elif kind in _NO_TENSORS:
            pass
        elif isinstance(value, _Tensor):
            found.append(_base(value))
        elif isinstance(value, (tuple, list)):
            _collect(value, found)


def _base(tensor: torch.Tensor) -> torch.Tensor:
    """The same memory as a plain tensor: a subclass may have other ideas of its shape and methods."""
    if not is_plain(type(tensor)):
        return tensor
    with torch._C.DisableTorchFunctionSubclass():
        return torch.Tensor.as_subclass(tensor, torch.Tensor)


def _any_nested(args: Any) -> bool:
    """Whether an argument is a nested tensor: these have kernels of their own for composite operators."""
    found: list[torch.Tensor] = []
    _collect(args, found)
    return any(tensor.is_nested for tensor in found)


def _copy_overwritten(inputs: list[torch.Tensor], written: list[torch.Tensor]) -> dict[int, torch.Tensor]:
    """Copies of the inputs that share memory with what is about to be written."""
    memory = {storage._cdata for tensor in written for storage in storages_of(tensor)}
    return {
        i: tensor.clone()
        for i, tensor in enumerate(inputs)
        if tensor.layout is torch.strided and any(storage._cdata in memory for storage in storages_of(tensor))
    }


def nonfinite(tensor: torch.Tensor) -> bool:
    """Whether a NaN or Inf is in the tensor; reads it once, waits for the device."""
    if not (tensor.is_floating_point() or tensor.is_complex()) or tensor.layout is not torch.strided:
        return False
    if tensor.is_meta or not tensor.numel():
        return False
    if tensor.dtype in _FINITE_ONLY:
        return False
    if tensor.element_size() == 1:  # float8 has no arithmetic
        tensor = tensor.float()
    elif tensor.is_complex():  # complex32 has none either
        tensor = torch.view_as_real(tensor.resolve_conj())
    # A sum is the cheapest pass and never misses; it can overflow by itself, hence the second.
    return not math.isfinite(tensor.sum().item()) and not bool(torch.isfinite(tensor).all())


def _has_nonfinite_number(args: Any) -> bool:
    return any(isinstance(value, float) and not math.isfinite(value) for value in args)
