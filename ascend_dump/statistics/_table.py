"""The table of statistics: each statistic has one entry here and one field of `Statistics`.

The first ten are computed together in one pass over memory. The optional ones are computed only if they are requested
by name, each from a sum over the elements in a second pass. To add an optional statistic, add an entry and a field.

This module does not import numpy, because statistics that were read from files do not need it.
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

#: Pairs: the statistics of a non-empty part of a tensor, and how many times the elements of the part occur.
Parts = Sequence[tuple[Statistics, int]]


class Statistic(NamedTuple):
    """The definition of a statistic.

    name      its name in `stats=` and in catalogs, and its field of `Statistics`
    heading   heading of its column in tables; "" if tables do not show it
    csv       heading of its column in statistic.csv
    merge     a function that computes it for a tensor from the parts of the tensor, and from the tensor's `count` and
              the statistics of earlier entries; it returns None if a part lacks the statistic
    is_count  True if it is a number of elements
    sum_of    for an optional statistic: a function that computes a sum over float64 values, given their mean
    kernel    the same function as source code for numba
    finish    a function (averages, exponent) that computes the statistic. averages: by name, the sums divided by the
              number of elements; the sums were computed from elements multiplied by 2**-exponent
    needs     for an optional statistic: the statistics that `merge` and `finish` use, which are recorded with it
    """

    name: str
    heading: str
    csv: str
    merge: Callable[[Parts, Mapping[str, Any]], Any]
    is_count: bool = False
    sum_of: Optional[Callable[[Any, float], Any]] = None
    kernel: Optional[Callable[[Any, float], float]] = None
    finish: Callable[[Mapping[str, float], int], float] = lambda averages, exponent: math.nan
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
        # Parts with nothing but NaN have no maximum or minimum. -0 counts as smaller than +0.
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
    # Means are halved before they are added: rounding could make a sum of the largest floats overflow.
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
    """Return the function `Statistic.merge` for the variance (order 2), skewness (3) or kurtosis (4)."""

    def merge(parts: Parts, whole: Mapping[str, Any]) -> Optional[float]:
        columns: list[Any] = [_values(name, parts) for name in _MOMENTS[:order]]
        if None in columns:
            return None
        # Moments of a higher order than `order` are not used: their columns are filled with zeros.
        columns += [[0.0] * len(parts)] * (4 - order)
        means, variances, skews, tails = columns
        shifts = [mean - whole["mean"] for mean in means]
        deviations = [math.sqrt(variance) if variance >= 0 else math.nan for variance in variances]
        if not all(map(math.isfinite, (*shifts, *deviations))):
            return math.nan
        # Shifts and deviations are divided by the largest of them, because fourth powers could exceed float64.
        unit = max(map(abs, (*shifts, *deviations)))
        second, moment = [], []
        for shift, deviation, skew, tail, share in zip(shifts, deviations, skews, tails, _shares(parts, whole)):
            a, s = (shift / unit, deviation / unit) if unit else (0.0, 0.0)
            # In a part with equal elements (s = 0) skewness and kurtosis are NaN; its moments are 0.
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


def _finish_variance(averages: Mapping[str, float], exponent: int) -> float:
    try:
        return math.ldexp(averages["variance"], 2 * exponent)
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


#: All statistics, in the order of the fields of `Statistics`, and of the values in the lines of an index.
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
        finish=lambda averages, exponent: _ratio(averages["skewness"], averages["variance"], 3),
        needs=("mean", "variance"),
    ),
    Statistic(
        "kurtosis",
        "kurtosis",
        "Kurtosis",
        _merge_moments(4),
        sum_of=_sum_fourth_powers,
        kernel=_sum_fourth_powers_kernel,
        finish=lambda averages, exponent: _ratio(averages["kurtosis"], averages["variance"], 4),
        needs=("mean", "variance", "skewness"),
    ),
)

#: All names that `stats=` accepts, and the names that are recorded if `stats=` is not given.
ALL_STATISTICS: tuple[str, ...] = tuple(entry.name for entry in TABLE)
STATISTIC_NAMES: tuple[str, ...] = tuple(entry.name for entry in TABLE if not entry.is_optional)
#: The fields of `Statistics` that are counts of elements.
COUNTS: tuple[str, ...] = ("count", *(entry.name for entry in TABLE if entry.is_count))


def merged(parts: Sequence[Statistics], times: Optional[Sequence[int]] = None) -> Statistics:
    """Return the statistics of a tensor from the statistics of its parts.

    Counts, max and min are exact, the others correct up to rounding. A field is None if it is None in
    a part that has elements; but a part with nothing but NaN has no max and min, and is left out of these two.

    times: how often the elements of each part occur; by default once

    >>> merged([Statistics(2, max=3.0, nan=0), Statistics(4, max=1.0, nan=1)])[:2]
    (6, 3.0)
    """
    counted = list(zip(parts, times or [1] * len(parts)))
    weighted = [(part, n) for part, n in counted if part.count] or counted
    fields: dict[str, Any] = {"count": sum(part.count * n for part, n in weighted)}
    for entry in TABLE:
        fields[entry.name] = entry.merge(weighted, fields)
    return Statistics(**fields)


def with_needs(names: Iterable[str]) -> tuple[str, ...]:
    """Return the names, and the names of the statistics that these need, in the order of the table."""
    needed = {*names, *(need for entry in TABLE if entry.name in names for need in entry.needs)}
    return tuple(name for name in ALL_STATISTICS if name in needed)


def optional_statistics(names: Iterable[str]) -> tuple[Statistic, ...]:
    """Return the entries of all optional statistics among `names` and among the statistics that these need."""
    chosen = with_needs(names)
    return tuple(entry for entry in TABLE if entry.is_optional and entry.name in chosen)
