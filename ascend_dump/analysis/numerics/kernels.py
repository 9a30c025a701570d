"""Compiled kernels that compare the memory of two tensors. Each element is converted to float64 in a register.

Kernels work block by block, so that a block is still in the cache when it is read a second time. Blocks that are equal,
and blocks with NaN or Inf, are handled by code of their own. Every kernel runs without the GIL. A word is an integer
with the bits of one element.
"""

from __future__ import annotations

import math
import os
import platform
from typing import Any

import numpy as np
from llvmlite import binding, ir
from numba import types

from ascend_dump.statistics.numba_primitives import SUMS, float_bits, inner, intrinsic, kernel, larger, like, prefetch

__all__ = ["SUM_NAMES", "count_codes", "count_unequal", "find_code", "pair"]

#: Elements of a block: two blocks of float64 fit in the cache, beside the memory that they are read from.
_BLOCK = 2048
#: Elements at the beginning of a block that are compared before all others.
_GLANCE = 64
#: Differences are counted in _BINS bins by their size in units in the last place. Differences of zero are spread over
#: as many further bins, from _NONE on: neighbours that increment the same counter would wait for each other. Two
#: elements are counted at a time, in a table of all pairs of bins with _ROW bins per row.
_BINS = 64
_NONE, _ROW = _BINS, 2 * _BINS
#: The smallest normal float64.
_NORMAL = 2.0**-1022
#: The numbers that `pair` returns beside the counts, in this order.
SUM_NAMES = (
    *("d2", "b2", "a2", "ab", "leaning", "total", "largest", "largest_rel", "excess", "where", "signed"),
    *("finite", "nonfinite", "first_nonfinite", "nan_a", "nan_b", "inf_a", "inf_b", "differing2", "differing"),
)
_D2, _B2, _A2, _AB, _LEANING, _TOTAL, _LARGEST, _REL, _EXCESS, _WHERE, _SIGNED = range(11)
_FINITE, _NONFINITE, _FIRST, _NAN_A, _NAN_B, _INF_A, _INF_B, _DIFFERING2, _DIFFERING = range(11, 20)


@intrinsic
def _as_double(typing: Any, word: Any, table: Any) -> Any:
    """Return the float64 value of a word.

    Words of 64 bits are float64, words of 32 bits float32. Signed words of 16 bits are bfloat16, unsigned ones float16.
    Words of 8 bits are looked up in the table, which is () for the other types.
    """

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        bits, values = arguments
        if word == types.float64:
            return bits
        if word.bitwidth == 64:
            return builder.bitcast(bits, ir.DoubleType())
        if word.bitwidth == 8:
            pointer = context.make_array(table)(context, builder, values).data
            return builder.load(builder.gep(pointer, [builder.zext(bits, ir.IntType(64))]))
        if word.bitwidth == 16 and not word.signed and _READS_FLOAT16:
            return builder.fpext(builder.bitcast(bits, ir.HalfType()), ir.DoubleType())
        if word.bitwidth == 16 and not word.signed:
            return _float16_as_double(builder, bits)
        if word.bitwidth == 16:
            bits = builder.shl(builder.zext(bits, _WORD), _WORD(16))
        return builder.fpext(builder.bitcast(bits, ir.FloatType()), ir.DoubleType())

    return types.float64(word, table), generate


_WORD, _LONG = ir.IntType(32), ir.IntType(64)


def _reads_float16() -> bool:
    """Return True if the processor has an instruction that converts float16.

    Without one, LLVM would call a function that numba lacks. numba compiles for the processor that it runs on, and
    caches kernels for this kind of processor only.
    """
    if platform.machine().lower() in ("aarch64", "arm64"):
        return True
    try:
        return bool(binding.get_host_cpu_features().get("f16c")) and "NUMBA_CPU_NAME" not in os.environ
    except RuntimeError:  # LLVM does not know the processor
        return False


_READS_FLOAT16 = _reads_float16()


