"""Calls of compiled functions: they do not pass through the hooks of modules, or not before they are compiled."""

from __future__ import annotations

import functools
import inspect
from typing import Any, Callable, Union

import torch

__all__ = ["Root", "follow_compiled", "module_of"]

#: What a program calls at the top: a module, or a compiled function.
Root = Union[torch.nn.Module, Callable[..., Any]]


def follow_compiled(around: Callable[[Root, Callable[..., Any], Any, Any], Any]) -> Callable[[], None]:
    """From now on `torch.compile` makes functions that run as `around(root, function, args, kwargs)`.

    root: the module whose call was compiled in place (`module.compile()`), else the function as it was
    given. Modules given to `torch.compile` are left alone: PyTorch calls their hooks before the compiled
    code. Returns what ends it, for functions made meanwhile too.
    """
    original = torch.compile
    following = True

    def follow(given: Any, made: Any) -> Any:
        root = _root(given)

        @functools.wraps(made)
        def compiled(*args: Any, **kwargs: Any) -> Any:
            # Inside another compiled function this one is traced; what we do must not reach the graph.
            if torch.compiler.is_compiling() or not following:
                return made(*args, **kwargs)
            return around(root, made, args, kwargs)

        return compiled

    @functools.wraps(original)
    def compile_followed(model: Any = None, *args: Any, **kwargs: Any) -> Any:
        made = original(model, *args, **kwargs)
        # Without a model it gives a decorator, which comes here again; `disable=True` gives the function itself.
        return follow(model, made) if inspect.isroutine(model) and made is not model else made

    def end() -> None:
        nonlocal following
        following = False
        if torch.compile is compile_followed:
            torch.compile = original

    torch.compile = compile_followed
    return end


def module_of(module: torch.nn.Module) -> torch.nn.Module:
    """The module itself, of one that `torch.compile` has wrapped."""
    inner = getattr(module, "_orig_mod", None)
    return inner if isinstance(inner, torch.nn.Module) and type(module).__name__ == "OptimizedModule" else module


def _root(given: Any) -> Root:
    owner = getattr(given, "__self__", None)
    if isinstance(owner, torch.nn.Module) and given.__name__ == "_call_impl":
        return owner
    return given
