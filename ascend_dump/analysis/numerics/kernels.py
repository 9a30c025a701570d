"""The numbers of a pair, compiled: both memories are read block by block, each element becomes a float64 in a register,
and whatever has to look at a block again finds it in the cache.

Blocks of equal words, and blocks with NaN or Inf, have ways of their own. Every kernel runs without the GIL.
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

#: Elements of a block: two blocks of float64 stay in the cache, beside what they are read from.
_BLOCK = 2048
#: Elements of a block that are looked at before all others.
_GLANCE = 64
#: Differences are counted by their size in units in the last place. Those that are zero fill as many bins again, all of
#: them alike: neighbours that add to one count wait for each other. Two elements are counted at a time, in a table of
#: all pairs of bins.
_BINS = 64
_NONE, _ROW = _BINS, 2 * _BINS
#: The smallest normal float64.
_NORMAL = 2.0**-1022
#: What a kernel gives beside the counts, in this order.
SUM_NAMES = (
    *("d2", "b2", "a2", "ab", "leaning", "total", "largest", "largest_rel", "excess", "where", "signed"),
    *("finite", "nonfinite", "first_nonfinite", "nan_a", "nan_b", "inf_a", "inf_b"),
)
_D2, _B2, _A2, _AB, _LEANING, _TOTAL, _LARGEST, _REL, _EXCESS, _WHERE, _SIGNED = range(11)
_FINITE, _NONFINITE, _FIRST, _NAN_A, _NAN_B, _INF_A, _INF_B = range(11, 18)


@intrinsic
def _as_double(typing: Any, word: Any, table: Any) -> Any:
    """The float that a word stands for: float64, float32, bfloat16 if the word is signed, else float16; of 8 bits what
    the table says, which is () for the others. A float64 is what it stands for."""

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
    """Whether the processor has an instruction for it; LLVM calls a function that numba does not have where it has not.

    numba compiles for the processor that it runs on, and keeps kernels of one for this kind of processor only.
    """
    if platform.machine().lower() in ("aarch64", "arm64"):
        return True
    try:
        return bool(binding.get_host_cpu_features().get("f16c")) and "NUMBA_CPU_NAME" not in os.environ
    except RuntimeError:  # of a processor that LLVM does not know
        return False


_READS_FLOAT16 = _reads_float16()


def _float16_as_double(builder: Any, half: Any) -> Any:
    """The bits moved to their places in float32 are a number that is too small by a power of two.

    That is made good in float64: to multiply subnormal numbers of float32 is slow. Inf and NaN get the highest exponent
    of float64.
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
    # Where many differ, the first ones tell it.
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
    """The sums, the largest difference and excess, and whether a difference is more than `relative` of its reference.

    The last three are nonsense where an element is not finite. x, y, table_x, table_y: words, and what they stand for.
    heads: room for sign and exponent of each difference and reference.
    """
    d2 = 0.0
    b2 = 0.0
    a2 = 0.0
    ab = 0.0
    leaning = 0.0
    total = 0.0
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
        largest = larger(size, largest)
        excess = larger(size - twice * scale, excess)
        beyond = larger(size - relative * scale if b != 0.0 else 0.0, beyond)
        heads[0, i] = float_bits(d) >> 48
        heads[1, i] = float_bits(b) >> 48
    return d2, b2, a2, ab, leaning, total, largest, excess, beyond > 0.0


@inner()
def _largest_relative(x: Any, y: Any) -> float:
    relative = 0.0
    for i in range(x.size):
        scale = abs(y[i])
        relative = larger(abs(x[i] - y[i]) / scale if scale > 0.0 else 0.0, relative)
    return relative


@inner()
def _place_of(x: Any, y: Any, largest: float) -> int:
    for i in range(x.size):
        if abs(x[i] - y[i]) == largest:
            return i
    return -1


@inner()
def _exponent(value: float) -> Any:
    return math.frexp(value)[1] - 1


@inner()
def _bin(head: Any, reference: Any, none: Any, kind: Any) -> Any:
    """Where a difference is counted, of the sign and exponent of it and of the reference; bin 1 begins at one unit in
    the last place. All in 16 bits."""
    # Exponents are those in the bits of float64, which are 1023 more than they stand for.
    zero = like(0, head)
    exponent = like((head >> 4) & 0x7FF, zero)
    place = max(like((reference >> 4) & 0x7FF, zero), like(kind[1] + 1023, zero))
    apart = like(exponent - place + like(kind[0] + 1, zero), zero)
    return none if exponent == zero else min(max(apart, zero), like(_BINS - 1, zero))


@inner()
def _direction(head: Any, reference: Any) -> Any:
    """1 if actual is the larger one in magnitude, -1 if it is the smaller one, 0 if either number is zero."""
    zero = like(0, head)
    either = ((head & 0x7FF0) == 0) | ((reference & 0x7FF0) == 0)
    return zero if either else like(1 | ((head ^ reference) >> 15), zero)