def _float16_as_double(builder: Any, half: Any) -> Any:
    """Convert float16 to float64 without the instruction.

    The bits are moved to their positions in float32, which makes the number too small by a power of two. This factor is
    multiplied in float64, because products of subnormal float32 are slow. Inf and NaN get the highest exponent.
    """
    bits = builder.and_(builder.shl(builder.sext(half, _WORD), _WORD(13)), _WORD(0x8FFFE000))
    nonfinite = builder.icmp_unsigned("==", builder.and_(bits, _WORD(0x0F800000)), _WORD(0x0F800000))
    value = builder.fpext(builder.bitcast(bits, ir.FloatType()), ir.DoubleType())
    value = builder.bitcast(builder.fmul(value, ir.DoubleType()(2.0**112)), _LONG)
    raised = builder.add(value, builder.select(nonfinite, _LONG((2047 - 1023 - 16) << 52), _LONG(0)))
    return builder.bitcast(raised, ir.DoubleType())


@inner()
def _read(words: Any, table: Any, values: Any) -> None:
    for i in range(words.size):
        values[i] = _as_double(words[i], table)


@inner()
def _same_words(x: Any, y: Any) -> Any:
    # If many words differ, the first ones show it.
    return _are_same(x[:_GLANCE], y[:_GLANCE]) and _are_same(x, y)


@inner()
def _are_same(x: Any, y: Any) -> Any:
    differ = like(0, x[0])
    for i in range(x.size):
        differ = like(differ | like(x[i] ^ y[i], differ), differ)
    return differ == 0


@inner(SUMS)
def _sums_of_equal(words: Any, table: Any) -> Any:
    squares = 0.0
    total = 0.0
    nearest = -np.inf
    for i in range(words.size):
        scale = abs(_as_double(words[i], table))
        squares += scale * scale
        total += scale
        nearest = larger(-scale, nearest)
    return squares, total, -nearest


@inner(SUMS)
def _sums(x: Any, y: Any, table_x: Any, table_y: Any, twice: float, relative: float, heads: Any) -> Any:
    """Return the sums and maxima over a block, as in SUM_NAMES, and True if a relative difference exceeds `relative`.

    The results from `differing2` on are undefined if an element is not finite.

    x, y              words of actual and of the reference
    table_x, table_y  see `_as_double`
    twice             2u, with u the unit of rounding, for the excess |d| - 2u|reference|
    heads             a buffer that is filled with sign and exponent of each difference, and of each reference
    """
    d2 = 0.0
    b2 = 0.0
    a2 = 0.0
    ab = 0.0
    leaning = 0.0
    total = 0.0
    differing2 = 0.0
    differing = 0.0
    largest = 0.0
    excess = -np.inf
    beyond = 0.0
    for i in range(x.size):
        a = _as_double(x[i], table_x)
        b = _as_double(y[i], table_y)
        d = a - b
        d2 += d * d
        b2 += b * b
        a2 += a * a
        ab += a * b
        leaning += math.copysign(d, d * b) if b != 0.0 else 0.0
        size = abs(d)
        scale = abs(b)
        total += scale
        differing2 += b * b if d != 0.0 else 0.0
        differing = larger(scale if d != 0.0 else 0.0, differing)
        largest = larger(size, largest)
        excess = larger(size - twice * scale, excess)
        beyond = larger(size - relative * scale if b != 0.0 else 0.0, beyond)
        heads[0, i] = float_bits(d) >> 48
        heads[1, i] = float_bits(b) >> 48
    return d2, b2, a2, ab, leaning, total, differing2, differing, largest, excess, beyond > 0.0


@inner()
def _largest_relative(x: Any, y: Any) -> float:
    relative = 0.0
    for i in range(x.size):
        scale = abs(y[i])
        relative = larger(abs(x[i] - y[i]) / scale if scale > 0.0 else 0.0, relative)
    return relative


@inner()
def _position_of(x: Any, y: Any, largest: float) -> int:
    for i in range(x.size):
        if abs(x[i] - y[i]) == largest:
            return i
    return -1


@inner()
def _exponent(value: float) -> Any:
    # Inf is a difference of two float64 that overflows.
    return math.frexp(value)[1] - 1 if math.isfinite(value) else 1024


