"""Outputs that differ although both sides computed them correctly, each from its own inputs.

A comparison or a sort returns bools or indices, so that the smallest difference in its inputs can change an element
altogether; elements that are equal may be sorted in any order; and the remainder of a division jumps where a tiny
change of the divisor makes the quotient one larger.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Optional

from ascend_dump.analysis.numerics.float_types import float_kind
from ascend_dump.analysis.operators.arguments import arguments_of, differing_arguments
from ascend_dump.analysis.operators.operator import Operator
from ascend_dump.analysis.operators.properties import operator_class
from ascend_dump.analysis.pairing.same_framework import Match
from ascend_dump.errors import AscendDumpError
from ascend_dump.reading import Record

if TYPE_CHECKING:
    import numpy as np

__all__ = ["why_both_are_right"]

_COMPARISONS = {
    "eq": "equal",
    "ge": "greater_equal",
    "gt": "greater",
    "le": "less_equal",
    "lt": "less",
    "ne": "not_equal",
    "Equal": "equal",
    "Greater": "greater",
    "GreaterEqual": "greater_equal",
    "Less": "less",
    "LessEqual": "less_equal",
    "NotEqual": "not_equal",
}
#: Operators whose result jumps where rounding the number they are called with makes the quotient one larger.
_REMAINDERS = {"fmod": "fmod", "remainder": "remainder"}
#: Operators whose output 1 says where along an axis output 0 was taken from input 0.
_CHOICES = frozenset(
    {"cummax", "cummin", "kthvalue", "max", "median", "min", "mode", "nanmedian", "sort", "topk", "TopK"}
)


def why_both_are_right(match: Match, a: Record, b: Record) -> Optional[str]:
    """Why two outputs that differ are both right, each for the inputs of its own operator; None if one is wrong, or if
    that cannot be told."""
    name = operator_class(match.reference.op_type)
    if operator_class(match.actual.op_type) != name:
        return None
    if not all(one.is_rounding for one in differing_arguments(match.actual, match.reference)):
        return None
    check: Optional[Callable[[Operator, Record], bool]] = None
    if name in _COMPARISONS:
        check, reason = _compares, "each side is right for its own inputs, which differ by rounding"
    elif name in _CHOICES and a.index == b.index == 1:
        check, reason = _chooses, "the elements at these places are equal: any of them is right"
    elif name in _REMAINDERS:
        check, reason = (
            _remains,
            "each side is right for the number it was called with, as it is or as kernels round it",
        )
    if check is None:
        return None
    try:
        both = check(match.actual, a) and check(match.reference, b)
    except (AscendDumpError, TypeError, ValueError, IndexError):
        return None
    return reason if both else None


def _compares(operator: Operator, output: Record) -> bool:
    import numpy as np

    given = {record.index: record.numpy() for record in operator.inputs}
    compared = getattr(np, _COMPARISONS[operator_class(operator.op_type)])
    if 0 not in given:
        return False
    x, found = given[0], output.numpy()
    others = [_wide(given[1])] if 1 in given else _numbers(operator, x.dtype)
    return any(np.array_equal(np.broadcast_to(compared(_wide(x), other), found.shape), found) for other in others)


def _remains(operator: Operator, output: Record) -> bool:
    import numpy as np

    kind = float_kind(output.dtype or "")
    read = [record for record in operator.inputs if record.index == 0]
    if kind is None or not read:
        return False
    x, found = read[0].numpy(), _wide(output.numpy())
    left = getattr(np, _REMAINDERS[operator_class(operator.op_type)])
    every = (left(_wide(x), number) for number in _numbers(operator, x.dtype))
    tiny = math.ldexp(1.0, kind.lowest - kind.mantissa)
    return any(np.allclose(found, one, rtol=2 * kind.unit, atol=tiny, equal_nan=True) for one in every)


def _numbers(operator: Operator, dtype: np.dtype[Any]) -> Iterator[Any]:
    """The number that an operator was called with: as it was given, and as kernels may round it."""
    import numpy as np

    known = arguments_of(operator)
    number = None if known is None else known.values.get("other")
    if isinstance(number, (int, float)):
        yield number
        yield _wide(np.asarray(number).astype(dtype))
        yield np.float64(np.float32(number))


def _chooses(operator: Operator, output: Record) -> bool:
    import numpy as np

    read = next((one for one in operator.inputs if one.index == 0), None)
    made = next((one for one in operator.outputs if one.index == 0), None)
    if read is None or made is None:
        return False
    x, values, places = read.numpy(), made.numpy(), output.numpy()
    if values.shape != places.shape or places.size == 0 or places.dtype.kind not in "iu":
        return False
    for axis in range(x.ndim):
        at, there = (one if one.ndim == x.ndim else np.expand_dims(one, axis) for one in (places, values))
        fits = all(size == other for i, (size, other) in enumerate(zip(x.shape, at.shape)) if i != axis)
        if fits and at.min() >= 0 and at.max() < x.shape[axis]:
            taken = np.take_along_axis(x, at, axis)
            if np.array_equal(_wide(taken), _wide(there), equal_nan=True):
                return True
    return False


def _wide(array: np.ndarray) -> np.ndarray:
    """Floats as float64: numpy knows no operations of some of them."""
    import numpy as np

    return array.astype(np.float64) if array.dtype.kind in "fV" else array
