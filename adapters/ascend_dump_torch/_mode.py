"""The dispatch mode that records the ATen operators of a selected step."""

from __future__ import annotations

import functools
import threading
import time
import types
from collections.abc import Sequence
from typing import Any, Optional

import msgspec
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from ascend_dump.dump_format import CollectiveCall
from ascend_dump.writing import Item
from ascend_dump_torch._arguments import collect, collect_named, has_own_kernels, with_others
from ascend_dump_torch._call_arguments import describe_call, with_stack
from ascend_dump_torch._devices import Devices, find_devices
from ascend_dump_torch._overflow import nonfinite
from ascend_dump_torch._schema import Schema, schema_of
from ascend_dump_torch._session_protocol import Recording
from ascend_dump_torch.memory.layouts import is_plain
from ascend_dump_torch.memory.records import OperatorCall
from ascend_dump_torch.ranks.collectives import Collectives, RunningCollective, work_of
from ascend_dump_torch.ranks.groups import GroupCalls, Reductions
from ascend_dump_torch.ranks.placements import Placements

__all__ = ["NO_CALL", "BegunCall", "PendingOperator", "RecordMode", "outputs_of"]

_function_modes = torch._C._len_torch_function_stack
_dispatch_modes = torch._C._len_torch_dispatch_stack
_mode_of_kind = torch._C._get_dispatch_mode
_FAKE = torch._C._TorchDispatchModeKey.FAKE
_COMPOSITE = torch._C.DispatchKey.CompositeImplicitAutograd
_EXPLICIT = torch._C.DispatchKey.CompositeExplicitAutograd
#: Higher-order operators whose device-independent kernels can run while a dispatch mode is active. For other
#: higher-order operators these kernels raise an error.
_SEEN_THROUGH = ("flex_attention", "flex_attention_backward")
NO_CALL = msgspec.Raw()
_PLAIN = (torch.Tensor, torch.nn.Parameter)
_FUNCTIONS = (types.FunctionType, types.MethodType, torch.nn.Module)