@inner()
def _bin(head: Any, reference: Any, none: Any, kind: Any) -> Any:
    """Return the bin of a difference; `none` if the difference is zero. Bin 1 begins at one unit in the last place.

    head and reference have the sign and exponent of the difference and of the reference. All numbers have 16 bits.
    """
    # Exponents in the bits of float64 are 1023 too large.
    zero = like(0, head)
    exponent = like((head >> 4) & 0x7FF, zero)
    last_place = max(like((reference >> 4) & 0x7FF, zero), like(kind[1] + 1023, zero))
    apart = like(exponent - last_place + like(kind[0] + 1, zero), zero)
    return none if exponent == zero else min(max(apart, zero), like(_BINS - 1, zero))


@inner()
def _direction(head: Any, reference: Any) -> Any:
    """Return 1 if actual is larger in magnitude, -1 if it is smaller, 0 if either number is zero."""
    zero = like(0, head)
    either = ((head & 0x7FF0) == 0) | ((reference & 0x7FF0) == 0)
    return zero if either else like(1 | ((head ^ reference) >> 15), zero)


@inner()
def _bins_of(half: int, kind: Any, heads: Any, pairs: Any) -> Any:
    """Fill `pairs` with the bins of two elements each: one of the first half of a block, one of the second half.

    Return the number of elements of actual that are larger in magnitude, minus the number of smaller elements. Also
    return True if a difference or a reference is zero or subnormal.
    """
    zero = like(0, heads[0, 0])
    signed = zero
    least = like(0x7FF0, zero)
    for i in range(half):
        none = like(_NONE + (i & (_BINS - 1)), zero)
        head, head_reference = heads[0, i], heads[1, i]
        tail, tail_reference = heads[0, half + i], heads[1, half + i]
        directions = like(_direction(head, head_reference) + _direction(tail, tail_reference), zero)
        signed = like(signed + directions, zero)
        nearest = min(min(head & 0x7FF0, head_reference & 0x7FF0), min(tail & 0x7FF0, tail_reference & 0x7FF0))
        least = min(least, like(nearest, zero))
        first, second = _bin(head, head_reference, none, kind), _bin(tail, tail_reference, none, kind)
        pairs[i] = like(second * _ROW + first, pairs[i])
    return signed, least == 0


@inner()
def _are_tiny(x: Any, y: Any, table_x: Any, table_y: Any) -> Any:
    """Return True if a difference or reference is a subnormal float64, whose exponent bits do not show its size."""
    tiny = False
    for i in range(x.size):
        b = _as_double(y[i], table_y)
        size, scale = abs(_as_double(x[i], table_x) - b), abs(b)
        tiny |= ((size < _NORMAL) & (size > 0.0)) | ((scale < _NORMAL) & (scale > 0.0))
    return tiny


@inner()
def _count_each(x: Any, y: Any, table_x: Any, table_y: Any, kind: Any, counts: Any) -> int:
    """Count elements of any size one by one.

    Return the number of elements of actual that are larger in magnitude, minus the number of smaller elements.
    """
    signed = 0
    for i in range(x.size):
        b = _as_double(y[i], table_y)
        d = _as_double(x[i], table_x) - b
        if d != 0.0:
            last_place = kind[1] if b == 0.0 else max(_exponent(b), kind[1])
            apart = min(max(_exponent(d) - last_place + kind[0] + 1, 0), _BINS - 1)
            counts[_NONE * _ROW + apart] += np.uint32(1)
            if b != 0.0:
                signed += 1 if (d > 0.0) == (b > 0.0) else -1
    return signed


@inner()
def _count(pairs: Any, counts: Any, words_a: Any, words_b: Any) -> None:
    """Count pairs of bins, and meanwhile prefetch the memory that follows the block."""
    whole = pairs.size - pairs.size % 4
    for i in range(0, whole, 4):
        prefetch(words_a, words_a.size + 2 * i)
        prefetch(words_b, words_a.size + 2 * i)
        counts[pairs[i]] += np.uint32(1)
        counts[pairs[i + 1]] += np.uint32(1)
        counts[pairs[i + 2]] += np.uint32(1)
        counts[pairs[i + 3]] += np.uint32(1)
    for i in range(whole, pairs.size):
        counts[pairs[i]] += np.uint32(1)


