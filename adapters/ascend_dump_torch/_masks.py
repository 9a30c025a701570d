"""Which operators of the scene `overflow` only make or carry a mask: -Inf that the program asked for.

Attention masks its scores with -Inf on every step, which softmax makes zeros of. An operator that gives NaN or +Inf is
never taken for one of these, nor one that gives more -Inf than it was given.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Optional

import torch

__all__ = ["RULES", "MaskRule", "is_mask"]

_NEGATIVE = -float("inf")


class MaskRule(NamedTuple):
    """Operators for which -Inf in an output means nothing, and when.

    spread     whether one -Inf that they are given may stand in any number of places: they fill it in
    unasked    whether they need not be given any
    """

    why: str
    operators: frozenset[str]
    spread: bool = False
    unasked: bool = False


RULES = (
    MaskRule(
        "fills in values of the program's choice",
        frozenset(
            (
                *("masked_fill", "masked_fill_", "where", "full", "full_like", "new_full", "fill", "fill_"),
                *("index_fill", "index_fill_", "index_put", "index_put_", "_index_put_impl_", "masked_scatter_"),
                *("scalar_tensor", "lift_fresh", "lift_fresh_copy", "constant_pad_nd", "copy_", "copy"),
            )
        ),
        spread=True,
    ),
    MaskRule(
        "moves or repeats elements as they are",
        frozenset(
            (
                *(
                    "triu",
                    "tril",
                    "triu_",
                    "tril_",
                    "clone",
                    "_to_copy",
                    "cat",
                    "stack",
                    "repeat",
                    "expand_copy",
                    "roll",
                ),
                *("index", "index_select", "gather", "flip", "slice_scatter", "select_scatter", "_reshape_copy"),
                *("sort", "topk", "amax", "max", "_unsafe_index", "contiguous", "lift", "_foreach_copy_"),
            )
        ),
    ),
    MaskRule(
        "adds scores to a mask, or scales what was masked",
        frozenset(
            ("add", "add_", "sub", "sub_", "mul", "mul_", "div", "div_", "minimum", "maximum", "clamp", "clamp_max")
        ),
    ),
    MaskRule(
        "keeps the masked places of a row at -Inf",
        frozenset(("_log_softmax", "logsumexp", "log_sigmoid_forward", "logaddexp")),
    ),
    MaskRule(
        "begins a recursion over logarithms of probabilities with that of zero",
        frozenset(("_ctc_loss", "_cudnn_ctc_loss")),
        unasked=True,
    ),
)
_VIEWS = MaskRule("is a view", frozenset())
_BY_NAME = {name: rule for rule in RULES for name in rule.operators}


def is_mask(
    base: str, views: bool, given: Sequence[torch.Tensor], numbers: Sequence[float], made: Sequence[torch.Tensor]
) -> bool:
    """Whether an operator that gave NaN or Inf only made or carried a mask.

    base     its name without namespace and overload; views: whether its outputs are views of what it was given
    given    its input tensors as it read them, numbers: those that are not finite
    made     its outputs that are not finite
    """
    rule = _BY_NAME.get(base) or (_VIEWS if views else None)
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
