"""Which operators of the scene `overflow` only make or carry a mask, by `ascend_dump.native.masks`.

An operator that gives NaN or +Inf is never taken for one of these, nor one that gives more -Inf than it was given.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Optional

import torch

from ascend_dump.native.masks import MaskRule, rule_of

__all__ = ["is_mask"]

_NEGATIVE = -float("inf")
_VIEWS = MaskRule("is a view", frozenset())


def is_mask(
    base: str, views: bool, given: Sequence[torch.Tensor], numbers: Sequence[float], made: Sequence[torch.Tensor]
) -> bool:
    """Whether an operator that gave NaN or Inf only made or carried a mask.

    base     its name without namespace and overload; views: whether its outputs are views of what it was given
    given    its input tensors as it read them, numbers: those that are not finite
    made     its outputs that are not finite
    """
    rule = rule_of(base) or (_VIEWS if views else None)
    if rule is None:
        return False
    found = [_negative_only(tensor) for tensor in made]
    if any(count is None for count in found):
        return False
    if rule.unasked:
        return True
    if any(number != _NEGATIVE for number in numbers):
        return False
    counts = [_negative_only(tensor) for tensor in given]
    if any(count is None for count in counts):
        return False
    if rule.spread:
        return bool(numbers) or any(counts)
    for tensor, count in zip(made, found):
        times = (-(-tensor.numel() // max(one.numel(), 1)) for one in given)
        if (count or 0) > sum((one or 0) * factor for one, factor in zip(counts, times)):
            return False
    return True


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
