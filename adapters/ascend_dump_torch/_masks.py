"""Recognise operators that only create or pass on a mask, by the rules of `ascend_dump.statistics.nonfinite.masks`.

The scene `overflow` does not record these operators. An operator that produces NaN is never one of them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from ascend_dump.statistics.nonfinite import masks

__all__ = ["is_mask"]


def is_mask(
    base: str, views: bool, inputs: Sequence[torch.Tensor], numbers: Sequence[float], outputs: Sequence[torch.Tensor]
) -> bool:
    """Return True if an operator with NaN or Inf in its outputs only created or passed on a mask.

    base     name of the operator without namespace and overload
    views    True if its outputs are views of its inputs
    inputs   its input tensors, with the values that they had before it ran
    numbers  its number arguments with the value NaN or Inf
    outputs  its outputs with NaN or Inf
    """
    if any(map(math.isnan, numbers)):
        # An argument that is NaN makes no mask. Only rules that ignore the inputs (`unasked`) ignore numbers too.
        rule = masks.rule_of(base)
        if rule is None or not rule.unasked:
            return False
    return masks.is_mask(base, views, map(_part, inputs), bool(numbers), [_part(tensor) for tensor in outputs])


def _part(tensor: torch.Tensor) -> masks.Part:
    elements = tensor.numel()
    if not tensor.is_floating_point() or not elements or tensor.is_meta:
        return masks.Part(elements, None if tensor.is_complex() else 0)
    if tensor.layout is not torch.strided or tensor.is_nested:
        return masks.Part(elements, None)
    if tensor.element_size() == 1:
        tensor = tensor.float()
    if bool(torch.isnan(tensor).any()):
        return masks.Part(elements, None)
    infinite = int(torch.isinf(tensor).sum().item())
    negative = int((tensor == -math.inf).sum().item())
    return masks.Part(elements, negative, infinite - negative)
