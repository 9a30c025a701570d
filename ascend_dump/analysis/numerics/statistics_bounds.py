"""Bound the difference of two tensors from below by their statistics.

No element of `actual` is larger than its maximum, so at least one element differs by the difference of the maxima. The
same is true for minima and means, and the difference of the norms is at most the norm of the difference.
"""

from __future__ import annotations

import math

from ascend_dump.analysis.numerics.float_types import float_kind
from ascend_dump.analysis.numerics.measure import Measure
from ascend_dump.statistics import Statistics
from ascend_dump.statistics.nonfinite import has_nan, is_nonfinite

__all__ = ["bounds"]


def bounds(actual: Statistics, reference: Statistics, dtype: str) -> Measure:
    """Return a `Measure` whose numbers are at most the true ones.

    `unequal` is 1 if anything differs, else 0; `nonfinite` is a lower bound of the elements that are NaN or Inf on one
    side only.
    """
    a, b = actual, reference
    count = max(a.count, b.count)
    nonfinite = max(
        _apart(a.nan, b.nan),
        _apart(a.posinf, b.posinf),
        _apart(a.neginf, b.neginf),
        # Some dumps lack these counts, but their other statistics show whether there are any.
        int(None in (a.nan, b.nan) and is_nonfinite(a) != is_nonfinite(b)),
    )
    nan, infinite = (_nan(a), _nan(b)), (_infinite(a), _infinite(b))
    gaps = [_gap(x, y) for x, y in ((a.max, b.max), (a.min, b.min))]
    # Sums that include NaN are NaN, and those of the finite elements are not recorded.
    whole = not any((*nan, *infinite))
    finite = max(b.count - nan[1] - infinite[1], 1)
    rmse = rms = 0.0
    if whole and b.l2norm is not None and math.isfinite(b.l2norm):
        rms = b.l2norm / math.sqrt(finite)
        gaps.append(_gap(a.mean, b.mean))
        rmse = max(_gap(a.l2norm, b.l2norm) / math.sqrt(finite), _gap(a.mean, b.mean))
    largest = max(*gaps, rmse)
    kind = float_kind(dtype)
    extremes = [abs(float(value)) for value in (b.max, b.min) if value is not None and math.isfinite(value)]
    top = max(extremes, default=0.0)
    return Measure(
        count=count,
        unequal=1 if largest or nonfinite else 0,
        nonfinite=nonfinite,
        nan=nan,
        inf=infinite,
        max_abs=largest,
        rmse=rmse,
        rel_l2=rmse / rms if rms else (math.inf if rmse else 0.0),
        rms=rms,
        excess=largest - (2 * kind.unit * top if kind is not None else 0.0),
    )


def _nan(statistics: Statistics) -> int:
    """Return a lower bound of the number of NaN."""
    return int(has_nan(statistics)) if statistics.nan is None else statistics.nan


def _infinite(statistics: Statistics) -> int:
    """Return a lower bound of the number of Inf."""
    if statistics.posinf is None and statistics.neginf is None:
        return int(is_nonfinite(statistics) and not has_nan(statistics))
    return (statistics.posinf or 0) + (statistics.neginf or 0)


def _apart(x: object, y: object) -> int:
    return abs(x - y) if isinstance(x, int) and isinstance(y, int) else 0


def _gap(x: object, y: object) -> float:
    """Return |x - y|; 0 if it is unknown or not finite."""
    if not isinstance(x, (int, float)) or not isinstance(y, (int, float)):
        return 0.0
    gap = abs(float(x) - float(y))
    return gap if math.isfinite(gap) else 0.0
