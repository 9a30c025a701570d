"""Compile a module in place for the time of a capture, and inspect a module without running it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Callable, Optional

__all__ = ["InPlace", "calls_of", "find_compiled", "find_scopes", "is_compilable", "steering_exceptions", "uses_cache"]

_IMPL = "_compiled_call_impl"
_CACHE_MODULE = "inference._cache_compiler"


class InPlace:
    """Makes calls of a module run its compiled form, until `remove`."""

    def __init__(self, target: Any, compiled: Callable[..., Any]) -> None:
        self._target = target
        self._compiled: Optional[Callable[..., Any]] = compiled
        self._put = self._call
        target.__dict__[_IMPL] = self._put

    def _call(self, *args: Any, **kwargs: Any) -> Any:
        compiled = self._compiled
        return (self._target._call_impl if compiled is None else compiled)(*args, **kwargs)

    def remove(self) -> None:
        """Restore the eager module, unless the program has compiled it again in the meantime."""
        self._compiled = None
        if self._target.__dict__.get(_IMPL) is self._put:
            del self._target.__dict__[_IMPL]


def calls_of(target: Any) -> Callable[..., Any]:
    """Return a function that calls the module, to be compiled.

    `_call_impl` itself is not passed to the compiler, because PyTorch does not compile it for modules of its own, such
    as Sequential.
    """

    def call(*args: Any, **kwargs: Any) -> Any:
        return target._call_impl(*args, **kwargs)

    return call


def steering_exceptions() -> tuple[type[Exception], ...]:
    """Return the exceptions that make PyTorch restart its analysis of a frame, or skip the frame.

    They are not failures, so a wrapper of a backend must not catch them. Since PyTorch 2.1 the exceptions that restart
    the analysis have a common base class. One of them, TensorifyScalarRestartAnalysis (dynamic shapes), is raised
    inside a backend.
    """
    import torch._dynamo.exc as exc

    return tuple(getattr(exc, name) for name in ("RestartAnalysis", "SkipFrame") if hasattr(exc, name))


def is_compilable(target: Any) -> bool:
    """Return True if the module can be compiled in place. Script modules cannot, and no module before PyTorch 2.1."""
    import torch

    return hasattr(torch.nn.Module, _IMPL) and not isinstance(target, torch.jit.ScriptModule)


def find_compiled(target: Any) -> Optional[str]:
    """Return a description of the part of the module that is compiled already; None if no part is."""
    from torch._dynamo import OptimizedModule

    for name, module in target.named_modules():
        if isinstance(module, OptimizedModule) or getattr(module, _IMPL, None) is not None:
            return f"its part {name!r}" if name else "the module"
    return None


def find_scopes(target: Any) -> Iterator[str]:
    """Yield the `forward` methods that mention `data_dump`, torchair's scope."""
    codes = set()
    for module in target.modules():
        code = getattr(getattr(type(module), "forward", None), "__code__", None)
        if code is not None and code not in codes and "data_dump" in code.co_names:
            codes.add(code)
            yield f"{type(module).__qualname__}.forward"


def uses_cache(target: Any) -> bool:
    """Return True if an attribute of a module is a result of torchair.inference.cache_compile."""
    values = (value for module in target.modules() for value in vars(module).values())
    return any(type(value).__module__.endswith(_CACHE_MODULE) for value in values)
