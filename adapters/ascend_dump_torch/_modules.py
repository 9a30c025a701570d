"""`level="module"`: record inputs and outputs of modules, forward and backward, instead of operators.

Gradients are recorded by hooks on the input and output tensors. Backward hooks of modules are not used, because they
insert functions into the autograd graph, with which in-place operators fail. If several modules read a tensor, its
gradient is the sum over all of them.

Modules are recorded in the order in which they finish: a module comes after the modules inside it, forward and
backward. So the first record with a wrong value belongs to the module that computed the value.

In a backward pass the inputs of a module are the gradients of its outputs, and its outputs are the gradients of its
inputs.
"""

from __future__ import annotations

import functools
import threading
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple, Optional

import msgspec
import torch
from torch.nn.modules import module as modules
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
from torch.utils.hooks import RemovableHandle
from torch.utils.weak import WeakTensorKeyDictionary

from ascend_dump.writing import Item
from ascend_dump_torch._session_protocol import Recording
from ascend_dump_torch.memory.layouts import is_plain
from ascend_dump_torch.memory.records import OperatorCall

__all__ = ["ModuleRecorder"]

#: Depth to which nested containers are searched for tensors.
_MAX_DEPTH = 8
#: Maximum number of bytes of gradients that are held back to write modules in order. If there are more, complete
#: modules are written at once, in another order.
_MAX_HELD_BYTES = 256 << 20


class _ModuleCall(msgspec.Struct, eq=False):
    """One call of a module.

    module           id of the module
    number           number of the call in the step, in the order in which calls begin; negative if it began before
                     the step
    items            the records of its forward pass so far; those of keyword arguments are added when it returns,
                     because PyTorch passes them to hooks only then
    input_tensors    its input tensors, with the names of those that are keyword arguments
    outer            the call that contains this call, or None
    inside           the calls inside this call that wait for gradients
    inputs           number of its input tensors whose gradients it waits for in a backward pass
    outputs          number of its output tensors whose gradients it waits for
    missing_inputs   number of gradients of inputs that have not arrived yet in this backward pass
    missing_outputs  number of gradients of outputs that have not arrived yet
    backward         its backward pass, None before that begins; it gets its name when it is written
    gradients        the records of its backward pass so far
    watched_outputs  its output tensors whose gradients it waits for
    """

    module: int
    number: int
    op: OperatorCall
    selected: bool
    outer: Optional[_ModuleCall]
    items: list[Item] = []
    input_tensors: list[tuple[str, torch.Tensor]] = []
    inside: list[_ModuleCall] = []
    inputs: int = 0
    outputs: int = 0
    missing_inputs: int = 0
    missing_outputs: int = 0
    backward: Optional[OperatorCall] = None
    gradients: list[Item] = []
    watched_outputs: list[_Watched] = []

    @property
    def is_complete(self) -> bool:
        """True if its backward pass has ended.

        The pass ends when the gradients of all inputs have arrived. An output that nothing uses never gets a gradient,
        so gradients of outputs count only if the call waits for no gradient of an input.
        """
        return self.backward is not None and not (self.missing_inputs if self.inputs else self.missing_outputs)

    @property
    def waits(self) -> bool:
        """True if a call inside this call has to be written first."""
        # If this call waits for no gradient of an input, the end of its backward pass is not known, so all calls inside
        # have to be written first.
        return any(not self.inputs or call.backward is not None or call.waits for call in self.inside)


class _Gradient(NamedTuple):
    """A gradient that a call of a module waits for.

    io        "input" for the gradient of an output, "output" for the gradient of an input
    position  index among the outputs or inputs of the call
    name      name of the output, or of the keyword argument
    """

    call: _ModuleCall
    io: str
    position: int
    name: str


class _Watched(msgspec.Struct, eq=False):
    """A tensor of the program whose gradient one or several calls wait for.

    settled  True once the gradient has arrived, or is known not to arrive
    """

    gradients: list[_Gradient] = []
    settled: bool = False


