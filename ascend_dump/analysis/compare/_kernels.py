"""The numbers of a pair, compiled: both memories are looked at block by block, in float64.

Blocks of equal words, and blocks with NaN or Inf, have ways of their own. Every kernel runs without the GIL.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ascend_dump.statistics._numba_primitives import SUMS, inner, kernel, like

__all__ = ["SUM_NAMES", "count_unequal", "pair_float32", "pair_float64", "pair_halves", "pair_table"]

#: Elements of a block: two blocks of float64 stay in the cache, beside what they are read from.
_BLOCK = 1024
_BINS = 64
#: What the kernels give beside the histogram, in this order.
SUM_NAMES = (
    *("d2", "b2", "a2", "ab", "leaning", "total", "largest", "largest_rel", "excess", "where", "unequal", "signed"),
    *("finite", "nonfinite", "first_nonfinite", "nan_a", "nan_b", "inf_a", "inf_b"),
)
_D2, _B2, _A2, _AB, _LEANING, _TOTAL, _LARGEST, _REL, _EXCESS, _WHERE, _UNEQUAL, _SIGNED = range(12)
_FINITE, _NONFINITE, _FIRST, _NAN_A, _NAN_B, _INF_A, _INF_B = range(12, 19)

_EXTREMES = frozenset({"reassoc", "contract", "nnan", "nsz"})


@inner()
def _begin() -> Any:
    found = np.zeros(19)
    found[_EXCESS] = -np.inf
    found[_WHERE] = -1
    found[_FIRST] = -1
    return found


@inner(SUMS)
def _sum_block(x: Any, y: Any) -> Any:
    d2 = 0.0
    b2 = 0.0
    a2 = 0.0
    ab = 0.0
    leaning = 0.0
    total = 0.0
    unequal = 0.0
    signed = 0.0
    for i in range(x.size):
        a = np.float64(x[i])
        b = np.float64(y[i])
        d = a - b
        d2 += d * d
        b2 += b * b
        a2 += a * a
        ab += a * b
        away = d if b > 0 else (-d if b < 0 else 0.0)
        leaning += away
        total += abs(b)
        unequal += 0.0 if d == 0 else 1.0
        signed += 1.0 if away > 0 else (-1.0 if away < 0 else 0.0)
    return d2, b2, a2, ab, leaning, total, unequal, signed


@inner(_EXTREMES)
def _extremes_of_block(x: Any, y: Any, twice: float, relative: float) -> Any:
    """The largest difference and excess, and whether some difference is more than `relative` of its reference."""
    largest = 0.0
    excess = -np.inf
    beyond = 0.0
    for i in range(x.size):
        b = np.float64(y[i])
        size = abs(np.float64(x[i]) - b)
        scale = abs(b)
        largest = max(largest, size)
        excess = max(excess, size - twice * scale)
        beyond = max(beyond, size - relative * scale if scale > 0.0 else 0.0)
    return largest, excess, beyond > 0.0


@inner(_EXTREMES)
def _relative_of_block(x: Any, y: Any) -> float:
    relative = 0.0
    for i in range(x.size):
        b = np.float64(y[i])
        scale = abs(b)
        relative = max(relative, abs(np.float64(x[i]) - b) / scale if scale > 0.0 else 0.0)
    return relative


@inner(_EXTREMES)
def _equal_block(y: Any) -> Any:
    squares = 0.0
    total = 0.0
    least = np.inf
    for i in range(y.size):
        scale = abs(np.float64(y[i]))
        squares += scale * scale
        total += scale
        least = min(least, scale)
    return squares, total, least


@inner()
def _same_words(x: Any, y: Any) -> bool:
    differ = 0
    for i in range(x.size):
        differ |= x[i] ^ y[i]
    return differ == 0


@inner()
def _exponent(value: float) -> int:
    return math.frexp(value)[1] - 1


@inner()
def _bin(difference: float, reference: float, mantissa: int, lowest: int) -> int:
    place = lowest if reference == 0.0 else max(_exponent(reference), lowest)
    return min(max(_exponent(difference) + 1 - place + mantissa, 0), _BINS - 1)


@inner()
def _bins_of_block(d: Any, scales: Any, first: Any, bins: Any) -> Any:
    """Of each difference its place in the histogram; `_BINS` of those that are 0, or too small for an exponent."""
    mantissa, lowest, bias, last, none = first[0], first[1], first[2], first[3], first[4]
    bits = d.view(np.uint64)
    others = scales.view(np.uint64)
    exponents = bins[1]
    places = bins[2]
    for i in range(d.size):
        exponents[i] = np.int32((bits[i] >> np.uint64(52)) & np.uint64(0x7FF))
        places[i] = np.int32((others[i] >> np.uint64(52)) & np.uint64(0x7FF))
    found = bins[0]
    zero = like(0, mantissa)
    seen = 0
    for i in range(d.size):
        place = max(like(places[i] - bias, mantissa), lowest)
        # 1 more than the distance: bin 1 begins at one unit.
        apart = like(like(exponents[i] - bias, mantissa) - like(place - mantissa, mantissa) + 1, mantissa)
        apart = min(max(apart, zero), last)
        found[i] = none if exponents[i] == zero else apart
        seen += exponents[i] != zero
    return seen


@inner()
def _count_block(x: Any, y: Any, room: Any, unequal: int, kind: Any, ulp: Any) -> None:
    """Count how many units in the last place the elements are apart."""
    n = x.size
    d, bins = room
    mantissa, lowest = kind[0], kind[1]
    if unequal < n // 8:
        for i in range(n):
            b = np.float64(y[i])
            difference = np.float64(x[i]) - b
            if difference != 0.0:
                ulp[0, _bin(difference, b, mantissa, lowest)] += 1
        return
    for i in range(n):
        b = np.float64(y[i])
        d[0, i] = np.float64(x[i]) - b
        d[1, i] = b
    first = (np.int32(mantissa), np.int32(lowest), np.int32(1023), np.int32(_BINS - 1), np.int32(_BINS))
    seen = _bins_of_block(d[0, :n], d[1, :n], first, bins)
    found = bins[0]
    if seen < unequal:
        for i in range(n):
            if found[i] == _BINS and d[0, i] != 0.0:
                found[i] = _bin(d[0, i], d[1, i], mantissa, lowest)
    # Equal neighbours would wait for each other's store in one histogram.
    whole = n - n % 4
    for i in range(0, whole, 4):
        ulp[0, found[i]] += 1
        ulp[1, found[i + 1]] += 1
        ulp[2, found[i + 2]] += 1
        ulp[3, found[i + 3]] += 1
    for i in range(whole, n):
        ulp[0, found[i]] += 1


@inner()
def _add(x: Any, y: Any, room: Any, start: int, kind: Any, ulp: Any, found: Any) -> bool:
    """A block that is not equal; False, and nothing is done, if the sums are not finite."""
    d2, b2, a2, ab, leaning, total, unequal, signed = _sum_block(x, y)
    if not np.isfinite(a2 + b2 + d2) and x.size > 1:
        return False
    found[_D2] += d2
    found[_B2] += b2
    found[_A2] += a2
    found[_AB] += ab
    found[_LEANING] += leaning
    found[_TOTAL] += total
    found[_FINITE] += x.size
    found[_UNEQUAL] += unequal
    found[_SIGNED] += signed
    largest, excess, more = _extremes_of_block(x, y, 2.0 * kind[2], found[_REL])
    found[_EXCESS] = max(found[_EXCESS], excess)
    if more:
        found[_REL] = max(found[_REL], _relative_of_block(x, y))
    if largest > found[_LARGEST]:
        found[_LARGEST] = largest
        for i in range(x.size):
            if abs(np.float64(x[i]) - np.float64(y[i])) == largest:
                found[_WHERE] = start + i
                break
    if largest > 0.0:
        _count_block(x, y, room, int(unequal), kind, ulp)
    return True


@inner()
def _add_one_by_one(x: Any, y: Any, room: Any, start: int, kind: Any, ulp: Any, found: Any) -> None:
    """A block with NaN or Inf, or whose squares leave the range."""
    for i in range(x.size):
        a = np.float64(x[i])
        b = np.float64(y[i])
        if np.isfinite(a) and np.isfinite(b):
            _add(x[i : i + 1], y[i : i + 1], room, start + i, kind, ulp, found)
            continue
        found[_NAN_A] += np.isnan(a)
        found[_NAN_B] += np.isnan(b)
        found[_INF_A] += np.isinf(a)
        found[_INF_B] += np.isinf(b)
        if not ((np.isnan(a) and np.isnan(b)) or a == b):
            if found[_NONFINITE] == 0:
                found[_FIRST] = start + i
            found[_NONFINITE] += 1


@inner()
def _block(
    a: Any,
    b: Any,
    x: Any,
    y: Any,
    room: Any,
    start: int,
    kind: Any,
    ulp: Any,
    found: Any,
) -> None:
    """Words of both sides, and what they are as float32 or float64."""
    done = False
    if _same_words(a, b):
        squares, total, least = _equal_block(y)
        if np.isfinite(squares):
            found[_B2] += squares
            found[_A2] += squares
            found[_AB] += squares
            found[_TOTAL] += total
            found[_FINITE] += y.size
            found[_EXCESS] = max(found[_EXCESS], -2.0 * kind[2] * least)
            done = True
    else:
        done = _add(x, y, room, start, kind, ulp, found)
    if not done:
        _add_one_by_one(x, y, room, start, kind, ulp, found)


@kernel
def pair_float32(a: Any, b: Any, mantissa: int, lowest: int, unit: float) -> Any:
    found = _begin()
    ulp = np.zeros((4, _BINS + 1), dtype=np.int64)
    room = np.empty((2, _BLOCK)), np.empty((3, _BLOCK), dtype=np.int32)
    kind = mantissa, lowest, unit
    for start in range(0, a.size, _BLOCK):
        left = a[start : start + _BLOCK]
        right = b[start : start + _BLOCK]
        _block(left, right, left.view(np.float32), right.view(np.float32), room, start, kind, ulp, found)
    return found, ulp


@kernel
def pair_float64(a: Any, b: Any, mantissa: int, lowest: int, unit: float) -> Any:
    found = _begin()
    ulp = np.zeros((4, _BINS + 1), dtype=np.int64)
    room = np.empty((2, _BLOCK)), np.empty((3, _BLOCK), dtype=np.int32)
    kind = mantissa, lowest, unit
    for start in range(0, a.size, _BLOCK):
        left = a[start : start + _BLOCK]
        right = b[start : start + _BLOCK]
        _block(left, right, left.view(np.float64), right.view(np.float64), room, start, kind, ulp, found)
    return found, ulp


@inner()
def _widen_halves(words: Any, shift: Any, mask: Any, scale: Any, infinity: Any, bits: Any, wide: Any) -> None:
    """The 16 bits of a float as float32. Those of float16 are moved, and scaled by a power of two, which is exact."""
    for i in range(words.size):
        bits[i] = (np.int32(words[i]) << shift) & mask
    if scale == np.float32(1):
        return
    for i in range(words.size):
        wide[i] *= scale
    top = np.int16(0)
    for i in range(words.size):
        top = max(top, like(words[i] & np.int16(0x7FFF), top))
    if top >= infinity:
        # NaN and Inf came out finite.
        for i in range(words.size):
            magnitude = words[i] & 0x7FFF
            if magnitude >= infinity:
                wide[i] = np.nan if magnitude > infinity else (np.inf if words[i] == infinity else -np.inf)


@kernel
def pair_halves(
    a: Any, b: Any, mantissa: int, lowest: int, unit: float, shift: Any, mask: Any, scale: Any, infinity: Any
) -> Any:
    found = _begin()
    ulp = np.zeros((4, _BINS + 1), dtype=np.int64)
    room = np.empty((2, _BLOCK)), np.empty((3, _BLOCK), dtype=np.int32)
    kind = mantissa, lowest, unit
    x = np.empty(_BLOCK, dtype=np.int32)
    y = np.empty(_BLOCK, dtype=np.int32)
    for start in range(0, a.size, _BLOCK):
        n = min(_BLOCK, a.size - start)
        left = a[start : start + n]
        right = b[start : start + n]
        values = x[:n].view(np.float32)
        others = y[:n].view(np.float32)
        _widen_halves(left, shift, mask, scale, infinity, x[:n], values)
        _widen_halves(right, shift, mask, scale, infinity, y[:n], others)
        _block(left, right, values, others, room, start, kind, ulp, found)
    return found, ulp


@kernel
def pair_table(a: Any, b: Any, mantissa: int, lowest: int, unit: float, table: Any) -> Any:
    """Of one-byte types, whose 256 values are in a table."""
    found = _begin()
    ulp = np.zeros((4, _BINS + 1), dtype=np.int64)
    room = np.empty((2, _BLOCK)), np.empty((3, _BLOCK), dtype=np.int32)
    kind = mantissa, lowest, unit
    x = np.empty(_BLOCK, dtype=np.float32)
    y = np.empty(_BLOCK, dtype=np.float32)
    for start in range(0, a.size, _BLOCK):
        n = min(_BLOCK, a.size - start)
        left = a[start : start + n]
        right = b[start : start + n]
        for i in range(n):
            x[i] = table[left[i]]
            y[i] = table[right[i]]
        _block(left, right, x[:n], y[:n], room, start, kind, ulp, found)
    return found, ulp


@kernel
def count_unequal(a: Any, b: Any) -> Any:
    """Of exact types: how many elements differ, by how much at most, and where."""
    unequal = 0
    largest = -1.0
    where = -1
    for start in range(0, a.size, _BLOCK):
        left = a[start : start + _BLOCK]
        right = b[start : start + _BLOCK]
        if _same_words(left, right):
            continue
        for i in range(left.size):
            if left[i] != right[i]:
                unequal += 1
                size = abs(np.float64(left[i]) - np.float64(right[i]))
                if size > largest:
                    largest = size
                    where = start + i
    return unequal, largest, where
