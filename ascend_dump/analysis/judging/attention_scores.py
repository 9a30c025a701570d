"""Compare the scores of an attention by hand with those of a fused attention, which returns sums of exponentials.

The sum is recorded as its logarithm, one number for each query. It is what a backward pass needs of the scores.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any, Optional

import numpy as np

from ascend_dump.analysis.alignment.attention_parts import FUSED_ATTENTIONS, SOFTMAX
from ascend_dump.analysis.numerics.float_types import float_kind
from ascend_dump.analysis.operators.operator import Operator
from ascend_dump.analysis.operators.properties import operator_class
from ascend_dump.errors import AscendDumpError
from ascend_dump.reading import Record

__all__ = ["agreeing_scores"]

#: The largest relative distance of sums that agree: in rounding units, but at least _LEAST.
_UNITS, _LEAST = 64.0, 1e-4
#: Maximum number of scores of an attention that are read.
_MOST_SCORES = 1 << 24


def agreeing_scores(actual: Sequence[Operator], reference: Sequence[Operator]) -> Iterator[Record]:
    """Yield the tensors up to which an attention by hand and a fused attention agree.

    These are the scores that a softmax reads on one side, and the queries and keys that the other side reads.
    """
    for by_hand, fused in ((actual, reference), (reference, actual)):
        attentions = [operator for operator in fused if _sums(operator) is not None]
        for softmax in by_hand if attentions else ():
            if operator_class(softmax.op_type) in SOFTMAX and softmax.inputs:
                for attention in attentions:
                    if _agree(softmax.inputs[0], attention):
                        yield from (softmax.inputs[0], *attention.inputs[:2])


def _sums(operator: Operator) -> Optional[Record]:
    """Return the logarithms of the sums of exponentials that a fused attention returns; None if it returns none."""
    if operator_class(operator.op_type) not in FUSED_ATTENTIONS or len(operator.inputs) < 2:
        return None
    sums = next((output for output in operator.outputs if output.index == 1), None)
    is_float = sums is not None and float_kind(sums.dtype or "") is not None
    return sums if is_float else None


def _agree(scores: Record, attention: Operator) -> bool:
    """Return True if scores have the sums of a fused attention: a program may keep the keys in any axis."""
    sums, shape, kind = _sums(attention), scores.shape or (), float_kind(scores.dtype or "")
    if sums is None or kind is None or math.prod(shape) > _MOST_SCORES:
        return False
    axes = [axis for axis in range(len(shape)) if _wide(shape[:axis] + shape[axis + 1 :]) == _wide(sums.shape or ())]
    if not axes:
        return False
    try:
        values, expected = (record.numpy().astype(np.float64) for record in (scores, sums))
    except AscendDumpError:  # only statistics are recorded
        return False
    limit = max(_UNITS * kind.unit, _LEAST)
    return any(_are_near(values, expected.reshape(-1), axis, limit) for axis in axes)


def _are_near(scores: Any, expected: Any, axis: int, limit: float) -> bool:
    """Return True if the sums along an axis are those of the fused attention.

    Sums of equal scores tell nothing, so the distance is relative to what the scores add to them.
    """
    largest = scores.max(axis, keepdims=True)
    if not (np.isfinite(largest).all() and np.isfinite(expected).all()):
        return False
    sums = (np.log(np.exp(scores - largest).sum(axis, keepdims=True)) + largest).reshape(-1)
    size = np.linalg.norm(expected - math.log(scores.shape[axis]))
    return bool(size > 0 and np.linalg.norm(sums - expected) <= limit * size)


def _wide(shape: Sequence[int]) -> tuple[int, ...]:
    """Return a shape without axes of one element."""
    return tuple(length for length in shape if length != 1)
