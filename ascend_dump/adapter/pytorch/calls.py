"""Detect the top-level calls of a module, which are its steps, without changing the module or its copies."""

from __future__ import annotations

import functools
import sys
import warnings
from typing import Any, Callable, Optional

import torch
from torch.jit import _recursive

__all__ = ["Watch", "is_compiled", "is_root_call", "keep_hooks_quiet"]

_current_node = torch._C._current_autograd_node
#: The attribute that `Module.compile()` sets. Its value is called in place of the hooks and `forward`.
_COMPILED_CALL = "_compiled_call_impl"
_ABSENT = object()
#: The code object that runs in every call of a module. It is used to find calls on the stack.
_CALL_CODE = torch.nn.Module._call_impl.__code__


class Watch:
    """Calls `called(entered)` at the beginning of each top-level call of the target, until `remove`.

    entered: True if global module hooks that are registered inside `called` are still called for this call.
    """

    def __init__(self, target: torch.nn.Module, called: Callable[[bool], None]) -> None:
        self._target = target
        self._called = called
        self._replaced_call = getattr(target, _COMPILED_CALL, None)
        if self._replaced_call is None and isinstance(target, torch.jit.ScriptModule):
            self._replaced_call = target._call_impl
        if self._replaced_call is None:
            handle = target.register_forward_pre_hook(_PreHook(self), prepend=True)
            show_again = _hide_from_script()

            def remove() -> None:
                handle.remove()
                show_again()

            self._remove: Callable[[], None] = remove
        else:
            # `target.compile()` compiles the hooks with the module and does not notice new hooks; script modules
            # support no hooks.
            self._before = target.__dict__.get(_COMPILED_CALL, _ABSENT)
            self._installed = self._call
            target.__dict__[_COMPILED_CALL] = self._installed
            self._remove = self._restore

    def remove(self) -> None:
        remove, self._remove = self._remove, _do_nothing
        remove()

    def on_call(self, module: torch.nn.Module, entered: bool) -> None:
        # While a function is compiled, hooks are traced, not called. Our operators must not get into the graph.
        if torch.compiler.is_compiling():
            return
        # `module` may be another one: a shallow copy or a replica of DataParallel shares the target's hooks.
        if module is self._target and _is_top_level(module, running=not entered):
            self._called(entered)

    def _call(self, *args: Any, **kwargs: Any) -> Any:
        self.on_call(self._target, True)
        return self._replaced_call(*args, **kwargs)  # type: ignore[misc]  # not None where this is installed

    def _restore(self) -> None:
        attributes = self._target.__dict__
        # If the program has compiled the module again during the capture, the result of that is kept.
        if attributes.get(_COMPILED_CALL) is self._installed:
            if self._before is _ABSENT:
                del attributes[_COMPILED_CALL]
            else:
                attributes[_COMPILED_CALL] = self._before


class _PreHook:
    """The forward pre-hook on the target."""

    __slots__ = ("_watch",)

    def __init__(self, watch: Watch) -> None:
        self._watch = watch

    def __call__(self, module: torch.nn.Module, args: Any) -> None:
        self._watch.on_call(module, False)

    def __deepcopy__(self, memo: Any) -> _Copied:
        return _Copied()

    def __reduce__(self) -> Any:
        # A saved model must be loadable without this package. So another hook is saved instead, which needs only
        # Python's standard library: `{}.get(module, args)` returns `args` unchanged.
        return functools.partial, (dict.get, {})


class _Copied:
    """The hook of a deep copy of the target. It removes itself when it is called."""

    def __call__(self, module: torch.nn.Module, args: Any) -> None:
        hooks = module._forward_pre_hooks
        for key in [key for key, hook in hooks.items() if hook is self]:
            del hooks[key]


#: One entry per watch. Hooks are hidden while this list is not empty. Watches may end in any order, so the last one
#: that ends restores PyTorch's function.
_hiding: list[object] = []


def _hide_from_script() -> Callable[[], None]:
    """Hide our hooks from `torch.jit.script`, which would compile them. Return a function that ends this."""
    if not _hiding:
        _recursive.create_script_module = _without_hooks(_recursive.create_script_module)
    token = object()
    _hiding.append(token)

    def show_again() -> None:
        _hiding.remove(token)
        if not _hiding:
            _recursive.create_script_module = _recursive.create_script_module.__wrapped__

    return show_again


def _without_hooks(create: Any) -> Any:
    @functools.wraps(create)
    def created(nn_module: torch.nn.Module, *args: Any, **kwargs: Any) -> Any:
        hidden = []
        for module in nn_module.modules():
            hooks = module._forward_pre_hooks
            if any(isinstance(hook, (_PreHook, _Copied)) for hook in hooks.values()):
                hidden.append((hooks, dict(hooks)))
        try:
            for hooks, before in hidden:
                for key, hook in before.items():
                    if isinstance(hook, (_PreHook, _Copied)):
                        del hooks[key]
            return create(nn_module, *args, **kwargs)
        finally:
            for hooks, before in hidden:
                hooks.clear()
                hooks.update(before)

    return created


def _do_nothing() -> None:
    return None


def is_root_call(*, running: bool = True) -> bool:
    """Return True if the current call is nested neither in a call of another module nor in a backward pass.

    running: True if the call itself is on the stack already, because one of its hooks calls this function.
    """
    return _current_node() is None and _count_calls(None, 1 + running) <= running


def _is_top_level(module: torch.nn.Module, *, running: bool) -> bool:
    """Return True if this call of `module` is nested neither in another call of it nor in a backward pass.

    A call in a backward pass is a recomputation by checkpointing. running: True if the call itself is on the stack.
    """
    return _current_node() is None and _count_calls(module, 1 + running, running) <= running


def _count_calls(module: Optional[torch.nn.Module], enough: int, is_own: bool = False) -> int:
    """Count the calls of the module (None: of any module) on the stack of this thread, up to `enough`.

    The stack is searched, because a counter of open calls would be wrong after a KeyboardInterrupt: PyTorch does not
    report the end of a call that it interrupts.

    is_own: True if the first call on the stack is known to be a call of the module
    """
    calls = 0
    frame: Any = sys._getframe(1)
    while frame is not None and calls < enough:
        # Reading the variables of a frame copies them, which takes longer than the search. So they are not read if
        # `is_own` says that the first call on the stack is a call of the module.
        if frame.f_code is _CALL_CODE and (is_own or module is None or frame.f_locals.get("self") is module):
            calls += 1
            is_own = False
        frame = frame.f_back
    return calls


def is_compiled(target: torch.nn.Module) -> bool:
    """Return True if torch.compile was applied to the target or to a part of it. Imports nothing."""
    if "torch._dynamo" not in sys.modules:
        return False
    from torch._dynamo import OptimizedModule

    return any(
        isinstance(module, OptimizedModule) or getattr(module, _COMPILED_CALL, None) is not None
        for module in target.modules()
    )


def keep_hooks_quiet() -> None:
    """Suppress PyTorch's warning that a compiled module calls global hooks twice: our hooks expect both calls."""
    warnings.filterwarnings("ignore", message=r"Using `torch\.compile\(module\)` when", category=UserWarning)
