"""What the statistics of two tensors prove of their difference: lower bounds of its numbers.

No element of `actual` is larger than its maximum, so the difference of the maxima is the difference of some element at
least; so it is with minima and means, and the difference of the norms is at most the norm of the difference.
"""

from __future__ import annotations

import math

from ascend_dump.analysis.numerics.float_types import float_kind
from ascend_dump.analysis.numerics.measure import Measure
from ascend_dump.statistics import Statistics
from ascend_dump.statistics.nonfinite import has_nan, is_nonfinite

__all__ = ["bounds"]


def bounds(actual: Statistics, reference: Statistics, dtype: str) -> Measure:
    """A `Measure` whose numbers are at most the true ones.

    `unequal` is 1 where something differs, else 0; `nonfinite` is how many elements at least are NaN or Inf on one side
    only.
    """
    a, b = actual, reference
    count = max(a.count, b.count)
    nonfinite = max(
        _apart(a.nan, b.nan),
        _apart(a.posinf, b.posinf),
        _apart(a.neginf, b.neginf),
        # Some dumps have no counts, but their other statistics tell whether there is any.
        int(None in (a.nan, b.nan) and is_nonfinite(a) != is_nonfinite(b)),
    )
    nan, infinite = (_nan(a), _nan(b)), (_infinite(a), _infinite(b))
    gaps = [_gap(x, y) for x, y in ((a.max, b.max), (a.min, b.min))]
    # NaN on either side spoils the sums of it, and the finite rest is not known.
    whole = not any((*nan, *infinite))
    finite = max(b.count - nan[1] - infinite[1], 1)
    rmse = rms = 0.0
    if whole and b.l2norm is not None and math.isfinite(b.l2norm):
        rms = b.l2norm / math.sqrt(finite)
        gaps.append(_gap(a.mean, b.mean))
        rmse = max(_gap(a.l2norm, b.l2norm) / math.sqrt(finite), _gap(a.mean, b.mean))
    largest = max(*gaps, rmse)
    kind = float_kind(dtype)
    top = max((abs(float(one)) for one in (b.max, b.min) if one is not None and math.isfinite(one)), default=0.0)
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


def _nan(found: Statistics) -> int:
    """How many elements at least are NaN."""
    return int(has_nan(found)) if found.nan is None else found.nan


def _infinite(found: Statistics) -> int:
    """How many elements at least are Inf."""
    if found.posinf is None and found.neginf is None:
        return int(is_nonfinite(found) and not has_nan(found))
    return (found.posinf or 0) + (found.neginf or 0)


def _apart(x: object, y: object) -> int:
    return abs(x - y) if isinstance(x, int) and isinstance(y, int) else 0


def _gap(x: object, y: object) -> float:
    """|x - y|; 0 where it is not known or not finite."""
    if not isinstance(x, (int, float)) or not isinstance(y, (int, float)):
        return 0.0
    found = abs(float(x) - float(y))
    return found if math.isfinite(found) else 0.0
