"""Combine the results that kernels return for the blocks of an array into the statistics of the array."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Callable, NamedTuple

import numpy as np

from ascend_dump.statistics._layout import Layout, Table, chunks
from ascend_dump.statistics._value import Statistics
from ascend_dump.statistics._widen import widen

__all__ = ["Partial", "combine", "combine_counts"]

#: If a sum of squares is below this number, squares may have underflowed. The sum is then computed again from scaled
#: elements.
_SMALL_SQUARES = 1e-270


class Partial(NamedTuple):
    """The result for one block. Kernels may return a plain tuple in this order.

    maximum, minimum   maximum and minimum of the elements that are not NaN; -Inf and +Inf if all are NaN
    total, squares     sum of the elements, and sum of their squares; meaningless if an element is NaN or Inf
    nan, …             number of NaN, +Inf, -Inf, +0 and -0
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
    """Return the statistics of an array of `count` elements from the results of its blocks.

    array  a function that returns the array. It is called only if a float64 sum overflowed or underflowed, to compute
           mean and l2norm again with scaled elements
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
    """Return the statistics of one-byte elements. Sums of integers are exact, and sums of floats are rounded once.

    counts: how often each of the 256 patterns (values of the byte) occurs
    """
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
        # The products are exact: they have at most 8 significant bits more than the counts. fsum rounds the sum once.
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
    """Return mean and l2norm of elements with NaN or Inf, given the number of NaN, +Inf and -Inf."""
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
        # The sum overflowed, or has Inf of both signs. `combine` does not use it: if there are Inf, it returns
        # the results of `_propagate`, else it reads the array again.
        return math.nan


#: The function for each field of `Partial` that combines the values of several blocks.
_REDUCTIONS: tuple[Callable[[Sequence[Any]], Any], ...] = (max, min, _add, _add, *[sum] * 5)


def _signed(value: float, plus: bool) -> float:
    """Return the value. A zero becomes +0 if `plus` is True, else -0.

    A maximum or minimum of +0 and -0 may be either of them, depending on their order.
    """
    if value == 0 and isinstance(value, float):
        return 0.0 if plus else -0.0
    return value


def _scaled(array: np.ndarray, layout: Layout, maximum: float, minimum: float) -> tuple[float, float]:
    """Return mean and l2norm of finite elements, computed from elements scaled by a power of two.

    The scaling keeps sums from overflowing, and squares from underflowing.
    """
    largest = max(abs(maximum), abs(minimum))
    # 1025: the magnitude of a finite complex128 can exceed float64, by at most a factor of sqrt(2).
    exponent = math.frexp(largest)[1] if largest < math.inf else 1025
    totals, squares = [], []
    with np.errstate(all="ignore"):
        for words in chunks(array, layout):
            values = widen(layout, words, -exponent)
            totals.append(float(values.sum()))
            squares.append(float(np.multiply(values, values).sum()))
        mean = float(np.ldexp(math.fsum(totals) / array.size, exponent))
        norm = float(np.ldexp(math.sqrt(math.fsum(squares)), exponent))
    # Rounding may have moved the mean above the maximum or below the minimum. If all elements are equal and very large,
    # the mean may even be Inf.
    return min(max(mean, minimum), maximum), norm
