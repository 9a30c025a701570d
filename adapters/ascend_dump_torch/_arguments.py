"""Find the tensors among the arguments and results of an operator."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from ascend_dump_torch.memory.layouts import is_plain

__all__ = ["collect", "collect_named", "has_own_kernels", "with_others"]

_Tensor = torch.Tensor
_Parameter = torch.nn.Parameter
#: Common types of arguments that contain no tensors: a lookup here is faster than isinstance.
_NO_TENSORS = frozenset(
    (bool, int, float, str, type(None), torch.dtype, torch.layout, torch.device, torch.memory_format)
)


def collect(values: Any, tensors: list[torch.Tensor]) -> None:
    """Append the tensors in `values` to `tensors`, in order. Nested lists and tuples are searched too."""
    for value in values:
        kind = type(value)
        if kind is _Tensor or kind is _Parameter:
            tensors.append(value)
        elif kind in _NO_TENSORS:
            pass
        elif isinstance(value, _Tensor):
            tensors.append(_base(value))
        elif isinstance(value, (tuple, list)):
            collect(value, tensors)


def with_others(values: Any, replacements: Iterator[torch.Tensor]) -> Any:
    """Return a copy of `values` in which the tensors that `collect` finds are replaced by `replacements`, in order."""
    return [_with_other(value, replacements) for value in values]


def _with_other(value: Any, replacements: Iterator[torch.Tensor]) -> Any:
    if isinstance(value, _Tensor):
        return next(replacements)
    if isinstance(value, (tuple, list)):
        return type(value)(with_others(value, replacements)) if type(value) in (tuple, list) else value
    return value


def collect_named(value: Any, name: str, tensors: list[torch.Tensor], names: list[str]) -> None:
    """Do the same as `collect` for one argument, and append a name for each tensor to `names`, such as `grads[2]`."""
    kind = type(value)
    if kind is _Tensor or kind is _Parameter:
        tensors.append(value)
        names.append(name)
    elif isinstance(value, _Tensor):
        tensors.append(_base(value))
        names.append(name)
    elif isinstance(value, (tuple, list)):
        for i, item in enumerate(value):
            collect_named(item, f"{name}[{i}]", tensors, names)


def has_own_kernels(args: Any, kwargs: Any, devices: frozenset[str]) -> bool:
    """Return True if a composite operator may run a kernel of its own for these arguments instead of being decomposed.

    With tensors, it may if one of them is nested or on one of `devices`. Without tensors, it may if `devices` is not
    empty.
    devices: the types of devices for which the operator has a kernel of its own
    """
    tensors: list[torch.Tensor] = []
    collect(args, tensors)
    if kwargs:
        collect(kwargs.values(), tensors)
    if devices and (not tensors or any(tensor.device.type in devices for tensor in tensors)):
        return True
    return any(tensor.is_nested for tensor in tensors)


def _base(tensor: torch.Tensor) -> torch.Tensor:
    """Return a plain tensor with the same memory, because a subclass may override its shape and methods.

    A subclass that does not store its values itself is returned unchanged.
    """
    if not is_plain(type(tensor)):
        return tensor
    with torch._C.DisableTorchFunctionSubclass():
        return torch.Tensor.as_subclass(tensor, torch.Tensor)