@inner()
def _histogram(counts: Any) -> Any:
    """Return the number of differences in each bin."""
    bins = np.zeros((2, _ROW), dtype=np.int64)
    for second in range(_ROW):
        for first in range(_ROW):
            count = np.int64(counts[second * _ROW + first])
            bins[0, first] += count
            bins[1, second] += count
    return bins[0, :_BINS] + bins[1, :_BINS]


@inner()
def _add(
    words_a: Any,
    words_b: Any,
    table_a: Any,
    table_b: Any,
    values: Any,
    start: int,
    indices: Any,
    kind: Any,
    buffers: Any,
    sums: Any,
    counts: Any,
) -> bool:
    """Add a block in which both sides differ, and return True.

    If the sums of the block are not finite and `indices` is empty, add nothing and return False.

    values   a buffer for the numbers of both sides
    start    index of the first element of the block
    indices  positions of the elements in the block, if only some of its elements are given; else empty
    """
    if words_a.size == 0:
        return True
    heads, pairs = buffers
    d2, b2, a2, ab, leaning, total, differing2, differing, largest, excess, beyond = _sums(
        words_a, words_b, table_a, table_b, 2.0 * kind[2], sums[_REL], heads
    )
    if indices.size == 0 and not math.isfinite(a2 + b2):
        return False
    sums[_D2] += d2
    sums[_B2] += b2
    sums[_A2] += a2
    sums[_AB] += ab
    sums[_LEANING] += leaning
    sums[_TOTAL] += total
    sums[_DIFFERING2] += differing2
    sums[_DIFFERING] = max(sums[_DIFFERING], differing)
    sums[_FINITE] += words_a.size
    sums[_EXCESS] = max(sums[_EXCESS], excess)
    x = values[0, : words_a.size]
    y = values[1, : words_a.size]
    if beyond or largest > sums[_LARGEST]:
        _read(words_a, table_a, x)
        _read(words_b, table_b, y)
    if beyond:
        sums[_REL] = max(sums[_REL], _largest_relative(x, y))
    if largest > sums[_LARGEST]:
        sums[_LARGEST] = largest
        position = _position_of(x, y, largest)
        sums[_WHERE] = start + (position if indices.size == 0 else indices[position])
    if largest > 0.0:
        half = words_a.size >> 1
        signed, zeros = _bins_of(half, kind, heads, pairs)
        if kind[4] and zeros and _are_tiny(words_a, words_b, table_a, table_b):
            sums[_SIGNED] += _count_each(words_a, words_b, table_a, table_b, kind, counts)
        else:
            _count(pairs[:half], counts, words_a, words_b)
            last = _count_each(words_a[2 * half :], words_b[2 * half :], table_a, table_b, kind, counts)
            sums[_SIGNED] += signed + last
    return True


@inner()
def _take_finite(x: Any, y: Any, start: int, indices: Any, sums: Any) -> int:
    """Move the elements that are finite on both sides to the front, and count the others as NaN or Inf.

    Return the number of finite elements. indices: a buffer that is filled with their positions in the block
    """
    count = 0
    for i in range(x.size):
        a = x[i]
        b = y[i]
        if math.isfinite(a) and math.isfinite(b):
            x[count] = a
            y[count] = b
            indices[count] = i
            count += 1
            continue
        sums[_NAN_A] += math.isnan(a)
        sums[_NAN_B] += math.isnan(b)
        sums[_INF_A] += math.isinf(a)
        sums[_INF_B] += math.isinf(b)
        if not ((math.isnan(a) and math.isnan(b)) or a == b):
            if sums[_NONFINITE] == 0:
                sums[_FIRST] = start + i
            sums[_NONFINITE] += 1
    return count


@inner()
def _add_equal(words: Any, table: Any, kind: Any, sums: Any) -> bool:
    """Add a block whose words are equal, and return True; if its sums are not finite, add nothing and return False."""
    squares, total, least = _sums_of_equal(words, table)
    if not math.isfinite(squares):
        return False
    sums[_B2] += squares
    sums[_A2] += squares
    sums[_AB] += squares
    sums[_TOTAL] += total
    sums[_FINITE] += words.size
    sums[_EXCESS] = max(sums[_EXCESS], -2.0 * kind[2] * least)
    return True


