"""Wrap methods of MindSpore's two executors of root graphs: one for cells, one for functions under `jit`.

The executors are private, so the methods are wrapped only if this version of MindSpore has all of them.
"""

from __future__ import annotations

import functools
import sys
from typing import Any, Callable

__all__ = ["Method", "Wrapped", "find"]

#: The name of a class and of its method.
Method = tuple[str, str]
#: A function that is called as around(original method, arguments, keyword arguments) and returns the method's result.
Around = Callable[[Callable[..., Any], tuple[Any, ...], dict[str, Any]], Any]

#: The name of the module with the executors: since MindSpore 2.10, and in earlier versions.
_MODULES = ("mindspore.graph.api", "mindspore.common.api")


def find(methods: tuple[Method, ...]) -> list[tuple[type, str]]:
    """Return (class, name of the method) for each of these methods; [] unless this MindSpore has all of them."""
    for module in map(sys.modules.get, _MODULES):
        owners = [(getattr(module, owner, None), name) for owner, name in methods]
        if all(isinstance(owner, type) and name in owner.__dict__ for owner, name in owners):
            return [(owner, name) for owner, name in owners if owner is not None]
    return []


class Wrapped:
    """Makes calls of these methods go through `around`, until `remove()`."""

    def __init__(self, methods: tuple[Method, ...], around: Around) -> None:
        self._replaced: list[tuple[type, str, Any, Any]] = []
        for owner, name in find(methods):
            original = owner.__dict__[name]
            wrapped = _wrapped(original, around)
            setattr(owner, name, wrapped)
            self._replaced.append((owner, name, original, wrapped))

    def remove(self) -> None:
        replaced, self._replaced = self._replaced, []
        for owner, name, original, wrapped in replaced:
            # Not if something else has wrapped our wrapper in the meantime.
            if owner.__dict__.get(name) is wrapped:
                setattr(owner, name, original)


def _wrapped(original: Callable[..., Any], around: Around) -> Callable[..., Any]:
    @functools.wraps(original)
    def run(*args: Any, **kwargs: Any) -> Any:
        return around(original, args, kwargs)

    return run
