"""The table of statistics: each is one entry here and one field of `Statistics`.

The first ten are computed together in one pass over memory. The optional ones are computed where they are requested by
name, each from a sum over the elements in a second pass; a new one needs nothing but its entry and its field.

This module imports no numpy, because statistics that were read from files need none.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Callable, NamedTuple, Optional

from ascend_dump.statistics._value import Statistics

__all__ = [
    "ALL_STATISTICS",
    "COUNTS",
    "STATISTIC_NAMES",
    "TABLE",
    "Statistic",
    "merged",
    "optional_statistics",
    "with_needs",
]

#: The statistics of non-empty parts of a tensor, each with the number of times that its elements occur.
Parts = Sequence[tuple[Statistics, int]]


class Statistic(NamedTuple):
    """One statistic.

    name      its name in `stats=` and in catalogs, and its field of `Statistics`
    heading   of its column in tables; "" if they do not show it
    csv       heading of its column in statistic.csv
    merge     computes it from the parts of a tensor and the merged values of `count` and of the entries before it;
              None if a part does not have it
    is_count  it is an integer
    sum_of    of an optional one: sums a chunk of float64 values, given their mean
    kernel    the same sum, for numba to compile
    finish    computes it from the sums divided by the number of elements, of 2**-exponent times the values
    needs     of an optional one: the statistics that `merge` and `finish` use, which are recorded with it
    """

    name: str
    heading: str
    csv: str
    merge: Callable[[Parts, Mapping[str, Any]], Any]
    is_count: bool = False
    sum_of: Optional[Callable[[Any, float], Any]] = None
    kernel: Optional[Callable[[Any, float], float]] = None
    finish: Callable[[Mapping[str, float], int], float] = lambda sums, exponent: math.nan
    needs: tuple[str, ...] = ()

    @property
    def is_optional(self) -> bool:
        return self.sum_of is not None


def _values(name: str, parts: Parts) -> Optional[list[Any]]:
    values = [getattr(part, name) for part, _ in parts]
    return None if None in values or not values else values


def _add(name: str) -> Callable[[Parts, Mapping[str, Any]], Optional[int]]:
    def merge(parts: Parts, whole: Mapping[str, Any]) -> Optional[int]:
        counts = _values(name, parts)
        return None if counts is None else sum(count * times for count, (_, times) in zip(counts, parts))

    return merge


def _extreme(name: str, pick: Callable[..., Any]) -> Callable[[Parts, Mapping[str, Any]], Any]:
    def merge(parts: Parts, whole: Mapping[str, Any]) -> Any:
        # A part with NaN only has no extremes. The sign of a zero decides between zeros.
        values = [getattr(part, name) for part, _ in parts if part.nan != part.count]
        return None if None in values or not values else pick(values, key=_value_and_sign)

    return merge


def _value_and_sign(value: float) -> tuple[float, float]:
    return value, math.copysign(1, value)


def _merge_means(parts: Parts, whole: Mapping[str, Any]) -> Optional[float]:
    means = _values("mean", parts)
    if means is None:
        return None
    if len(means) == 1:
        return float(means[0])
    nonfinite = [mean for mean in means if not math.isfinite(mean)]
    if nonfinite:
        return float(sum(nonfinite))
    # Halves, because a sum of the largest floats could overflow by rounding.
    mean = 2 * math.fsum(mean / 2 * share for mean, share in zip(means, _shares(parts, whole)))
    lowest, highest = whole["min"], whole["max"]
    return mean if lowest is None or highest is None else float(min(max(mean, lowest), highest))


def _merge_norms(parts: Parts, whole: Mapping[str, Any]) -> Optional[float]:
    norms = _values("l2norm", parts)
    if norms is None:
        return None
    nonfinite = [norm for norm in norms if not math.isfinite(norm)]
    largest = max(norms)
    if nonfinite or not largest:
        return float(sum(nonfinite))
    return float(largest * math.sqrt(math.fsum((norm / largest) ** 2 * n for norm, (_, n) in zip(norms, parts))))


def _shares(parts: Parts, whole: Mapping[str, Any]) -> list[float]:
    return [part.count * times / whole["count"] for part, times in parts]


_MOMENTS = ("mean", "variance", "skewness", "kurtosis")


def _merge_moments(order: int) -> Callable[[Parts, Mapping[str, Any]], Optional[float]]:
    """Return the merge of the variance (2), the skewness (3) or the kurtosis (4)."""

    def merge(parts: Parts, whole: Mapping[str, Any]) -> Optional[float]:
        columns: list[Any] = [_values(name, parts) for name in _MOMENTS[:order]]
        if None in columns:
            return None
        # Higher moments than this one are not used.
        columns += [[0.0] * len(parts)] * (4 - order)
        means, variances, skews, tails = columns
        shifts = [mean - whole["mean"] for mean in means]
        deviations = [math.sqrt(variance) if variance >= 0 else math.nan for variance in variances]
        if not all(map(math.isfinite, (*shifts, *deviations))):
            return math.nan
        # In units of the largest one, since fourth powers could exceed float64.
        unit = max(map(abs, (*shifts, *deviations)))
        second, moment = [], []
        for shift, deviation, skew, tail, share in zip(shifts, deviations, skews, tails, _shares(parts, whole)):
            a, s = (shift / unit, deviation / unit) if unit else (0.0, 0.0)
            # The skewness and the kurtosis of equal elements are NaN.
            third, fourth = (skew * s**3, tail * s**4) if s else (0.0, 0.0)
            second.append(share * (s**2 + a**2))
            if order == 3:
                moment.append(share * (third + 3 * a * s**2 + a**3))
            elif order == 4:
                moment.append(share * (fourth + 4 * a * third + 6 * a**2 * s**2 + a**4))
        variance = math.fsum(second)
        return variance * unit * unit if order == 2 else _ratio(math.fsum(moment), variance, order)

    return merge


def _ratio(moment: float, variance: float, order: int) -> float:
    return moment / variance ** (order / 2) if variance else math.nan


def _finish_variance(sums: Mapping[str, float], exponent: int) -> float:
    try:
        return math.ldexp(sums["variance"], 2 * exponent)
    except OverflowError:
        return math.inf


def _sum_squares(values: Any, mean: float) -> Any:
    deviations = values - mean
    return (deviations * deviations).sum()


def _sum_squares_kernel(values: Any, mean: float) -> float:
    total = 0.0
    for i in range(values.size):
        deviation = values[i] - mean
        total += deviation * deviation
    return total


def _sum_cubes(values: Any, mean: float) -> Any:
    deviations = values - mean
    return (deviations * deviations * deviations).sum()


def _sum_cubes_kernel(values: Any, mean: float) -> float:
    total = 0.0
    for i in range(values.size):
        deviation = values[i] - mean
        total += deviation * deviation * deviation
    return total


def _sum_fourth_powers(values: Any, mean: float) -> Any:
    squares = values - mean
    squares *= squares
    return (squares * squares).sum()


def _sum_fourth_powers_kernel(values: Any, mean: float) -> float:
    total = 0.0
    for i in range(values.size):
        square = (values[i] - mean) * (values[i] - mean)
        total += square * square
    return total


#: In the order of the fields of `Statistics`, and of the values in the lines of an index.
TABLE: tuple[Statistic, ...] = (
    Statistic("max", "max", "Max Value", _extreme("max", max)),
    Statistic("min", "min", "Min Value", _extreme("min", min)),
    Statistic("mean", "mean", "Avg Value", _merge_means),
    Statistic("l2norm", "l2norm", "L2Norm Value", _merge_norms),
    Statistic("nan", "nan", "Nan Count", _add("nan"), is_count=True),
    Statistic("posinf", "+inf", "Positive Inf Count", _add("posinf"), is_count=True),
    Statistic("neginf", "-inf", "Negative Inf Count", _add("neginf"), is_count=True),
    Statistic("zero", "zero", "Zero Count", _add("zero"), is_count=True),
    Statistic("poszero", "", "Positive Zero Count", _add("poszero"), is_count=True),
    Statistic("negzero", "", "Negative Zero Count", _add("negzero"), is_count=True),
    Statistic(
        "variance",
        "variance",
        "Variance",
        _merge_moments(2),
        sum_of=_sum_squares,
        kernel=_sum_squares_kernel,
        finish=_finish_variance,
        needs=("mean",),
    ),
    Statistic(
        "skewness",
        "skewness",
        "Skewness",
        _merge_moments(3),
        sum_of=_sum_cubes,
        kernel=_sum_cubes_kernel,
        finish=lambda sums, exponent: _ratio(sums["skewness"], sums["variance"], 3),
        needs=("mean", "variance"),
    ),
    Statistic(
        "kurtosis",
        "kurtosis",
        "Kurtosis",
        _merge_moments(4),
        sum_of=_sum_fourth_powers,
        kernel=_sum_fourth_powers_kernel,
        finish=lambda sums, exponent: _ratio(sums["kurtosis"], sums["variance"], 4),
        needs=("mean", "variance", "skewness"),
    ),
)

#: The names that `stats=` takes, and those that are recorded if it names none.
ALL_STATISTICS: tuple[str, ...] = tuple(entry.name for entry in TABLE)
STATISTIC_NAMES: tuple[str, ...] = tuple(entry.name for entry in TABLE if not entry.is_optional)
#: The fields of `Statistics` that are counts of elements.
COUNTS: tuple[str, ...] = ("count", *(entry.name for entry in TABLE if entry.is_count))


def merged(parts: Sequence[Statistics], times: Optional[Sequence[int]] = None) -> Statistics:
    """Return the statistics of a tensor from those of its parts: counts and extremes exactly, others up to rounding.

    A field that is None in one part is None.

    times: how often the elements of each part occur, by default once

    >>> merged([Statistics(2, max=3.0, nan=0), Statistics(4, max=1.0, nan=1)])[:2]
    (6, 3.0)
    """
    weighted = [(part, n) for part, n in zip(parts, times or [1] * len(parts)) if part.count]
    fields: dict[str, Any] = {"count": sum(part.count * n for part, n in weighted)}
    for entry in TABLE:
        fields[entry.name] = entry.merge(weighted, fields)
    return Statistics(**fields)


def with_needs(names: Iterable[str]) -> tuple[str, ...]:
    """Return the names with those of the statistics that they need, in the order of the table."""
    needed = {*names, *(need for entry in TABLE if entry.name in names for need in entry.needs)}
    return tuple(name for name in ALL_STATISTICS if name in needed)


def optional_statistics(names: Iterable[str]) -> tuple[Statistic, ...]:
    """Return the optional ones of these statistics and of those that they need."""
    chosen = with_needs(names)
    return tuple(entry for entry in TABLE if entry.is_optional and entry.name in chosen)