@inner()
def _bins_of(half: int, kind: Any, heads: Any, pairs: Any) -> Any:
    """The bins of each element of the first half of a block and of the one as far in the second, as one number.

    Gives by how many more of actual are larger than smaller, and whether a difference or a reference is zero or nearly.
    """
    zero = like(0, heads[0, 0])
    signed = zero
    least = like(0x7FF0, zero)
    for i in range(half):
        none = like(_NONE + (i & (_BINS - 1)), zero)
        left, left_reference = heads[0, i], heads[1, i]
        right, right_reference = heads[0, half + i], heads[1, half + i]
        directions = like(_direction(left, left_reference) + _direction(right, right_reference), zero)
        signed = like(signed + directions, zero)
        nearest = min(min(left & 0x7FF0, left_reference & 0x7FF0), min(right & 0x7FF0, right_reference & 0x7FF0))
        least = min(least, like(nearest, zero))
        first, second = _bin(left, left_reference, none, kind), _bin(right, right_reference, none, kind)
        pairs[i] = like(second * _ROW + first, pairs[i])
    return signed, least == 0


@inner()
def _are_tiny(x: Any, y: Any, table_x: Any, table_y: Any) -> Any:
    """Whether a difference or reference is below the smallest normal float64: its exponent does not say its size."""
    tiny = False
    for i in range(x.size):
        b = _as_double(y[i], table_y)
        size, scale = abs(_as_double(x[i], table_x) - b), abs(b)
        tiny |= ((size < _NORMAL) & (size > 0.0)) | ((scale < _NORMAL) & (scale > 0.0))
    return tiny


@inner()
def _count_each(x: Any, y: Any, table_x: Any, table_y: Any, kind: Any, counts: Any) -> int:
    """Count elements one by one, of any size; gives by how many more of actual are larger than smaller."""
    signed = 0
    for i in range(x.size):
        b = _as_double(y[i], table_y)
        d = _as_double(x[i], table_x) - b
        if d != 0.0:
            place = kind[1] if b == 0.0 else max(_exponent(b), kind[1])
            apart = min(max(_exponent(d) - place + kind[0] + 1, 0), _BINS - 1)
            counts[_NONE * _ROW + apart] += np.uint32(1)
            if b != 0.0:
                signed += 1 if (d > 0.0) == (b > 0.0) else -1
    return signed


@inner()
def _count(pairs: Any, counts: Any, left: Any, right: Any) -> None:
    """Count pairs of bins, while the memory gets ready what follows the block."""
    whole = pairs.size - pairs.size % 4
    for i in range(0, whole, 4):
        prefetch(left, left.size + 2 * i)
        prefetch(right, left.size + 2 * i)
        counts[pairs[i]] += np.uint32(1)
        counts[pairs[i + 1]] += np.uint32(1)
        counts[pairs[i + 2]] += np.uint32(1)
        counts[pairs[i + 3]] += np.uint32(1)
    for i in range(whole, pairs.size):
        counts[pairs[i]] += np.uint32(1)


@inner()
def _histogram(counts: Any) -> Any:
    """How many differences are in each bin."""
    bins = np.zeros((2, _ROW), dtype=np.int64)
    for second in range(_ROW):
        for first in range(_ROW):
            count = np.int64(counts[second * _ROW + first])
            bins[0, first] += count
            bins[1, second] += count
    return bins[0, :_BINS] + bins[1, :_BINS]


@inner()
def _add(
    left: Any,
    right: Any,
    table_a: Any,
    table_b: Any,
    values: Any,
    start: int,
    places: Any,
    kind: Any,
    room: Any,
    found: Any,
    counts: Any,
) -> bool:
    """A block that is not equal; False, and nothing is done, if its sums are not finite and `places` is empty.

    values  room for the numbers of both sides
    places  of the elements, where only some of the block are looked at
    """
    if left.size == 0:
        return True
    heads, pairs = room
    d2, b2, a2, ab, leaning, total, largest, excess, beyond = _sums(
        left, right, table_a, table_b, 2.0 * kind[2], found[_REL], heads
    )
    if places.size == 0 and not math.isfinite(a2 + b2):
        return False
    found[_D2] += d2
    found[_B2] += b2
    found[_A2] += a2
    found[_AB] += ab
    found[_LEANING] += leaning
    found[_TOTAL] += total
    found[_FINITE] += left.size
    found[_EXCESS] = max(found[_EXCESS], excess)
    x = values[0, : left.size]
    y = values[1, : left.size]
    if beyond or largest > found[_LARGEST]:
        _read(left, table_a, x)
        _read(right, table_b, y)
    if beyond:
        found[_REL] = max(found[_REL], _largest_relative(x, y))
    if largest > found[_LARGEST]:
        found[_LARGEST] = largest
        place = _place_of(x, y, largest)
        found[_WHERE] = start + (place if places.size == 0 else places[place])
    if largest > 0.0:
        half = left.size >> 1
        signed, zeros = _bins_of(half, kind, heads, pairs)
        if kind[4] and zeros and _are_tiny(left, right, table_a, table_b):
            found[_SIGNED] += _count_each(left, right, table_a, table_b, kind, counts)
        else:
            _count(pairs[:half], counts, left, right)
            rest = _count_each(left[2 * half :], right[2 * half :], table_a, table_b, kind, counts)
            found[_SIGNED] += signed + rest
    return True


