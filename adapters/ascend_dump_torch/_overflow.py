"""Checks of the scene `overflow`: NaN and Inf in tensors, and the steps to record."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any, Optional

import torch

from ascend_dump_torch.memory.layouts import storages_of

__all__ = ["Aftermath", "copy_overwritten", "nonfinite", "nonfinite_numbers", "read_number"]

#: Floating-point types without Inf and NaN.
_FINITE_ONLY = {getattr(torch, name) for name in ("float4_e2m1fn_x2",) if hasattr(torch, name)}
#: The dtypes of almost all tensors. Their elements can be added without a conversion.
_COMMON = frozenset((torch.float32, torch.bfloat16, torch.float16, torch.float64))
_strided = torch.strided
#: PyTorch's own `Tensor.item`. `_value_hooks` replaces `torch.Tensor.item`, which must not be called here.
read_number = torch._C.TensorBase.item


def copy_overwritten(inputs: list[torch.Tensor], written: list[torch.Tensor]) -> dict[int, torch.Tensor]:
    """Return copies of the inputs that share memory with `written`, by position."""
    memory = {storage._cdata for tensor in written for storage in storages_of(tensor)}
    return {
        i: tensor.clone()
        for i, tensor in enumerate(inputs)
        if any(storage._cdata in memory for storage in storages_of(tensor))
    }


def nonfinite(tensor: torch.Tensor) -> bool:
    """Return True if a tensor of any layout has NaN or Inf. Waits for the tensor's device."""
    if tensor.is_meta:
        return False
    if tensor.layout is not _strided or tensor.is_nested:
        values = elements(tensor)
        if values is None:
            return False
        tensor = values
    if tensor.dtype not in _COMMON:
        if not (tensor.is_floating_point() or tensor.is_complex()) or tensor.dtype in _FINITE_ONLY:
            return False
        if tensor.element_size() == 1:  # float8 has no arithmetic
            tensor = tensor.float()
        elif tensor.is_complex():  # complex32 has none either
            tensor = torch.view_as_real(tensor.resolve_conj())
    # A sum is the fastest check and misses nothing. It may overflow although all elements are finite, so a second check
    # follows if the sum is not finite.
    return not math.isfinite(read_number(tensor.sum())) and not bool(torch.isfinite(tensor).all())


def elements(tensor: torch.Tensor) -> Optional[torch.Tensor]:
    """Return the elements that a sparse or nested tensor stores, as a dense tensor; None if PyTorch cannot do that."""
    if tensor.layout is torch.sparse_coo:
        return tensor._values()
    try:
        if tensor.layout is torch._mkldnn:
            return tensor.to_dense()
        return tensor.values()
    except (NotImplementedError, RuntimeError):
        return None


def nonfinite_numbers(args: Iterable[Any]) -> list[float]:
    return [value for value in args if isinstance(value, float) and not math.isfinite(value)]


class Aftermath:
    """Limits recording to the first of consecutive steps with NaN or Inf, and `keep` steps after it.

    `followed` counts the operators of the steps that are left out.
    """

    def __init__(self, keep: int) -> None:
        self._keep = keep
        #: Number of consecutive steps with NaN or Inf directly before the open step.
        self._before = 0
        #: True if an operator of the open step had NaN or Inf.
        self._found = False
        self.followed = 0

    def begin_step(self) -> None:
        self._before = self._before + 1 if self._found else 0
        self._found = False

    def records(self) -> bool:
        """Note an operator with NaN or Inf. Returns True if it must be recorded."""
        self._found = True
        if self._before > self._keep:
            self.followed += 1
            return False
        return True
