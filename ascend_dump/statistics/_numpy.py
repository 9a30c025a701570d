"""The numpy engine. It is used if numba is missing or not loaded, and as the reference in tests of numba."""

from __future__ import annotations

from typing import Any, Callable

import numpy as np

from ascend_dump.statistics._layout import Engine, Layout
from ascend_dump.statistics._merge import Partial
from ascend_dump.statistics._table import Statistic
from ascend_dump.statistics._widen import floats, magnitudes, widen

__all__ = ["NUMPY"]

#: Maximum number of words per call: their float64 values fit into the second-level cache.
_BLOCK = 1 << 15


def _scanner(layout: Layout) -> Callable[[np.ndarray], Any]:
    """Return the function that reduces words to a `Partial`, or for one-byte elements to the counts of 256 patterns."""
    if layout.name == "bool":
        return _count_bools
    if layout.kind == "table":
        return lambda words: np.bincount(words, minlength=256)
    if layout.kind == "integer":
        return _scan_wide_integers if layout.word.itemsize == 8 else _scan_integers
    scan = _scan_complex if layout.kind == "complex" else _scan_floats
    return lambda words: scan(layout, words)


def _count_bools(words: np.ndarray) -> np.ndarray:
    counts = np.zeros(256, dtype=np.int64)
    counts[1] = np.count_nonzero(words)
    counts[0] = words.size - counts[1]
    return counts


def _scan_floats(layout: Layout, words: np.ndarray) -> Partial:
    nan = posinf = neginf = 0
    # The error state is per thread, so it is set in the thread that computes a part.
    with np.errstate(all="ignore"):
        values = widen(layout, words)
        maximum, minimum = _extremes(values)
        if not (maximum < np.inf and minimum > -np.inf):
            # Only reached with NaN or Inf: a NaN would make both extremes NaN.
            missing = np.isnan(values)
            nan = int(np.count_nonzero(missing))
            posinf = int(np.count_nonzero(values == np.inf))
            neginf = int(np.count_nonzero(values == -np.inf))
            maximum, minimum = _extremes(values[~missing] if nan else values)
        poszero = int(np.count_nonzero(words == 0))
        negzero = int(np.count_nonzero(words == words.dtype.type(1 << (8 * words.itemsize - 1))))
        return Partial(maximum, minimum, *_sums(values), nan, posinf, neginf, poszero, negzero)


def _scan_complex(layout: Layout, words: np.ndarray) -> Partial:
    with np.errstate(all="ignore"):
        parts = floats(layout, words)
        missing = np.isnan(parts[0::2]) | np.isnan(parts[1::2])
        nan = int(np.count_nonzero(missing))
        infinite = (np.isinf(parts[0::2]) | np.isinf(parts[1::2])) & ~missing
        values = magnitudes(layout, parts)
        # Elements with a NaN part are left out, because hypot(Inf, NaN) is Inf and not NaN.
        maximum, minimum = _extremes(values[~missing] if nan else values)
        # A magnitude may round to zero although its parts are not zero.
        zero = int(np.count_nonzero((parts[0::2] == 0) & (parts[1::2] == 0)))
        return Partial(maximum, minimum, *_sums(values), nan, int(np.count_nonzero(infinite)), 0, zero, 0)


def _scan_integers(words: np.ndarray) -> Partial:
    total = int(words.sum(dtype=np.int64))
    return _integer_partial(words, total)


def _scan_wide_integers(words: np.ndarray) -> Partial:
    # The high and the low 32 bits are added separately, so that neither sum exceeds 64 bits.
    half = words.dtype.type(32)
    high = int((words >> half).sum(dtype=words.dtype))
    low = int((words & words.dtype.type(0xFFFFFFFF)).sum(dtype=words.dtype))
    return _integer_partial(words, (high << 32) + low)


def _integer_partial(words: np.ndarray, total: int) -> Partial:
    values = words.astype(np.float64)
    zero = words.size - int(np.count_nonzero(words))
    squares = float(np.multiply(values, values, out=values).sum())
    return Partial(int(words.max()), int(words.min()), total, squares, 0, 0, 0, zero, 0)


def _extremes(values: np.ndarray) -> tuple[float, float]:
    if not values.size:
        return -np.inf, np.inf
    return float(values.max()), float(values.min())


def _sums(values: np.ndarray) -> tuple[float, float]:
    # numpy uses pairwise summation, whose error is far below that of a running sum.
    return float(values.sum()), float(np.multiply(values, values).sum())


def _sum_of(entry: Statistic) -> Callable[[np.ndarray, float], float]:
    assert entry.sum_of is not None, "only optional statistics have sums of their own"
    return entry.sum_of


NUMPY = Engine(_BLOCK, _scanner, _sum_of, prepare=lambda layout: None, is_ready=lambda layout, added: True)