class ModuleRecorder:
    """A context that records the modules of one step.

    seconds  the time spent in hooks
    """

    def __init__(self, session: Recording) -> None:
        self._session = session
        self.seconds = 0.0
        # Autograd runs the backward pass of each device in its own thread.
        self._lock = threading.RLock()
        self._hooks: list[RemovableHandle] = []
        #: The hooks on tensors.
        self._handles: list[tuple[RemovableHandle, _Watched]] = []
        self._begin_step()

    def _begin_step(self) -> None:
        self._called_so_far = self._late_so_far = self._held_bytes = 0
        #: The calls of each thread that have not returned, outermost first.
        self._stacks: defaultdict[int, list[_ModuleCall]] = defaultdict(list)
        #: The top-level calls that wait for gradients.
        self._outermost: list[_ModuleCall] = []
        #: The calls with gradients that have arrived and are not written yet, by number.
        self._begun: dict[int, _ModuleCall] = {}
        #: The key in the metadata of an autograd node under which the node's watched outputs of this step are stored.
        self._key = object()
        #: The watched tensors of this step that have no autograd node.
        self._leaves = WeakTensorKeyDictionary()

    def __enter__(self) -> None:
        self._hooks = [
            register_module_forward_pre_hook(self._called),
            register_module_forward_hook(self._returned, with_kwargs=True, always_call=True),
        ]

    def __exit__(self, *error: object) -> None:
        self.end_step()
        hooks, self._hooks = self._hooks, []
        # PyTorch 2.13 keeps the id of a removed hook in this dict, and Dynamo then warns about hooks on all modules.
        with_kwargs: dict[int, bool] = getattr(modules, "_global_forward_hooks_with_kwargs", {})
        for hook in hooks:
            hook.remove()
            with_kwargs.pop(hook.id, None)

    def end_step(self) -> None:
        """Write incomplete backward passes, and release the tensors of the step."""
        handles, self._handles = self._handles, []
        for handle, watched in handles:
            handle.remove()
            watched.gradients.clear()  # because the autograd graph, which refers to `watched`, may outlive the step
        # In reverse order of the forward pass. A nested call has a larger number than the call around it, so it is
        # written first.
        for _, call in sorted(self._begun.items(), reverse=True):
            self._session.guard(self._write_backward, call)
        self._begin_step()

    def _called(self, module: torch.nn.Module, args: Any) -> None:
        if self._session.recording:
            self._guard(self._begin, module, args)

    def _returned(self, module: torch.nn.Module, args: Any, *kwargs_and_output: Any) -> None:
        if self._session.recording:
            # If the module raised an exception, PyTorch calls this hook without the keyword arguments.
            raised = len(kwargs_and_output) == 1
            kwargs, output = ({}, *kwargs_and_output) if raised else kwargs_and_output
            self._guard(self._end, module, args, kwargs, output, raised)

    def _guard(self, function: Any, *args: Any) -> None:
        began = time.perf_counter()
        with self._lock, torch.no_grad():
            self._session.guard(function, *args)
        self.seconds += time.perf_counter() - began

    def _begin(self, module: torch.nn.Module, args: Any) -> None:
        session = self._session
        call_site = session.tracker.call_site()
        name = session.tracker.name(call_site.module, "forward")
        op = OperatorCall(0, type(module).__name__, name, 0, call_site.phase, call_site.module, call_site.source)
        selected = session.selects is None or session.selects(name, call_site.module)
        stack = self._stacks[threading.get_ident()]
        # The first call of a thread counts as inside a call that is open in another thread, if there is one.
        outer = stack[-1] if stack else next((calls[0] for calls in self._stacks.values() if calls), None)
        call = _ModuleCall(id(module), self._called_so_far, op, selected, outer)
        self._called_so_far += 1
        stack.append(call)
        if call.selected:
            self._add_inputs(call, args, "")

    def _begin_late(self, module: torch.nn.Module, args: Any) -> None:
        """Register a call at its end, because it began before the step or before the hooks were installed.

        All top-level calls so far are inside this call.
        """
        self._begin(module, args)
        call = self._stacks[threading.get_ident()][-1]
        self._late_so_far += 1
        call.number = -self._late_so_far
        if call.outer is None:
            call.inside, self._outermost = self._outermost, []
            for nested in call.inside:
                nested.outer = call

    def _take(self, module: torch.nn.Module, args: Any) -> _ModuleCall:
        """Remove the call that ends from the stack of this thread, and return it."""
        stack = self._stacks[threading.get_ident()]
        index = len(stack) - 1
        while index >= 0 and stack[index].module != id(module):
            index -= 1
        # PyTorch calls no hook for a call that was ended by KeyboardInterrupt or another BaseException.
        while len(stack) > index + 1:
            self._drop(stack.pop())
        if index < 0:
            self._begin_late(module, args)
        return stack.pop()

    def _end(self, module: torch.nn.Module, args: Any, kwargs: Any, output: Any, raised: bool) -> None:
        call = self._take(module, args)
        if call.selected:
            self._add_inputs(call, kwargs, "")
            outputs = list(_tensors(output, ""))
            if self._session.records_outputs:
                for index, (name, tensor) in enumerate(outputs):
                    call.items.append(self._item(call.op, tensor, "output", index, name))
            if call.items:
                self._write(call.items)
                call.items = []
            if not raised:
                self._watch(call, outputs)
        if call.inputs or call.outputs:
            self._siblings(call).append(call)
        else:
            self._drop(call)

    def _siblings(self, call: _ModuleCall) -> list[_ModuleCall]:
        """Return the list of waiting calls to which this call belongs: those inside the same outer call."""
        return self._outermost if call.outer is None else call.outer.inside

    def _drop(self, call: _ModuleCall) -> None:
        """Drop a call that waits for no gradients. The calls inside it move to its outer call."""
        self._siblings(call).extend(call.inside)
        for nested in call.inside:
            nested.outer = call.outer

    def _add_inputs(self, call: _ModuleCall, values: Any, prefix: str) -> None:
        for name, tensor in _tensors(values, prefix):
            # A name such as "[0]" would only repeat the index.
            label = "" if name.startswith("[") else name
            if self._session.records_inputs:
                call.items.append(self._item(call.op, tensor, "input", len(call.input_tensors), label))
            call.input_tensors.append((label, tensor))

    def _watch(self, call: _ModuleCall, outputs: list[tuple[str, torch.Tensor]]) -> None:
        """Wait for the gradients of the inputs and outputs of a call that has returned."""
        inputs, call.input_tensors = call.input_tensors, []
        awaited = [(i, name, tensor) for i, (name, tensor) in enumerate(outputs) if self._is_evidence(call, tensor)]
        if outputs and not awaited:
            return  # the call is not part of a backward pass: gradients of its inputs would come from other readers
        if self._session.records_outputs:
            for index, (name, tensor) in enumerate(inputs):
                call.inputs += self._wait_for(_Gradient(call, "output", index, name), tensor)
        # Gradients of outputs are waited for even if they are not recorded: they show that the call is part of the
        # backward pass.
        if self._session.records_inputs or call.inputs:
            for index, name, tensor in awaited:
                call.outputs += self._wait_for(_Gradient(call, "input", index, name), tensor)
        call.missing_inputs, call.missing_outputs = call.inputs, call.outputs

    def _is_evidence(self, call: _ModuleCall, tensor: torch.Tensor) -> bool:
        """Return True if a gradient of this output would show that the call is part of the backward pass."""
        if call.op.phase != "backward" or tensor.grad_fn is None:
            return bool(tensor.requires_grad)
        # A module that checkpointing recomputes may return a tensor of the forward pass, which has other readers too.
        watched: Optional[_Watched] = tensor.grad_fn.metadata.get(self._key, {}).get(tensor.output_nr)
        return watched is None or watched.gradients[0].call.op.phase == "backward"

    def _wait_for(self, gradient: _Gradient, tensor: torch.Tensor) -> bool:
        """Wait for the gradient of a tensor, by a hook. Return False if the tensor will have no gradient."""
        if not is_plain(type(tensor)):
            return False
        node = tensor.grad_fn
        if node is not None:
            # The metadata identifies the node. Its number is unique per thread only, and a reference to the node would
            # keep its memory alive.
            by_output = node.metadata.setdefault(self._key, {})
            watched = by_output.get(tensor.output_nr)
            if watched is None:
                watched = by_output[tensor.output_nr] = self._add_hook(tensor)
        elif gradient.call.op.phase == "backward" and tensor.requires_grad and type(tensor) is torch.Tensor:
            # A leaf: reentrant checkpointing detaches the inputs of modules that it recomputes.
            watched = self._leaves.get(tensor)
            if watched is None:
                watched = self._leaves[tensor] = self._add_hook(tensor)
        else:
            return False
        watched.gradients.append(gradient)
        if gradient.io == "input":
            gradient.call.watched_outputs.append(watched)
        return True

    def _add_hook(self, tensor: torch.Tensor) -> _Watched:
        watched = _Watched()
        self._handles.append((tensor.register_hook(functools.partial(self._arrived, watched)), watched))
        return watched

    def _arrived(self, watched: _Watched, gradient: torch.Tensor) -> None:
        if self._session.recording:
            self._guard(self._add_gradients, watched, gradient)

    def _add_gradients(self, watched: _Watched, tensor: torch.Tensor) -> None:
        """Record the gradient of a tensor for all calls that returned or read the tensor."""
        watched.settled = True
        # In reverse order: the backward pass of a call that read the tensor comes before the backward pass of the call
        # that returned it.
        gradients = watched.gradients[::-1]
        first: Optional[Item] = None
        for call, io, index, name in gradients:
            if call.backward is None:
                self._begin_backward(call)
            op = call.backward
            assert op is not None, "it has begun"
            if io == "input":
                call.missing_outputs -= 1
                if not self._session.records_inputs:
                    continue
            else:
                call.missing_inputs -= 1
            if first is None:
                item = first = self._item(op, tensor, io, index, name)
            else:
                item = _same_tensor(first, op, io, index, name)
            call.gradients.append(item)
            self._held_bytes += item.line.nbytes
        for gradient in gradients:
            self._settle_outputs(gradient.call)
        for gradient in gradients:
            self._finish(gradient.call)
        if self._held_bytes > _MAX_HELD_BYTES:
            for call in list(self._begun.values()):
                if call.is_complete:
                    self._write_backward(call)

    def _begin_backward(self, call: _ModuleCall) -> None:
        op = call.op
        call.backward = OperatorCall(0, op.op_type, "", 0, "backward", op.module, op.source)
        self._begun[call.number] = call
        if call.outer is not None and call not in call.outer.inside:
            call.outer.inside.append(call)  # missing in a second backward pass through the same graph

    def _settle_outputs(self, call: _ModuleCall) -> None:
        """Stop waiting for gradients of outputs of a call if its backward pass has ended: none will arrive any more."""
        if not call.is_complete:
            return
        for watched in call.watched_outputs:
            if not watched.settled:
                watched.settled = True
                for gradient in reversed(watched.gradients):
                    if gradient.io == "output":
                        gradient.call.missing_inputs -= 1
                        self._settle_outputs(gradient.call)
                        self._finish(gradient.call)

    def _finish(self, call: _ModuleCall) -> None:
        """Write the backward pass of a call if it has ended and no nested call has to come first; then outer calls."""
        candidate: Optional[_ModuleCall] = call
        while candidate is not None and candidate.is_complete and not candidate.waits:
            self._write_backward(candidate)
            candidate = candidate.outer

    def _write_backward(self, call: _ModuleCall) -> None:
        items, call.gradients = call.gradients, []
        items.sort(key=lambda item: (item.line.io, item.line.index))
        self._held_bytes -= sum(item.line.nbytes for item in items)
        # If no output has a gradient, the call is not part of this backward pass, and the gradient of its input comes
        # from other readers. Examples are a head that the loss does not use, and a recomputation by checkpointing.
        # Calls whose outputs cannot be watched (`not call.outputs`), such as tensors in an object, are written.
        if items and (not call.outputs or call.missing_outputs < call.outputs):
            # The name is taken only now, so that a call that is not written uses no number.
            name = self._session.tracker.name(call.op.module, "backward")
            for item in items:
                item.line.op_name = name
            self._write(items)
        call.backward = None
        call.missing_inputs, call.missing_outputs = call.inputs, call.outputs
        self._begun.pop(call.number, None)
        if call.outer is not None and call in call.outer.inside:
            call.outer.inside.remove(call)

    def _write(self, items: list[Item]) -> None:
        """Write the records of a module, with the sequence number and the time at which its pass ends."""
        seq, now = self._session.next_seq(), time.time_ns() // 1000
        for item in items:
            item.line.seq, item.line.time = seq, now
        self._session.write(items)

    def _item(self, op: OperatorCall, tensor: torch.Tensor, io: str, index: int, name: str) -> Item:
        tensors = self._session.tensors
        tensors.next_operator()
        item = tensors.item(op, tensor, io, index)
        item.line.argument = name
        item.line.requires_grad = False  # inputs and outputs of modules are no parameters
        return item


def _same_tensor(item: Item, op: OperatorCall, io: str, index: int, name: str) -> Item:
    """Return a copy of a record for another module that reads or returns the same tensor."""
    fields = {"op_type": op.op_type, "op_name": op.name, "module": op.module, "source": op.source}
    return Item(msgspec.structs.replace(item.line, **fields, io=io, index=index, argument=name), item.payload)


def _tensors(value: Any, name: str, depth: int = 0) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield (name, tensor) for the tensors in arguments or results of a module. A name is `hidden_states[2]`, ….

    name: the name of `value` itself, "" for the whole arguments or results
    """
    if isinstance(value, torch.Tensor):
        yield name, value
    elif depth < _MAX_DEPTH and isinstance(value, Mapping):
        for key, item in value.items():
            yield from _tensors(item, f"{name}.{key}" if name else str(key), depth + 1)
    elif depth < _MAX_DEPTH and isinstance(value, (tuple, list)):
        fields = getattr(value, "_fields", None)
        for index, item in enumerate(value):
            inner = f"{name}[{index}]" if fields is None else f"{name}.{fields[index]}" if name else fields[index]
            yield from _tensors(item, inner, depth + 1)