class RecordMode(TorchDispatchMode):
    """Dispatch mode that records the inputs of each operator before it runs, and its outputs after."""

    supports_higher_order_operators = True
    #: True if inputs are needed once more after the operator has run (OverflowMode).
    _checks_inputs = False

    def __init__(self, session: Recording) -> None:
        super().__init__()
        self._session = session
        # Autograd runs the backward pass of each device in its own thread, with this mode active in all of them.
        self._lock = threading.RLock()
        #: Schemas of operators by the operator's id, which is faster than its hash.
        self._schemas: dict[int, Schema] = {}
        self._collectives = Collectives()
        #: The context that is entered while steps are recorded.
        self.reductions = Reductions(session.guard)
        self._groups = GroupCalls(self.reductions)
        self._placements = Placements()
        #: Thread-local flag `begins`: True if a DTensor operator was dispatched and is not yet decomposed.
        self._distributed = threading.local()
        self._devices: Optional[Devices] = None
        #: Seconds spent in this mode, without the time of the operators.
        self.seconds = 0.0

    def find_devices(self) -> None:
        """Detect the available devices. To be called before each recorded step, since an import may add a device."""
        self._devices = find_devices()

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        # Otherwise PyTorch wraps `__torch_dispatch__` and imports all of torch._dynamo for it.
        return False

    def __torch_dispatch__(self, func: Any, kinds: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        session = self._session
        if not session.recording:
            return func(*args, **kwargs)
        if _dispatch_modes() and _mode_of_kind(_FAKE) is not None:
            return func(*args, **kwargs)  # computes shapes only, as DTensor does before an operator runs
        if kinds and not all(map(is_plain, kinds)):
            if _dispatch_modes():
                return func(*args, **kwargs)  # handled by an inner mode of PyTorch, such as FakeTensorMode
            if self._placements.are_of(kinds) and not getattr(self._distributed, "begins", False):
                return self._run_distributed(func, args, kwargs)
            self._distributed.begins = False
            # Let the tensor subclass decompose the operator; the resulting operators are dispatched here again.
            return NotImplemented
        if self._devices is not None:
            kind = self._devices.graph()
            if kind:
                session.note_skipped(f"operators captured into a device graph ({kind})")
                return func(*args, **kwargs)
        schema = self._schemas.get(id(func))
        if schema is None:
            if not isinstance(func, torch._ops.OpOverload):
                return self._run_higher_order(func, args, kwargs)
            schema = self._schemas[id(func)] = schema_of(func)
        if schema.composite and not has_own_kernels(args, kwargs, schema.own_kernels):
            # The operator reached this mode because autograd does not decompose it in inference mode. Run the kernel
            # that would run without our mode; it calls the operators that are recorded.
            with self:
                return func._op_dk(_COMPOSITE, *args, **kwargs)
        if schema.views_first and type(args[0]) in _PLAIN and session.grafts is None:
            # A view changes no memory, so it is recorded after it has run, which is faster. Two thirds of the operators
            # of a transformer are views.
            try:
                result = func(*args, **kwargs)
            except Exception:
                if session.records_failures:
                    session.guard(_without_function_modes, self._record_failed, self._before(schema, args, kwargs))
                raise
            self._after_view(schema, args, kwargs, result)
            return result
        began = time.perf_counter()
        # An exception in recording code ends the recording, not the program.
        try:
            with self._lock:
                if _function_modes():
                    pending = _without_function_modes(self._before, schema, args, kwargs)
                else:
                    pending = self._before(schema, args, kwargs)
        except Exception as error:
            session.give_up(error)
            pending = None
        if pending is not None and pending.replacement is not None:
            args, kwargs = pending.replacement
        called = time.perf_counter()
        try:
            result = func(*args, **kwargs)
        except Exception:
            if session.records_failures:
                session.guard(_without_function_modes, self._record_failed, pending)
            raise
        returned = time.perf_counter()
        if pending is not None:
            try:
                with self._lock:
                    if _function_modes():
                        _without_function_modes(self._after, schema, pending, result)
                    else:
                        self._after(schema, pending, result)
            except Exception as error:
                session.give_up(error)
        self.seconds += called - began + time.perf_counter() - returned
        return result

    def _after_view(self, schema: Schema, args: Any, kwargs: Any, result: Any) -> None:
        """Record an operator after it has returned a view of its first argument."""
        returned = time.perf_counter()
        try:
            with self._lock:
                if _function_modes():
                    _without_function_modes(self._record_view, schema, args, kwargs, result)
                else:
                    self._record_view(schema, args, kwargs, result)
        except Exception as error:
            self._session.give_up(error)
        self.seconds += time.perf_counter() - returned

    def _record_view(self, schema: Schema, args: Any, kwargs: Any, result: Any) -> None:
        session = self._session
        tensors = session.tensors
        tensors.next_operator()
        op, stack = self._locate(schema)
        if session.selects is not None and not session.selects(op.name, op.module):
            return
        source = args[0]
        described: tuple[torch.Tensor, ...] = source, result
        unset = tensors.is_unset(source)
        items: Optional[list[Item]] = None
        if not (session.records_inputs and session.records_outputs):
            # If only the input or only the output is recorded, `item` is used: `items_of_view` would store all elements
            # of the source.
            io, described = ("input", (source,)) if session.records_inputs else ("output", (result,))
            items = [tensors.item(op, described[0], io, 0, unset)]
        elif not unset:
            items = tensors.items_of_view(op, source, result)
        if items is None:
            items = [tensors.item(op, source, "input", 0, unset), tensors.item(op, result, "output", 0, unset)]
        if op.phase == "other" or items[0].line.requires_grad or type(source) is torch.nn.Parameter:
            self._name_parameters(op, items, described)
        if self._placements:
            self._describe_ranks(None, items, described)
        items[0].line.call = with_stack(describe_call(schema.signature, args, kwargs), stack)
        session.write(items)

    def _locate(self, schema: Schema) -> tuple[OperatorCall, bytes]:
        """Return the fields that all records of an operator share, and its `CallSite.stack`.

        To be called once per operator, because it counts the operator.
        """
        session = self._session
        site = session.tracker.call_site()
        name = session.tracker.name(site.module, schema.base)
        now = time.time_ns() // 1000
        seq = session.next_seq()
        return OperatorCall(seq, schema.op_type, name, now, site.phase, site.module, site.source), site.stack

    def _run_distributed(self, func: Any, args: Any, kwargs: Any) -> Any:
        """Run an operator on DTensors, and note the placements of its inputs and outputs.

        DTensor decomposes it into operators on local tensors, which are recorded.
        """
        guard = self._session.guard
        guard(_without_function_modes, self._placements.note, (args, tuple(kwargs.values())))
        self._distributed.begins = True
        try:
            with self:
                result = func(*args, **kwargs)
        finally:
            self._distributed.begins = False
        guard(_without_function_modes, self._placements.note, (result,))
        return result

    def _run_higher_order(self, func: Any, args: Any, kwargs: Any) -> Any:
        """Run a higher-order operator (`cond`, `flex_attention`) and record the operators inside."""
        if func.name() in _SEEN_THROUGH and _EXPLICIT in func.py_kernels:
            # Without our mode the same kernel would run: all dispatch keys of higher priority were handled already.
            with self:
                return func.py_kernels[_EXPLICIT](*args, **kwargs)
        tensors: list[torch.Tensor] = []
        collect((args, tuple(kwargs.values())), tensors)
        guard = self._session.guard
        guard(_without_function_modes, self._protect, tensors)
        result = func(*(self._enter_in(value) for value in args), **kwargs)
        guard(_without_function_modes, self._protect, tensors)
        return result

    def _enter_in(self, value: Any) -> Any:
        """Wrap a function that a higher-order operator calls, so that this mode is active inside it.

        Sequences of functions are wrapped item by item; other values are returned unchanged.
        """
        if isinstance(value, (tuple, list)) and any(isinstance(item, _FUNCTIONS) for item in value):
            return type(value)(self._enter_in(item) for item in value)
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

    def _before(self, schema: Schema, args: Any, kwargs: Any) -> Optional[BegunCall]:
        session = self._session
        tensors = session.tensors
        tensors.next_operator()
        pending = self._begin(schema, args, kwargs)
        op, inputs = pending.op, pending.inputs
        if pending.selected:
            if pending.replacement is not None:
                args, kwargs = pending.replacement
            pending.call = describe_call(schema.signature, args, kwargs)
            if session.records_inputs:
                item, first_unset = tensors.item, pending.first_unset
                items = [item(op, tensor, "input", i, first_unset and not i) for i, tensor in enumerate(inputs)]
                if schema.fills:
                    for i, tensor in enumerate(inputs):
                        if tensors.is_unset(tensor):
                            items[i] = item(op, tensor, "input", i, True)
                self._name_parameters(op, items, inputs)
                self._describe_ranks(pending.collective, items, inputs)
                pending.items = items
        if pending.written:
            self._announce_writes(pending)
        return pending

    def _begin(self, schema: Schema, args: Any, kwargs: Any) -> PendingOperator:
        """Collect the tensors of an operator that is about to run, replace inputs by grafts, and note its call."""
        session = self._session
        tensors = session.tensors
        op, stack = self._locate(schema)
        inputs: list[torch.Tensor] = []
        collect(args, inputs)
        written: list[torch.Tensor] = []
        for argument in schema.writes:
            collect((argument.of(args, kwargs),), written)
        if kwargs:
            outs = schema.outs
            collect((value for key, value in kwargs.items() if key not in outs), inputs)
        replacement: Optional[tuple[Any, Any]] = None
        grafts = session.grafts
        if grafts is not None and grafts.give(op.name, schema.views, written, inputs, tensors.protect):
            replaced = iter(inputs)
            keep = schema.outs
            args = tuple(with_others(args, replaced))
            named = {key: value if key in keep else with_others([value], replaced)[0] for key, value in kwargs.items()}
            replacement = args, named
        selects = session.selects
        selected = selects is None or selects(op.name, op.module)
        if schema.reads and (tensors.any_in_flight or self._collectives.running):
            self._settle(inputs)
            self._settle(written)
        first_unset = schema.ignores_first and bool(inputs) and tensors.is_unset(inputs[0])
        pending = PendingOperator(replacement, schema, op, inputs, selected, [], written, NO_CALL, first_unset, stack)
        if schema.collective:
            pending.collective = self._groups.describe(schema.collective, schema.arguments, args, kwargs)
        if schema.unreturned and (schema.training is None or schema.training.of(args, kwargs)):
            unreturned: list[torch.Tensor] = []
            names: list[str] = []
            for argument in schema.unreturned:
                collect_named(argument.of(args, kwargs), argument.name, unreturned, names)
            pending.unreturned, pending.names = unreturned, names
        return pending

    def _announce_writes(self, pending: PendingOperator) -> None:
        """Copy the queued bytes of the tensors that an operator is about to write."""
        self._protect(pending.written)
        if pending.schema.asynchronous:
            for tensor in pending.written:
                self._session.tensors.set_in_flight(tensor, True)

    def _after(self, schema: Schema, pending: BegunCall, result: Any) -> None:
        assert isinstance(pending, PendingOperator)
        session = self._session
        tensors = session.tensors
        if pending.written:
            # The operator has changed this memory, so the bytes that are stored of it are outdated.
            self._protect(pending.written)
        outputs, names = outputs_of(schema, result)
        if session.grafts is not None:
            session.grafts.apply(pending.op.name, schema.views, outputs)
        if schema.functional or schema.waits:
            for tensor in outputs:
                tensors.set_in_flight(tensor, schema.functional)
        if schema.waits:
            self._collectives.settle(outputs)
        if schema.unset and not schema.resizes:
            for tensor in outputs:
                tensors.mark_unset(tensor)
        if not pending.selected:
            return
        if self._devices is not None:
            self._devices.wait_for_copies(pending.inputs, outputs)
        pending.unset = schema.unset or (pending.first_unset and not schema.writes)
        if pending.unreturned:
            names = [*(names or [""] * len(outputs)), *pending.names]
            outputs += pending.unreturned
        if not (schema.asynchronous or schema.functional):
            self._conclude(pending, outputs, names)
            return
        if pending.items:
            pending.items[0].line.call = with_stack(pending.call, pending.stack)
            session.write(pending.items)  # now, because the program may hang while it waits for the outputs
            pending.items = []
        if not self._checks_inputs:
            pending.inputs = []
        if outputs:
            work = work_of(result) if schema.asynchronous else None
            conclude = functools.partial(self._conclude_collective, pending, outputs, names)
            self._collectives.begin(RunningCollective(outputs, work, conclude))

    def _record_failed(self, pending: Optional[BegunCall]) -> None:
        """Write the records of the inputs of an operator that has raised an exception, and note them as symptoms."""
        if isinstance(pending, PendingOperator) and pending.items:
            pending.items[0].line.call = with_stack(pending.call, pending.stack)
            self._session.write(pending.items)
            tensors = [tensor for tensor in pending.inputs if nonfinite(tensor)] or pending.inputs[:1]
            for tensor in tensors:
                self._session.note_symptom(tensor, "raised", argument=pending.op.name)

    def _conclude(self, pending: PendingOperator, outputs: list[torch.Tensor], names: Sequence[str]) -> None:
        """Write the records of an operator that has run.

        names  `Line.argument` of each output; empty if no output has one
        """
        self._write(pending, outputs, names)

    def _write(
        self, pending: PendingOperator, outputs: list[torch.Tensor], names: Sequence[str], origin: bool = False
    ) -> None:
        """Create the records of the outputs of an operator, and write them together with the records of its inputs.

        origin  True if the operator computed NaN or Inf from finite inputs
        """
        session = self._session
        op, items = pending.op, pending.items
        if session.records_outputs:
            make = session.tensors.item
            for i, tensor in enumerate(outputs):
                item = make(op, tensor, "output", i, pending.unset or i == pending.schema.partial)
                if names:
                    item.line.argument = names[i]
                if op.phase == "other":
                    self._name_parameters(op, [item], [tensor])
                if origin:
                    item.line.origin = nonfinite(tensor)
                if pending.collective is not None or self._placements:
                    self._describe_ranks(pending.collective, [item], [tensor])
                items.append(item)
        if items:
            items[0].line.call = with_stack(pending.call, pending.stack)
            session.write(items)

    def _describe_ranks(
        self, collective: Optional[CollectiveCall], items: Sequence[Item], tensors: Sequence[torch.Tensor]
    ) -> None:
        """Add the collective call and the placements of the tensors to the records."""
        if collective is not None:
            for item in items:
                item.line.collective = collective
        if self._placements:
            for item, tensor in zip(items, tensors):
                item.line.placement = self._placements.of(tensor)

    def _name_parameters(self, op: OperatorCall, items: Sequence[Item], tensors: Sequence[torch.Tensor]) -> None:
        """Add parameter names to the records of operators outside modules, such as the operators of an optimizer.

        Inside modules many operators may read the same parameter, so only its first record in a step gets its name.
        Buffers, which each rank may change, get no name there.
        """
        of = self._session.tracker.parameter_of
        is_forward = op.phase == "forward"
        for item, tensor in zip(items, tensors):
            is_frozen = is_forward and type(tensor) is torch.nn.Parameter
            if op.phase == "other" or item.line.requires_grad or is_frozen:
                item.line.parameter = of(tensor)

    def _conclude_collective(
        self, pending: PendingOperator, outputs: list[torch.Tensor], names: Sequence[str], complete: bool
    ) -> None:
        if complete:
            self._session.tensors.settle(outputs)
        self._conclude(pending, outputs, names)

    def _settle(self, tensors: list[torch.Tensor]) -> None:
        """Mark collectives that write to these tensors as finished, because an operator is about to use the tensors."""
        self._collectives.settle(tensors)
        self._session.tensors.settle(tensors)

    def waits(self, work: Any) -> None:
        """Note that the program calls `work.wait()`."""
        self._between_operators(self._collectives.waits, work)

    def waited(self, work: Any, complete: bool) -> None:
        """Note the end of `work.wait()`.

        complete  True if the call shows that the collective is complete
        """
        self._between_operators(self._collectives.waited, work, complete)

    def end_step(self) -> None:
        """Record pending collectives at the end of a step, while writes to memory are still observed."""
        if self._session.recording:
            self._between_operators(self._collectives.end_step)
        self.forget()

    def forget(self) -> None:
        """Drop pending collectives, process groups and placements."""
        self._collectives.forget()
        self._groups.begin_step()
        self._placements.clear()

    def _between_operators(self, function: Any, *args: Any) -> None:
        """Call a recording function while no operator runs, hidden from dispatch and function modes and autograd."""
        with self._lock, torch._C._DisableTorchDispatch(), torch._C.DisableTorchFunction(), torch.no_grad():
            function(*args)


class BegunCall(msgspec.Struct, eq=False):
    """The state of a call of an operator while it runs.

    replacement  (args, kwargs) that replace those of the program, if inputs are replaced by `graft=`
    """

    replacement: Optional[tuple[Any, Any]]


class PendingOperator(BegunCall, eq=False):
    """An operator between the start of its call and the writing of its records.

    items        the records of its inputs
    written      the tensors that it writes to
    call         its arguments as JSON, stored in its first line
    copies       with scene="overflow": copies of the inputs that it overwrites, by position
    called       with scene="overflow": its (args, kwargs)
    first_unset  True if its first argument was uninitialized memory
    unset        True if its outputs are uninitialized memory
    unreturned   outputs that it writes but does not return
    names        the names of the arguments in `unreturned`
    collective   its `CollectiveCall`, None if it is not a collective
    stack        `CallSite.stack`
    """

    schema: Schema
    op: OperatorCall
    inputs: list[torch.Tensor]
    selected: bool
    items: list[Item]
    written: list[torch.Tensor]
    call: msgspec.Raw
    first_unset: bool
    stack: bytes
    collective: Optional[CollectiveCall] = None
    unset: bool = False
    copies: Optional[dict[int, torch.Tensor]] = None
    called: Any = ()
    unreturned: Sequence[torch.Tensor] = ()
    names: Sequence[str] = ()


def outputs_of(schema: Schema, result: Any) -> tuple[list[torch.Tensor], list[str]]:
    """Return the tensors that an operator has returned, and their names; no names if the schema has none."""
    outputs: list[torch.Tensor] = []
    names: list[str] = []
    if schema.returns:
        for value, name in zip((result,) if len(schema.returns) == 1 else result, schema.returns):
            collect_named(value, name, outputs, names)
    elif not schema.asynchronous:  # asynchronous collectives return their arguments
        collect(result if isinstance(result, (tuple, list)) else (result,), outputs)
    return outputs, names


def _without_function_modes(function: Any, *args: Any) -> Any:
    """Call a function so that the user's `TorchFunctionMode`s do not see its operators."""
    with torch._C.DisableTorchFunction():
        return function(*args)
