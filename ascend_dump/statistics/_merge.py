"""Combine the results of kernels for each block into the statistics of a tensor."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Callable, NamedTuple

import numpy as np

from ascend_dump.statistics._layout import Layout, Table, chunks
from ascend_dump.statistics._value import Statistics
from ascend_dump.statistics._widen import widen

__all__ = ["Partial", "combine", "combine_counts"]

#: Below this, underflow may have changed a float64 sum of squares noticeably.
_SMALL_SQUARES = 1e-270


class Partial(NamedTuple):
    """The result for one block. Kernels may return a plain tuple in this order.

    maximum, minimum   of the elements that are not NaN; -Inf and +Inf if there are none
    total, squares     sum of the elements and of their squares; meaningless if there is NaN or Inf
    """

    maximum: float
    minimum: float
    total: float
    squares: float
    nan: int
    posinf: int
    neginf: int
    poszero: int
    negzero: int


def combine(
    count: int, layout: Layout, partials: Sequence[Sequence[float]], array: Callable[[], np.ndarray]
) -> Statistics:
    """Combine the results of all blocks of an array of `count` elements.

    array  returns the array; called only if float64 sums overflowed or underflowed
    """
    if len(partials) == 1:
        maximum, minimum, total, squares, *counted = partials[0]
    else:
        whole = (reduce(column) for reduce, column in zip(_REDUCTIONS, zip(*partials)))
        maximum, minimum, total, squares, *counted = whole
    nan, posinf, neginf, poszero, negzero = map(int, counted)
    if layout.kind == "integer":
        mean, norm = total / count, math.sqrt(squares)
    elif nan or posinf or neginf:
        mean, norm = _propagate(nan, posinf, neginf)
    elif not math.isfinite(total) or not squares < math.inf or (squares < _SMALL_SQUARES and poszero + negzero < count):
        mean, norm = _scaled(array(), layout, float(maximum), float(minimum))
    else:
        mean, norm = total / count, math.sqrt(squares)
    has_numbers = nan < count
    return Statistics(
        count,
        _signed(maximum, bool(poszero)) if has_numbers else None,
        _signed(minimum, not negzero) if has_numbers else None,
        mean,
        norm,
        nan,
        posinf,
        neginf,
        poszero + negzero,
        poszero,
        negzero,
    )


def combine_counts(table: Table, counts: np.ndarray) -> Statistics:
    """Compute the statistics of one-byte elements from the counts of patterns: exact, rounded once."""
    weights = counts[table.patterns]
    present = weights.nonzero()[0]
    weights = weights[present]
    values = table.values[present]
    count = int(counts.sum())
    nan = 0 if table.finite else count - int(weights.sum())
    posinf = int(weights[-1]) if values.size and values[-1] == math.inf else 0
    neginf = int(weights[0]) if values.size and values[0] == -math.inf else 0
    poszero = int(counts[table.poszero].sum()) if table.poszero.size else 0
    negzero = int(counts[table.negzero].sum()) if table.negzero.size else 0
    if nan or posinf or neginf:
        mean, norm = _propagate(nan, posinf, neginf)
    else:
        # Exact, since a product has at most 8 significant bits more than the count; fsum rounds the sum once.
        products = weights * values
        add: Callable[[list[float]], float] = sum if values.dtype.kind == "i" else math.fsum
        mean = add(products.tolist()) / count
        norm = math.sqrt(add((products * values).tolist()))
    return Statistics(
        count,
        _signed(values[-1].item(), bool(poszero)) if values.size else None,
        _signed(values[0].item(), not negzero) if values.size else None,
        mean,
        norm,
        nan,
        posinf,
        neginf,
        poszero + negzero,
        poszero,
        negzero,
    )


def _propagate(nan: int, posinf: int, neginf: int) -> tuple[float, float]:
    if nan:
        return math.nan, math.nan
    if posinf and neginf:
        return math.nan, math.inf
    return (math.inf if posinf else -math.inf), math.inf


def _add(terms: Sequence[float]) -> float:
    if all(isinstance(term, int) for term in terms):
        return sum(terms)
    try:
        return math.fsum(terms)
    except (OverflowError, ValueError):
        # Overflow, or Inf of both signs: `combine` uses the counts or reads the array again.
        return math.nan


#: How the fields of `Partial` of several blocks become one.
_REDUCTIONS: tuple[Callable[[Sequence[Any]], Any], ...] = (max, min, _add, _add, *[sum] * 5)


def _signed(value: float, plus: bool) -> float:
    """Return the value; a zero gets the given sign, so that the result does not depend on the order of elements."""
    if value == 0 and isinstance(value, float):
        return 0.0 if plus else -0.0
    return value


def _scaled(array: np.ndarray, layout: Layout, maximum: float, minimum: float) -> tuple[float, float]:
    """Compute mean and l2norm of finite elements whose sum or squares exceed float64, scaled by a power of two."""
    largest = max(abs(maximum), abs(minimum))
    # The magnitude of a finite complex128 can be beyond float64; it is at most sqrt(2) times the largest float.
    exponent = math.frexp(largest)[1] if largest < math.inf else 1025
    totals, squares = [], []
    with np.errstate(all="ignore"):
        for words in chunks(array, layout):
            values = widen(layout, words, -exponent)
            totals.append(float(values.sum()))
            squares.append(float(np.multiply(values, values).sum()))
        mean = float(np.ldexp(math.fsum(totals) / array.size, exponent))
        norm = float(np.ldexp(math.sqrt(math.fsum(squares)), exponent))
    # Rounding must not move the mean of equal elements beyond them, in particular not to Inf.
    return min(max(mean, minimum), maximum), norm
