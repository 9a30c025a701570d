"""Determine the name of an operator and its call site: module, phase and the user's source line."""

from __future__ import annotations

import inspect
import json
import os
import sys
import warnings
import weakref
from types import CodeType
from typing import Any, Optional

import msgspec
import torch
import typing_extensions

import ascend_dump
from ascend_dump.dump_format import encodable

__all__ = ["CallSite", "Tracker", "is_user_code", "module_names", "operator_name", "user_line"]

_LIBRARIES = (
    os.path.dirname(torch.__file__) + os.sep,
    os.path.dirname(ascend_dump.__file__) + os.sep,
    os.path.dirname(__file__) + os.sep,
    # These contain the wrapper around deprecated functions, such as some functions of torch.distributed.
    typing_extensions.__file__,
    warnings.__file__,
    "<",  # frozen modules and generated code
)
#: Directory of Python's standard library. Installed packages may be in a directory inside it.
_STANDARD_LIBRARY = os.path.dirname(os.__file__) + os.sep
_INSTALLED = tuple(f"{os.sep}{name}{os.sep}" for name in ("site-packages", "dist-packages"))
#: File names that Python and IPython give to interactive input.
_TYPED = ("<stdin>", "<console>", "<python-input-", "<ipython-input-")
#: Parts of module paths that wrappers insert.
_WRAPPERS = ("_orig_mod.", "_fsdp_wrapped_module.", "_checkpoint_wrapped_module.")

#: The code objects of PyTorch's functions that call the autograd engine, by id, because hashing a code object is slow.
_ENGINE = {
    id(code): code
    for code in (
        inspect.unwrap(function).__code__
        for function in (
            torch.autograd.backward,
            torch.autograd.grad,
            getattr(torch.autograd.graph, "_engine_run_backward", torch.autograd.grad),
        )
    )
}

_Parameter = torch.nn.Parameter
_current_node = torch._C._current_autograd_node
_sequence_nr = torch.autograd._get_sequence_nr


#: Maximum number of functions of a call stack that are recorded, starting with the innermost.
_MOST_FRAMES = 64
#: Maximum number of autograd nodes whose call sites are kept from step to step.
_MOST_NODES = 1 << 16
#: The module of a parameter, and the name of the parameter in it.
_Home = tuple["weakref.ref[torch.nn.Module]", str]


class CallSite(msgspec.Struct, eq=False, gc=False):
    """The call site of an operator.

    module  path of the innermost module, "" outside of modules
    phase   "forward", "backward" or "other"
    source  the user's source line as FILE:LINE, "" if there is none
    stack   the call stack as JSON, b"" if it is not recorded
    """

    module: str
    phase: str
    source: str
    stack: bytes = b""


def operator_name(module: str, base: str, number: int) -> str:
    """Return the name of an operator, `module/base_N`. number: the result of `Tracker.count`."""
    return f"{module}/{base}_{number}" if module else f"{base}_{number}"


def module_names(target: torch.nn.Module) -> dict[int, str]:
    """Return the paths of the target's modules by id, without the name parts that wrappers such as DDP insert."""
    names = {}
    prefix = "module." if type(target).__name__ in ("DistributedDataParallel", "DataParallel") else ""
    for path, module in target.named_modules():
        path += "."
        for wrapper in _WRAPPERS:
            path = path.replace(wrapper, "")
        if prefix and path.startswith(prefix):
            path = path[len(prefix) :]
        names[id(module)] = path[:-1]
    return names


def is_user_code(file_name: str) -> bool:
    """Return True for code outside of PyTorch, Python and ascend_dump. Code of other packages counts as user code."""
    if file_name.startswith(_TYPED):
        return True
    if file_name.startswith(_STANDARD_LIBRARY) and not any(name in file_name for name in _INSTALLED):
        return False
    return not file_name.startswith(_LIBRARIES)


