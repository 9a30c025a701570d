"""Lower bounds of the difference of two tensors, taken from their statistics.

No element of a tensor is larger than its maximum. So at least one element differs by the difference of the maxima or
more. The same is true for minima and means. The difference of the norms is at most the norm of the difference.

Recorded numbers are rounded, so each stands for an interval. A number of six digits stands for half a unit of its last
digit to both sides, a norm that was summed in float32 for a wider interval. The bounds are the distances between the
intervals of both sides.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from decimal import Decimal
from typing import NamedTuple, Optional, Union

from ascend_dump.analysis.numerics.float_types import FloatKind, float_kind
from ascend_dump.analysis.numerics.measure import Measure
from ascend_dump.reading import Record
from ascend_dump.statistics import COMPUTED, Precision, Statistics, merged
from ascend_dump.statistics.nonfinite import has_nan, is_nonfinite

__all__ = ["RoundedStatistics", "bounds", "rounded_statistics"]

_DOUBLE, _SINGLE = FloatKind(52, -1022), FloatKind(23, -126)
#: Standard deviations that the rounding error of a sum may have, as in `Rules.envelope`.
_ENVELOPE = 8.0
#: Minimum number of partial sums of a norm: one for each element of a vector register. In each partial sum, roundings
#: of equal terms add up instead of cancelling.
_LANES = 8


class RoundedStatistics(NamedTuple):
    """Statistics, and how precise the recorded numbers are."""

    statistics: Statistics
    precision: Precision = COMPUTED


def rounded_statistics(*records: Record) -> RoundedStatistics:
    """Return the statistics of one record, or of several records together, with the coarsest of their precisions."""
    statistics = [record.statistics() for record in records]
    precisions = [record.precision for record in records]
    digits = [precision.digits for precision in precisions if precision.digits is not None]
    coarsest = Precision(
        min(digits, default=None),
        max((precision.elements for precision in precisions), key=_unit),
        max((precision.sums for precision in precisions), key=_unit),
    )
    return RoundedStatistics(statistics[0] if len(statistics) == 1 else merged(statistics), coarsest)


def bounds(actual: RoundedStatistics, reference: RoundedStatistics, dtype: str) -> Measure:
    """Return a `Measure` whose numbers are lower bounds of the true ones.

    `unequal` is 1 if the statistics prove a difference, else 0. `nonfinite` is the minimum number of elements that are
    NaN or Inf on one side only.
    """
    a, b = actual.statistics, reference.statistics
    count = max(a.count, b.count)
    if a.count != b.count:
        # The statistics of one side include padding, which has arbitrary values.
        return Measure(count=count, unequal=0)
    nonfinite = max(
        _apart(a.nan, b.nan),
        _apart(a.posinf, b.posinf),
        _apart(a.neginf, b.neginf),
        # Some dumps lack these counts, but their other statistics show whether there is NaN or Inf.
        int(None in (a.nan, b.nan) and (_is_nonfinite_alone(actual, b) or _is_nonfinite_alone(reference, a))),
    )
    nan, infinite = (_nan(a), _nan(b)), (_infinite(a), _infinite(b))
    kind = float_kind(dtype)
    sides = [dict(_intervals(side, exact=kind is None and bool(dtype))) for side in (actual, reference)]
    gaps = {name: sides[0][name].distance(sides[1][name]) for name in sides[0].keys() & sides[1].keys()}
    # Norms and means are usable only if all elements are finite: the sums of the finite elements alone are unknown.
    whole = not any((*nan, *infinite))
    finite = max(b.count - nan[1] - infinite[1], 1)
    rmse = rms = 0.0
    if whole and b.l2norm is not None and math.isfinite(b.l2norm):
        rms = b.l2norm / math.sqrt(finite)
        rmse = max(gaps.get("l2norm", 0.0) / math.sqrt(finite), gaps.get("mean", 0.0))
    largest = max(gaps.get("max", 0.0), gaps.get("min", 0.0), rmse)
    top = max(
        (abs(float(value)) for value in (b.max, b.min) if value is not None and math.isfinite(value)), default=0.0
    )
    # If there is no norm, for example because of a mask of -Inf, the largest element shows the size of the others.
    rms = rms or top
    return Measure(
        count=count,
        unequal=1 if largest or nonfinite else 0,
        nonfinite=nonfinite,
        nan=nan,
        inf=infinite,
        max_abs=largest,
        max_rel=largest / top if top else 0.0,  # no element of the reference is larger than `top`
        rmse=rmse,
        rel_l2=rmse / rms if rms else (math.inf if rmse else 0.0),
        rms=rms,
        excess=largest - (2 * kind.unit * top if kind is not None else 0.0),
    )


class _Interval(NamedTuple):
    value: Union[int, float]
    error: float

    def distance(self, other: _Interval) -> float:
        # The computed errors are rounded, too: hence the factor.
        return max(float(abs(self.value - other.value)) - (self.error + other.error) * (1 + 1e-6), 0.0)


def _intervals(side: RoundedStatistics, *, exact: bool) -> Iterator[tuple[str, _Interval]]:
    """Yield the intervals of maximum, minimum, norm and mean that are finite. exact: elements are integers."""
    statistics, precision = side
    elements = float_kind(precision.elements)
    extremes = []
    for name in ("max", "min"):
        value = getattr(statistics, name)
        if value is None or not math.isfinite(value) or (elements is not None and abs(value) >= _largest(elements)):
            continue
        extremes.append(abs(float(value)))
        error = _half_unit(value, precision.digits) + (2 * elements.unit * abs(value) if elements is not None else 0.0)
        yield name, _Interval(value, 0.0 if exact and error <= 0.5 else error)
    root = math.sqrt(max(statistics.count, 1))
    kind = float_kind(precision.sums) or _DOUBLE
    if statistics.l2norm is not None and statistics.l2norm < _largest(kind):
        yield (
            "l2norm",
            _Interval(statistics.l2norm, _norm_error(statistics.l2norm, statistics.count, kind, precision.digits)),
        )
        extremes.append(statistics.l2norm / root)
    if statistics.mean is not None and abs(statistics.mean) < _largest(kind) and extremes:
        rounding = (
            _sum_error(statistics.count, kind) * max(extremes) + kind.unit * abs(statistics.mean) + _smallest(kind)
        )
        yield "mean", _Interval(statistics.mean, _half_unit(statistics.mean, precision.digits) + rounding)


def _norm_error(norm: float, count: int, kind: FloatKind, digits: Optional[int]) -> float:
    adder = _adder(kind)
    # Each square below the smallest normal number may be lost.
    lost = count * math.ldexp(1.0, adder.lowest)
    summed = _sum_error(count, kind) + count * adder.unit / (2 * _LANES)
    error = norm * (summed + kind.unit) + _smallest(kind) + _half_unit(norm, digits)
    return error + (lost / max(norm, math.sqrt(lost)) if lost else 0.0)


def _sum_error(count: int, kind: FloatKind) -> float:
    """Return the largest error of a sum of `count` elements, relative to the sum of their magnitudes."""
    adder = _adder(kind)
    return adder.unit * (count if adder == _DOUBLE else _ENVELOPE * math.sqrt(count))


def _adder(kind: FloatKind) -> FloatKind:
    """Return the type of the partial sums: narrow types are summed in float32."""
    return _DOUBLE if kind == _DOUBLE else _SINGLE


def _half_unit(value: Union[int, float], digits: Optional[int]) -> float:
    """Return half a unit of the last digit of a printed number; 0 if numbers are not printed (digits=None).

    Zeros at the end of the number may be missing, so the position of the last digit is counted from the first digit.
    """
    if digits is None or not value:
        return 0.0
    number = Decimal(value) if isinstance(value, int) else Decimal(repr(value)).normalize()
    half = 0.5 * 10.0 ** (number.adjusted() + 1 - max(digits, len(number.as_tuple().digits)))
    # A float was rounded to float64 before it was printed, and again when it was read.
    return half if isinstance(value, int) else half + 4 * _DOUBLE.unit * abs(value)


def _largest(kind: FloatKind) -> float:
    """Return the largest finite number of a type, which some devices return on overflow."""
    return math.ldexp(2 - 2 * kind.unit, 1 - kind.lowest)


def _smallest(kind: FloatKind) -> float:
    return math.ldexp(1.0, kind.lowest - kind.mantissa)


def _unit(dtype: str) -> float:
    kind = float_kind(dtype)
    return kind.unit if kind is not None else 0.0


def _is_nonfinite_alone(side: RoundedStatistics, other: Statistics) -> bool:
    """Return True if one side certainly has NaN or Inf and the other side certainly has none.

    A norm or mean that is not finite may be an overflow of the sum, so it proves nothing if extremes are recorded.
    """
    statistics, precision = side
    extremes = [value for value in (statistics.max, statistics.min) if value is not None]
    shown = any((statistics.nan, statistics.posinf, statistics.neginf)) or has_nan(statistics._replace(mean=None))
    if not shown and not extremes:
        shown = statistics.mean is not None and not math.isfinite(statistics.mean)
    if not shown and not all(map(math.isfinite, extremes)):
        elements = float_kind(precision.elements)
        limit = _largest(elements) if elements is not None else math.inf
        shown = not any(abs(value) >= limit for value in (other.max, other.min) if value is not None)
    return shown and _is_finite(other)


def _is_finite(statistics: Statistics) -> bool:
    """Return True if a tensor certainly has neither NaN nor Inf. Finite extremes alone do not exclude NaN."""
    if statistics.nan is None and all(
        value is None or not math.isfinite(value) for value in (statistics.mean, statistics.l2norm)
    ):
        return False
    return not is_nonfinite(statistics) and not has_nan(statistics)


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
