"""Judge results without rounding: integers, and outputs of operators that compute nothing but change the type."""

from __future__ import annotations

import math
from typing import Optional

from ascend_dump.analysis.numerics.arrangement import arrangement, have_other_bytes, is_dense
from ascend_dump.analysis.numerics.float_types import float_kind
from ascend_dump.analysis.numerics.permutations import IDENTITY
from ascend_dump.analysis.numerics.tensor_pair import Difference, type_of
from ascend_dump.analysis.operators.names import is_view, moves_elements
from ascend_dump.analysis.operators.operator import Operator
from ascend_dump.reading import Record

__all__ = ["why_not_moved", "why_other_integers"]


def why_not_moved(operator: Operator, a: Record, b: Record, difference: Difference) -> Optional[str]:
    """Return why an output of an operator that computes nothing is wrong; None if it is right, or nothing proves it.

    a, b: the output in actual and in the reference. The inputs have to be equal on both sides.
    """
    assert difference.measure is not None
    if not moves_elements(operator.function):
        return None
    dtypes = {record.dtype for record in operator.inputs}
    is_cast = a.dtype != b.dtype or ({dtype for dtype in dtypes if float_kind(dtype or "")} or dtypes) != {b.dtype}
    if difference.bounds:
        return None if is_cast else _why_not_same_bytes(operator, a, b)
    measure, kind = difference.measure, float_kind(type_of(a, b))
    # Devices may round numbers below the smallest normal one to zero.
    is_rounded = is_cast and kind is not None and measure.excess <= math.ldexp(1.0, kind.lowest)
    if not measure.unequal or measure.nonfinite or is_rounded:
        return None
    return f"{measure.unequal} of {measure.count} elements differ, although the operator computes nothing"


def why_other_integers(a: Record, b: Record, difference: Difference) -> Optional[str]:
    """Return why an output without rounding is wrong, if only statistics are recorded; None if nothing proves it.

    a, b: the output in actual and in the reference. Its inputs must not differ by rounding.
    """
    is_exact = a.dtype is not None and a.dtype == b.dtype and float_kind(a.dtype) is None
    if not (is_exact and difference.bounds and difference.layout == IDENTITY):
        return None
    return "the bytes differ, and the type has no rounding" if have_other_bytes(a, b) else None


def _why_not_same_bytes(operator: Operator, a: Record, b: Record) -> Optional[str]:
    sides = [arrangement(record) for record in (a, b)]
    if None in sides:
        return None
    (hash_a, *arrangement_a), (hash_b, *arrangement_b) = (side for side in sides if side is not None)
    if arrangement_a == arrangement_b and hash_a != hash_b and (is_view(operator.function) or is_dense(a)):
        return "the bytes differ, although the operator computes nothing"
    if arrangement_a != arrangement_b and hash_a == hash_b and is_view(operator.function):
        return "the elements or their order differ, although the operator computes nothing"
    return None
