"""Which operators of the scene `overflow` only make or carry a mask, by `ascend_dump.nonfinite.masks`.

An operator that gives NaN or +Inf is never taken for one of these, nor one that gives more -Inf than it was given.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Optional

import torch

from ascend_dump.nonfinite import masks

__all__ = ["is_mask"]

_NEGATIVE = -float("inf")


def is_mask(
    base: str, views: bool, given: Sequence[torch.Tensor], numbers: Sequence[float], made: Sequence[torch.Tensor]
) -> bool:
    """Whether an operator that gave NaN or Inf only made or carried a mask.

    base     its name without namespace and overload; views: whether its outputs are views of what it was given
    given    its input tensors as it read them, numbers: those that are not finite
    made     its outputs that are not finite
    """
    if any(number != _NEGATIVE for number in numbers):
        # Where nothing is asked of the inputs, nothing is asked of the numbers either.
        rule = masks.rule_of(base)
        if rule is None or not rule.unasked:
            return False
    return masks.is_mask(base, views, map(_part, given), bool(numbers), [_part(tensor) for tensor in made])


def _part(tensor: torch.Tensor) -> masks.Part:
    return masks.Part(tensor.numel(), _negative_only(tensor))


def _negative_only(tensor: torch.Tensor) -> Optional[int]:
    """How many -Inf are in a tensor; None where NaN or +Inf is, or where nobody can tell."""
    if not tensor.is_floating_point() or not tensor.numel() or tensor.is_meta:
        return None if tensor.is_complex() else 0
    if tensor.layout is not torch.strided:
        return None
    if tensor.element_size() == 1:
        tensor = tensor.float()
    negative = int((tensor == _NEGATIVE).sum().item())
    finite = int(torch.isfinite(tensor).sum().item())
    return negative if negative + finite == tensor.numel() else None
