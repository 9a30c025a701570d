"""Follow calls of functions compiled by `torch.compile`, which module hooks do not see."""

from __future__ import annotations

import functools
import inspect
from typing import Any, Callable, Union

import torch

__all__ = ["Around", "Root", "call_followed", "follow_compiled", "keep_compiled", "module_of"]

#: The object of a top-level call: a module, or the original of a compiled function.
Root = Union[torch.nn.Module, Callable[..., Any]]
#: A follower: a function that is called as around(root, function, args, kwargs) and runs the compiled `function`.
Around = Callable[[Root, Callable[..., Any], Any, Any], Any]

#: The current followers, the outermost last.
_arounds: list[Around] = []
#: True if functions that are compiled while there is no follower can be followed later.
_follows_later = False
#: The function that replaces `torch.compile`.
_patched: Any = None


def follow_compiled(around: Around) -> Callable[[], None]:
    """From now on, pass calls of functions compiled by `torch.compile` to `around(root, function, args, kwargs)`.

    root: the module if it was compiled in place (`module.compile()`), else the original function.

    Modules that were passed to `torch.compile` are not included, because PyTorch calls their hooks before the compiled
    code. Functions that were compiled earlier are included only if `keep_compiled` had been called before. Returns a
    function that removes the follower `around`.
    """
    _note_compiled()
    _arounds.append(around)

    def end() -> None:
        if around in _arounds:
            _arounds.remove(around)
        _forget_compiled()

    return end


def keep_compiled() -> None:
    """Make functions compiled from now on visible to every follower, including later ones.

    Each of their calls then passes through one more Python function.
    """
    global _follows_later
    _follows_later = True
    _note_compiled()


def call_followed(root: Root, function: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    """Call a compiled function through the current followers."""
    for around in tuple(_arounds):
        function = functools.partial(_through, around, root, function)
    return function(*args, **kwargs)


def _through(around: Around, root: Root, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    return around(root, function, args, kwargs)


def _note_compiled() -> None:
    global _patched
    if _patched is not None and torch.compile is _patched:
        return
    original = torch.compile

    @functools.wraps(original)
    def compile_followed(model: Any = None, *args: Any, **kwargs: Any) -> Any:
        compiled = original(model, *args, **kwargs)
        # Without a model torch.compile returns a decorator, which calls this function again; with `disable=True` it
        # returns the model unchanged.
        return _followed(model, compiled) if inspect.isroutine(model) and compiled is not model else compiled

    torch.compile = _patched = compile_followed


def _forget_compiled() -> None:
    # If another library has replaced our function in the meantime, nothing is restored: its function calls ours.
    if _patched is not None and not _arounds and not _follows_later and torch.compile is _patched:
        torch.compile = _patched.__wrapped__


def _followed(original: Any, result: Any) -> Any:
    root = _root(original)

    @functools.wraps(result)
    def compiled(*args: Any, **kwargs: Any) -> Any:
        # While another function is compiled, this function is traced. Our operators must not get into that graph.
        if torch.compiler.is_compiling() or not _arounds:
            return result(*args, **kwargs)
        return call_followed(root, result, args, kwargs)

    return compiled


def module_of(module: torch.nn.Module) -> torch.nn.Module:
    """Return the original of a module that `torch.compile` has wrapped; other modules are returned unchanged."""
    inner = getattr(module, "_orig_mod", None)
    return inner if isinstance(inner, torch.nn.Module) and type(module).__name__ == "OptimizedModule" else module


def _root(function: Any) -> Root:
    owner = getattr(function, "__self__", None)
    if isinstance(owner, torch.nn.Module) and function.__name__ == "_call_impl":
        return owner
    return function
