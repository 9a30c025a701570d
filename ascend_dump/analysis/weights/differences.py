"""Measure the difference of two paired tensors, and classify it: cast, scaled, updated or different."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import TYPE_CHECKING, NamedTuple, Optional

from ascend_dump.analysis.numerics.float_types import float_kind, narrower
from ascend_dump.reading.weights import numpy_dtype

if TYPE_CHECKING:
    import numpy as np

__all__ = ["WeightDifference", "measured"]

#: Types to which a weight may have been rounded on its way, besides the types of both sides.
_ROUNDING = ("bfloat16", "float16")
#: Minimum number of distinct values of a cast tensor: a vector of ones is the rounding of any vector near it.
_FEWEST_VALUES = 3
#: Maximum relative L2 norm of an update. The relative L2 norm of the difference of unrelated random weights is 1.4.
_UPDATE = 0.3


class WeightDifference(NamedTuple):
    """The difference of paired elements.

    relation  "equal", "cast", "scaled", "updated" or "different"
    text      the difference in words
    unequal   number of elements that differ, of `total` elements
    relative  L2 norm of the difference, relative to the reference
    largest   largest absolute difference
    """

    relation: str
    text: str
    unequal: int
    total: int
    relative: float
    largest: float


def measured(pieces: Iterable[tuple[np.ndarray, np.ndarray]], dtype: str, reference_dtype: str) -> WeightDifference:
    """Measure the difference of paired elements.

    pieces: flat arrays of actual and of the reference, with the types `dtype` and `reference_dtype`
    """
    import numpy as np

    unequal = total = 0
    values: tuple[set[float], set[float]] = (set(), set())
    sums = np.zeros(4)
    largest = 0.0
    nonfinite = 0
    are_floats = "float" in dtype and "float" in reference_dtype
    through = [*dict.fromkeys((narrower(dtype, reference_dtype), *_ROUNDING))] if are_floats else []
    with np.errstate(all="ignore"):
        for actual, reference in (tuple(map(_real, piece)) for piece in pieces):
            a, b = actual.astype(np.float64), reference.astype(np.float64)
            # Integers of 64 bits have more digits than float64.
            is_exact = actual.dtype == reference.dtype and actual.dtype.kind in "iu"
            differs = actual != reference if is_exact else ~((a == b) | (np.isnan(a) & np.isnan(b)))
            unequal, total = unequal + int(differs.sum()), total + len(a)
            nonfinite += int((np.isfinite(a) != np.isfinite(b)).sum())
            through = [name for name in through if _is_cast(actual, reference, name)]
            a, b = a[np.isfinite(a) & np.isfinite(b)], b[np.isfinite(a) & np.isfinite(b)]
            sums += ((a - b) @ (a - b), b @ b, a @ b, a @ a)
            for distinct, side in zip(values, (a, b)):
                if len(distinct) < _FEWEST_VALUES:
                    distinct.update(np.unique(side[:1000]).tolist())
            largest = max(largest, float(np.abs(a - b).max(initial=0.0)))
    relative = math.sqrt(sums[0] / sums[1]) if sums[1] else (0.0 if not sums[0] else math.inf)
    share = f"{unequal} of {total} elements differ"
    if not unequal:
        return WeightDifference("equal", "", 0, total, 0.0, 0.0)
    numbers = (unequal, total, relative, largest)
    if through and min(map(len, values)) >= _FEWEST_VALUES:
        return WeightDifference("cast", f"one side is the other, rounded to {through[0]}", *numbers)
    if nonfinite:
        return WeightDifference(
            "different", f"{nonfinite} of {total} elements are NaN or Inf on one side only", *numbers
        )
    scale = _scale(sums, narrower(dtype, reference_dtype))
    if scale is not None:
        return WeightDifference("scaled", f"scaled by {scale:.6g}", *numbers)
    size = f"relative L2 {relative:.2g}, largest {largest:.2g}"
    if relative <= _UPDATE and unequal * 4 > total:
        return WeightDifference("updated", f"a small update ({size})", *numbers)
    return WeightDifference("different", f"{share} ({size})", *numbers)


def _real(array: np.ndarray) -> np.ndarray:
    """Return the parts of complex numbers as real numbers, twice as many; other arrays unchanged."""
    return array.view(array.real.dtype) if array.dtype.kind == "c" else array


def _is_cast(actual: np.ndarray, reference: np.ndarray, name: str) -> bool:
    """Return True if one side is the other, rounded to the type."""
    import numpy as np

    rounded = numpy_dtype(name)
    for side, source in ((actual, reference), (reference, actual)):
        values = source.astype(rounded).astype(np.float64)
        if np.array_equal(side.astype(np.float64), values, equal_nan=True):
            return True
    return False


def _scale(sums: np.ndarray, dtype: str) -> Optional[float]:
    """Return the factor between both sides if it explains the difference up to rounding.

    sums: of squared differences, of squares of the reference, of products, of squares of actual.
    """
    kind = float_kind(dtype)
    if kind is None or not sums[1] or not sums[3]:
        return None
    scale = float(sums[2] / sums[1])
    # The sums are computed in float64, which leaves a relative error of up to 1e-13 in the remainder.
    remainder = max(sums[3] - scale * sums[2], 0.0) / sums[3]
    is_explained = remainder <= max(kind.unit**2, 1e-13)
    return scale if is_explained and abs(scale - 1) > 4 * kind.unit else None