def user_line() -> str:
    """Return the innermost line of user code on the stack of this thread as `FILE:LINE`, "" if there is none."""
    frame: Any = sys._getframe(1)
    while frame is not None:
        if is_user_code(frame.f_code.co_filename):
            return f"{frame.f_code.co_filename}:{frame.f_lineno}"
        frame = frame.f_back
    return ""


def _parameter_at(home: _Home) -> Optional[torch.nn.Parameter]:
    module, name = home[0](), home[1]
    if module is None:
        return None
    parameters = module._parameters
    return parameters[name] if name in parameters else None  # noqa: SIM401  (those of script modules have no `get`)


def _local(tensor: Any) -> Any:
    """Return the part of a DTensor that this rank has; any other tensor itself."""
    return getattr(tensor, "_local_tensor", tensor)


class Tracker:
    """Determines names and call sites of operators, from module calls and autograd nodes.

    An operator of the backward pass gets the module and source line of the forward operator that created the running
    autograd node. Both are connected by PyTorch's sequence number of the node.
    """

    def __init__(self, target: Optional[torch.nn.Module], *, stacks: bool = False) -> None:
        self._names: dict[int, str] = {}
        self._owners: dict[int, str] = {}
        #: Names of parameters, by the parameter's id.
        self._parameters: dict[int, str] = {}
        #: Modules of parameters, by the parameter's id. An id may be reused for another tensor, so a tensor is compared
        #: with the parameter in its module. Weak references to tensors are not used, because
        #: `torch.utils.swap_tensors` refuses tensors that have them.
        self._homes: dict[int, _Home] = {}
        #: Modules and names of gradients, and of the local parts of DTensor parameters, by the id of the tensor. They
        #: are determined again after each backward pass.
        self._gradients: dict[int, tuple[_Home, str]] = {}
        self._old_gradients = True
        #: For each tensor in the state of an optimizer, by the tensor's id: the optimizer, the parameter, the tensor's
        #: key in the state, and its name.
        self._optimizer_states: dict[int, tuple[weakref.ref[torch.optim.Optimizer], _Home, Any, str]] = {}
        self._adopted: dict[int, weakref.ref[torch.nn.Module]] = {}
        #: The target until its modules are named. They are named in the first recorded step, because many captures
        #: record no step.
        self._target = target
        #: Code objects of user code and of libraries, by id, because hashing a code object is slow. The values keep the
        #: ids from being reused.
        self._user_code: dict[int, CodeType] = {}
        self._libraries: dict[int, CodeType] = {}
        self._lines: dict[tuple[int, int], str] = {}
        self._with_stacks = stacks
        self._call_stacks: dict[tuple[int, ...], bytes] = {}
        #: The open module calls: path, and True if it was called while an autograd node ran, as checkpointing does.
        self._stack: list[tuple[str, bool]] = []
        #: The call sites of the operators that created autograd nodes, by the sequence number of the node.
        self._nodes: dict[int, CallSite] = {}
        #: The sequence number of the next autograd node, as it was after the last operator.
        self._last_node = 0
        #: The number of operators in this step so far, by (module, base name).
        self._counts: dict[tuple[str, str], int] = {}

    def adopt(self, root: torch.nn.Module) -> None:
        """Name the modules and parameters of a model. Names of all models but the first begin with the class name."""
        self._adopt_target()
        if id(root) in self._adopted:
            return
        prefix = type(root).__name__ if self._adopted else ""
        paths = module_names(root)
        names: dict[int, str] = {}
        owners: dict[int, str] = {}
        parameters: dict[int, str] = {}
        homes: dict[int, _Home] = {}
        for module in root.modules():
            path = ".".join(part for part in (prefix, paths[id(module)]) if part)
            if id(module) not in self._names:
                names[id(module)] = path
            for name, parameter in module.named_parameters(recurse=False):
                if id(parameter) not in self._owners:
                    owners.setdefault(id(parameter), path)
                    parameters.setdefault(id(parameter), f"{path}.{name}" if path else name)
                    homes.setdefault(id(parameter), (weakref.ref(module), name))
        self._names.update(names)
        self._owners.update(owners)
        self._parameters.update(parameters)
        self._homes.update(homes)
        me = weakref.ref(self)

        def forget(_: object) -> None:
            # The ids may be reused for other modules.
            tracker = me()
            if tracker is not None:
                del tracker._adopted[key]
                for module_id in names:
                    del tracker._names[module_id]
                for parameter_id in owners:
                    del tracker._owners[parameter_id]
                    del tracker._parameters[parameter_id]
                    del tracker._homes[parameter_id]

        key = id(root)
        self._adopted[key] = weakref.ref(root, forget)

    def parameter_of(self, tensor: torch.Tensor) -> str:
        """Return the name of a parameter, a gradient or a tensor of an optimizer's state; "" for any other tensor.

        Such names are `fc.weight`, `fc.weight.grad` and `exp_avg of fc.weight`. The local part of a DTensor has the
        name of the whole; that of a gradient has none, because norms of gradients are those of the part.
        """
        key = id(tensor)
        name = self._parameters.get(key)
        # If the module has lost the parameter, the id may belong to another tensor now.
        if name is not None and (type(tensor) is _Parameter or _parameter_at(self._homes[key]) is tensor):
            return name
        if self._old_gradients:
            self._find_gradients()
        of_gradient = self._gradients.get(key)
        if of_gradient is not None:
            home, name = of_gradient
            parameter = _parameter_at(home)
            if parameter is not None and (parameter.grad is tensor or _local(parameter) is tensor):
                return name
        of_state = self._optimizer_states.get(key)
        if of_state is not None:
            reference, home, what, name = of_state
            optimizer, parameter = reference(), _parameter_at(home)
            if optimizer is not None and parameter is not None:
                state = optimizer.state.get(parameter)
                if isinstance(state, dict) and _local(state.get(what)) is tensor:
                    return name
        return ""

    def name_optimizer_states(self, optimizer: torch.optim.Optimizer) -> None:
        """Name the tensors in the state of an optimizer. To be called before its step."""
        reference = weakref.ref(optimizer)
        for parameter, state in optimizer.state.items():
            name = self._parameters.get(id(parameter))
            if name is not None and isinstance(state, dict):
                home = self._homes[id(parameter)]
                for what, tensor in state.items():
                    if isinstance(tensor, torch.Tensor):
                        self._optimizer_states[id(_local(tensor))] = reference, home, what, f"{what} of {name}"

    def _find_gradients(self) -> None:
        self._old_gradients = False
        self._gradients = {}
        for key, home in self._homes.items():
            parameter = _parameter_at(home)
            if parameter is None or id(parameter) != key:
                continue
            if type(parameter) is not _Parameter:
                self._gradients[id(_local(parameter))] = home, self._parameters[key]
            if parameter.grad is not None:
                self._gradients[id(parameter.grad)] = home, f"{self._parameters[key]}.grad"

    def _adopt_target(self) -> None:
        target, self._target = self._target, None
        if target is not None:
            self.adopt(target)

    def begin_step(self) -> None:
        self._adopt_target()
        self._old_gradients = True
        self._optimizer_states.clear()
        self._counts.clear()
        # Nodes are kept from step to step, because a backward pass may go through graphs of earlier steps. If there are
        # too many, all are dropped.
        if len(self._nodes) > _MOST_NODES:
            self._nodes.clear()
        self._stack.clear()
        self._last_node = _sequence_nr()

    def enter(self, module: torch.nn.Module) -> None:
        path = self._names.get(id(module))
        if path is None and not self._stack and next(module.parameters(), None) is not None:
            # A top-level model that is not the target.
            self.adopt(module)
            path = self._names[id(module)]
        if path is None:
            # A module that was not part of the model when it was named: a loss, or a module created later.
            outer = self._stack[-1][0] if self._stack else ""
            name = type(module).__name__
            path = f"{outer}.{name}" if outer else name
        self._stack.append((path, _current_node() is not None))

    def leave(self) -> None:
        if self._stack:
            self._stack.pop()

    def call_site(self) -> CallSite:
        """Return the call site of the operator that is being dispatched."""
        node = _current_node()
        top = self._stack[-1] if self._stack else None
        if node is not None:
            self._old_gradients = True
        if node is not None and (top is None or not top[1]):
            number = node._sequence_nr()
            site = self._nodes.get(number)
            source = self._source_in_node()
            if source:
                module = "" if site is None else site.module
                return CallSite(module, "backward", source, self._call_stack())
            if site is not None:
                if site.phase != "backward":
                    site = self._nodes[number] = CallSite(site.module, "backward", site.source, site.stack)
                return site
            owner = getattr(node, "variable", None)  # AccumulateGrad: the gradient of a parameter
            return CallSite(self._owners.get(id(owner), ""), "backward", self._source(), self._call_stack())
        source, stack = self._source(), self._call_stack()
        # A module that is called while a node runs is recomputed by checkpointing.
        phase = "backward" if node is not None else "forward" if top else "other"
        call_site = CallSite(top[0] if top else "", phase, source, stack)
        newest = _sequence_nr()
        if newest != self._last_node:
            # An autograd node is created before its operator runs, so the new nodes belong to this operator.
            for number in range(max(self._last_node, newest - 16), newest):
                self._nodes[number] = call_site
            self._last_node = newest
        return call_site

    def name(self, module: str, base: str) -> str:
        """Return the name of an operator. To be called once per operator, because it counts the operator."""
        return operator_name(module, base, self.count(module, base))

    def count(self, module: str, base: str) -> int:
        """Count an operator. Return how many operators with the same module and base came before it in this step."""
        key = (module, base)
        counts = self._counts
        count = counts.get(key, 0)
        counts[key] = count + 1
        return count

    def _source(self) -> str:
        # 3 skips the frames of this function, of `call_site` and of its caller in the mode. On threads of autograd
        # there may be no user code.
        frame: Any = sys._getframe(3)
        libraries = self._libraries
        while frame is not None:
            code = frame.f_code
            if id(code) not in libraries and self._is_user_code(code):
                # The line is cached, because Python scans a table to compute a line number.
                key = (id(code), frame.f_lasti)
                line = self._lines.get(key)
                if line is None:
                    line = self._lines[key] = f"{code.co_filename}:{frame.f_lineno}"
                return line
            frame = frame.f_back
        return ""

    def _source_in_node(self) -> str:
        """Return the line of user code that an autograd node runs, such as the backward of an `autograd.Function`.

        "" if the node runs no user code.
        """
        frame: Any = sys._getframe(3)
        libraries = self._libraries
        while frame is not None:
            code = frame.f_code
            key = id(code)
            if key not in libraries:
                if key in _ENGINE:
                    return ""
                if self._is_user_code(code):
                    return f"{code.co_filename}:{frame.f_lineno}"
            frame = frame.f_back
        return ""

    def _is_user_code(self, code: CodeType) -> bool:
        """Return True for user code, see `is_user_code`; remember other code in `_libraries`."""
        key = id(code)
        if key not in self._user_code and key not in _ENGINE:
            (self._user_code if is_user_code(code.co_filename) else self._libraries)[key] = code
        return key in self._user_code

    def _call_stack(self) -> bytes:
        """Return the user's functions on the call stack as a JSON list, innermost first.

        Returns b"" if call stacks are not recorded.
        """
        if not self._with_stacks:
            return b""
        frame: Any = sys._getframe(3)
        key: list[int] = []
        frames: list[Any] = []
        while frame is not None and len(frames) < _MOST_FRAMES:
            code = frame.f_code
            if id(code) not in self._libraries and self._is_user_code(code):
                key += (id(code), frame.f_lasti)
                frames.append(frame)
            frame = frame.f_back
        text = self._call_stacks.get(tuple(key))
        if text is None:
            codes = [(frame.f_code, frame.f_lineno) for frame in frames]
            texts = [encodable(f"{code.co_filename}:{line} in {code.co_name}") for code, line in codes]
            text = self._call_stacks[tuple(key)] = json.dumps(texts).encode()
        return text
