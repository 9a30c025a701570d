"""`level="module"`: record inputs and outputs of modules, forward and backward, instead of operators.

Gradients are recorded by hooks on the input and output tensors: backward hooks of modules insert functions into the
autograd graph, after which in-place operators fail. If several modules read a tensor, its gradient is the sum over all
of them.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Mapping
from typing import Any, Optional

import msgspec
import torch
from torch.nn.modules import module as modules
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
from torch.utils.hooks import RemovableHandle

from ascend_dump.writing import Item
from ascend_dump_torch._memory import is_plain
from ascend_dump_torch._recording import Recording
from ascend_dump_torch._tensors import OperatorCall

__all__ = ["ModuleRecorder"]

#: How deep nested containers are searched for tensors.
_DEEPEST = 8


class _ModuleCall(msgspec.Struct, eq=False):
    """One call of a module.

    module    its id
    items     the records of its forward pass so far; keyword arguments are added when it returns, because only then
              PyTorch passes them to hooks
    given     its input tensors
    backward  its backward pass, None before it begins
    gradients the records of its backward pass so far, and the number of gradients still missing
    """

    module: int
    op: OperatorCall
    selected: bool
    items: list[Item]
    given: list[torch.Tensor]
    backward: Optional[OperatorCall] = None
    gradients: list[Item] = []
    awaited: int = 0


class ModuleRecorder:
    """A context in which the modules of one step are recorded.

    seconds  the time spent in hooks
    """

    def __init__(self, session: Recording) -> None:
        self._session = session
        self.seconds = 0.0
        # Autograd runs the backward pass of each device in its own thread.
        self._lock = threading.RLock()
        self._stack: list[_ModuleCall] = []
        self._open: list[_ModuleCall] = []
        self._hooks: list[RemovableHandle] = []
        #: Handles of the hooks on tensors.
        self._handles: list[RemovableHandle] = []

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
        for handle in handles:
            handle.remove()
        for call in self._open:
            if call.gradients:
                self._session.guard(self._session.write, call.gradients)
        self._open.clear()
        self._stack.clear()

    def _called(self, module: torch.nn.Module, args: Any) -> None:
        if self._session.recording:
            self._guard(self._begin, module, args)

    def _returned(self, module: torch.nn.Module, args: Any, *more: Any) -> None:
        if self._session.recording:
            # If the module raised, PyTorch calls this without the keyword arguments.
            kwargs, output = more if len(more) == 2 else ({}, *more)
            self._guard(self._end, module, args, kwargs, output)

    def _guard(self, function: Any, *args: Any) -> None:
        began = time.perf_counter()
        with self._lock, torch.no_grad():
            self._session.guard(function, *args)
        self.seconds += time.perf_counter() - began

    def _begin(self, module: torch.nn.Module, args: Any) -> None:
        session = self._session
        place = session.tracker.place()
        name = session.tracker.name(place.module, "forward")
        now = time.time_ns() // 1000
        op = OperatorCall(session.next_seq(), type(module).__name__, name, now, place.phase, place.module, place.source)
        call = _ModuleCall(id(module), op, session.selects is None or session.selects(name, place.module), [], [])
        self._stack.append(call)
        if call.selected:
            self._add_inputs(call, args, "")

    def _end(self, module: torch.nn.Module, args: Any, kwargs: Any, output: Any) -> None:
        if not self._stack or self._stack[-1].module != id(module):
            self._begin(module, args)  # its call began the step, before the hooks were installed
        call = self._stack.pop()
        if not call.selected:
            return
        session = self._session
        self._add_inputs(call, kwargs, "")
        outputs = list(_tensors(output, ""))
        if session.records_outputs:
            for at, (name, tensor) in enumerate(outputs):
                call.items.append(self._item(call.op, tensor, "output", at, name))
        if call.items:
            session.write(call.items)
            call.items = []
        # In the backward pass the inputs of a module are the gradients of its outputs.
        watched = [("input", at, name, tensor) for at, (name, tensor) in enumerate(outputs)]
        watched += [("output", at, "", tensor) for at, tensor in enumerate(call.given)]
        call.given = []
        for io, at, name, tensor in watched:
            wanted = session.records_inputs if io == "input" else session.records_outputs
            if wanted and tensor.grad_fn is not None and is_plain(type(tensor)):
                call.awaited += 1
                self._handles.append(tensor.register_hook(self._take(call, io, at, name)))
        if call.awaited:
            self._open.append(call)

    def _add_inputs(self, call: _ModuleCall, values: Any, prefix: str) -> None:
        for name, tensor in _tensors(values, prefix):
            if self._session.records_inputs:
                # The index already tells the position.
                label = "" if name.startswith("[") else name
                call.items.append(self._item(call.op, tensor, "input", len(call.given), label))
            call.given.append(tensor)

    def _take(self, call: _ModuleCall, io: str, at: int, name: str) -> Any:
        def take(gradient: torch.Tensor) -> None:
            if self._session.recording:
                self._guard(self._add_gradient, call, io, at, name, gradient)

        return take

    def _add_gradient(self, call: _ModuleCall, io: str, at: int, name: str, gradient: torch.Tensor) -> None:
        session = self._session
        if call.backward is None:
            module = call.op.module
            backward = session.tracker.name(module, "backward")
            now = time.time_ns() // 1000
            call.backward = OperatorCall(
                session.next_seq(), call.op.op_type, backward, now, "backward", module, call.op.source
            )
        call.gradients.append(self._item(call.backward, gradient, io, at, name))
        call.awaited -= 1
        if call.awaited == 0:
            session.write(call.gradients)
            call.gradients = []
            # By identity: calls do not define equality.
            self._open = [one for one in self._open if one is not call]

    def _item(self, op: OperatorCall, tensor: torch.Tensor, io: str, at: int, name: str) -> Item:
        tensors = self._session.tensors
        tensors.next_operator()
        item = tensors.item(op, tensor.detach(), io, at)
        item.line.argument = name
        return item


def _tensors(value: Any, name: str, depth: int = 0) -> Iterator[tuple[str, torch.Tensor]]:
    """The tensors in the arguments or results of a module, with their positions, such as `hidden_states[2]`."""
    if isinstance(value, torch.Tensor):
        yield name, value
    elif depth < _DEEPEST and isinstance(value, Mapping):
        for key, one in value.items():
            yield from _tensors(one, f"{name}.{key}" if name else str(key), depth + 1)
    elif depth < _DEEPEST and isinstance(value, (tuple, list)):
        fields = getattr(value, "_fields", None)
        for at, one in enumerate(value):
            inner = f"{name}[{at}]" if fields is None else f"{name}.{fields[at]}" if name else fields[at]
            yield from _tensors(one, inner, depth + 1)