@kernel
def pair(a: Any, b: Any, table_a: Any, table_b: Any, kind: Any) -> Any:
    """Return the numbers in SUM_NAMES for two arrays of words, and the number of differences in each bin.

    table_a, table_b    values of words of 8 bits, see `_as_double`
    kind                five values: bits of the significand, lowest exponent and unit of rounding of the coarser type;
                        True if both types are the same, so that equal words are equal values; True if one side is
                        float64
    """
    sums = np.zeros(len(SUM_NAMES))
    sums[_EXCESS] = -np.inf
    sums[_WHERE] = -1
    sums[_FIRST] = -1
    counts = np.zeros(_ROW * _ROW, dtype=np.uint32)
    buffers = np.empty((2, _BLOCK), dtype=np.int16), np.empty(_BLOCK // 2, dtype=np.uint16)
    indices = np.empty(_BLOCK, dtype=np.int64)
    values = np.empty((2, _BLOCK))
    # float64 gets smaller blocks: memory that is prefetched during a block should be used before it leaves the cache.
    block = _BLOCK // 2 if kind[4] else _BLOCK
    for start in range(0, a.size, block):
        words_a = a[start : start + block]
        words_b = b[start : start + block]
        if kind[3] and _same_words(words_a, words_b):
            if _add_equal(words_b, table_b, kind, sums):
                continue
        elif _add(words_a, words_b, table_a, table_b, values, start, indices[:0], kind, buffers, sums, counts):
            continue
        x = values[0, : words_a.size]
        y = values[1, : words_a.size]
        _read(words_a, table_a, x)
        _read(words_b, table_b, y)
        n = _take_finite(x, y, start, indices, sums)
        _add(x[:n], y[:n], (), (), values, start, indices[:n], kind, buffers, sums, counts)
    return sums, _histogram(counts)


@inner()
def _unequal_in_block(x: Any, y: Any) -> Any:
    unequal = 0
    largest = 0.0
    for i in range(x.size):
        unequal += x[i] != y[i]
        largest = larger(abs(np.float64(x[i]) - np.float64(y[i])), largest)
    return unequal, largest


@kernel
def count_unequal(a: Any, b: Any) -> Any:
    """Return the number of elements of exact types that differ, their largest difference, and its index."""
    unequal = 0
    largest = -1.0
    where = -1
    for start in range(0, a.size, _BLOCK):
        x = a[start : start + _BLOCK]
        y = b[start : start + _BLOCK]
        if _same_words(x, y):
            continue
        differing, size = _unequal_in_block(x, y)
        unequal += differing
        if size > largest:
            largest = size
            for i in range(x.size):
                if x[i] != y[i] and abs(np.float64(x[i]) - np.float64(y[i])) == size:
                    where = start + i
                    break
    return unequal, largest, where


@kernel
def count_codes(a: Any, b: Any) -> Any:
    """Count the pairs of byte x of one array and byte y of the other at the same index; the count is at 256 x + y."""
    # Neighbours are counted in two tables, because increments of the same counter would wait for each other.
    counts = np.zeros((2, 1 << 16), dtype=np.int64)
    whole = a.size - a.size % 2
    for i in range(0, whole, 2):
        counts[0, (np.int64(a[i]) << 8) | np.int64(b[i])] += 1
        counts[1, (np.int64(a[i + 1]) << 8) | np.int64(b[i + 1])] += 1
    if whole < a.size:
        counts[0, (np.int64(a[whole]) << 8) | np.int64(b[whole])] += 1
    return counts[0] + counts[1]


@kernel
def find_code(a: Any, b: Any, selected: Any) -> int:
    """Return the index of the first pair of bytes (x, y) for which selected[256 x + y] is True; -1 if there is none."""
    for i in range(a.size):
        if selected[(np.int64(a[i]) << 8) | np.int64(b[i])]:
            return i
    return -1