@inner()
def _take_finite(x: Any, y: Any, start: int, places: Any, found: Any) -> int:
    """Move what is finite on both sides to the front of the block, and count the rest; gives how many that are."""
    count = 0
    for i in range(x.size):
        a = x[i]
        b = y[i]
        if math.isfinite(a) and math.isfinite(b):
            x[count] = a
            y[count] = b
            places[count] = i
            count += 1
            continue
        found[_NAN_A] += math.isnan(a)
        found[_NAN_B] += math.isnan(b)
        found[_INF_A] += math.isinf(a)
        found[_INF_B] += math.isinf(b)
        if not ((math.isnan(a) and math.isnan(b)) or a == b):
            if found[_NONFINITE] == 0:
                found[_FIRST] = start + i
            found[_NONFINITE] += 1
    return count


@inner()
def _add_equal(words: Any, table: Any, kind: Any, found: Any) -> bool:
    """A block whose words are equal; False, and nothing is done, if its sums are not finite."""
    squares, total, least = _sums_of_equal(words, table)
    if not math.isfinite(squares):
        return False
    found[_B2] += squares
    found[_A2] += squares
    found[_AB] += squares
    found[_TOTAL] += total
    found[_FINITE] += words.size
    found[_EXCESS] = max(found[_EXCESS], -2.0 * kind[2] * least)
    return True


@kernel
def pair(a: Any, b: Any, table_a: Any, table_b: Any, kind: Any) -> Any:
    """The sums of two arrays of words, and how many of their differences are in each bin.

    table_a, table_b    what the words stand for, see `_as_double`
    kind                bits of the significand, lowest exponent and unit of rounding of the coarser type; whether equal
                        words of both sides are equal values; whether one side is float64
    """
    found = np.zeros(len(SUM_NAMES))
    found[_EXCESS] = -np.inf
    found[_WHERE] = -1
    found[_FIRST] = -1
    counts = np.zeros(_ROW * _ROW, dtype=np.uint32)
    room = np.empty((2, _BLOCK), dtype=np.int16), np.empty(_BLOCK // 2, dtype=np.uint16)
    places = np.empty(_BLOCK, dtype=np.int64)
    values = np.empty((2, _BLOCK))
    # What is fetched while a block is counted should be there soon after.
    block = _BLOCK // 2 if kind[4] else _BLOCK
    for start in range(0, a.size, block):
        left = a[start : start + block]
        right = b[start : start + block]
        if kind[3] and _same_words(left, right):
            if _add_equal(right, table_b, kind, found):
                continue
        elif _add(left, right, table_a, table_b, values, start, places[:0], kind, room, found, counts):
            continue
        x = values[0, : left.size]
        y = values[1, : left.size]
        _read(left, table_a, x)
        _read(right, table_b, y)
        n = _take_finite(x, y, start, places, found)
        _add(x[:n], y[:n], (), (), values, start, places[:n], kind, room, found, counts)
    return found, _histogram(counts)


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
    """Of exact types: how many elements differ, by how much at most, and where."""
    unequal = 0
    largest = -1.0
    where = -1
    for start in range(0, a.size, _BLOCK):
        x = a[start : start + _BLOCK]
        y = b[start : start + _BLOCK]
        if _same_words(x, y):
            continue
        some, size = _unequal_in_block(x, y)
        unequal += some
        if size > largest:
            largest = size
            for i in range(x.size):
                if x[i] != y[i] and abs(np.float64(x[i]) - np.float64(y[i])) == size:
                    where = start + i
                    break
    return unequal, largest, where


@kernel
def count_codes(a: Any, b: Any) -> Any:
    """Of two arrays of bytes: how often the byte x of one and y of the other are together, at 256 x + y."""
    # Neighbours are counted apart, as above.
    counts = np.zeros((2, 1 << 16), dtype=np.int64)
    whole = a.size - a.size % 2
    for i in range(0, whole, 2):
        counts[0, (np.int64(a[i]) << 8) | np.int64(b[i])] += 1
        counts[1, (np.int64(a[i + 1]) << 8) | np.int64(b[i + 1])] += 1
    if whole < a.size:
        counts[0, (np.int64(a[whole]) << 8) | np.int64(b[whole])] += 1
    return counts[0] + counts[1]


@kernel
def find_code(a: Any, b: Any, wanted: Any) -> int:
    """Where the first pair of bytes is that is wanted, by its number in `count_codes`; -1 if there is none."""
    for i in range(a.size):
        if wanted[(np.int64(a[i]) << 8) | np.int64(b[i])]:
            return i
    return -1
