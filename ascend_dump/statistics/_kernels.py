"""Compiled statistics of floats and integers: one pass over memory, in blocks that fit the first-level cache.

The maximum and minimum are found without converting the elements, because the bits of IEEE floats are ordered: read as
signed integers, the largest pattern is the largest positive number. Read as unsigned integers, the largest pattern is
the most negative number, and the smallest is the positive number closest to zero (if there is no positive number, the
negative number closest to zero). So three integer reductions and two counts of zeros are enough, and only a block with
NaN or Inf is read again. Sums are computed in float64.

A word is a float read as an unsigned integer, or an integer as it is. Every kernel takes the words of one contiguous
non-empty array, releases the GIL and runs on the calling thread only: numba's own threads abort the process if two
threads start them at the same time.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ascend_dump.statistics.numba_primitives import (
    BLOCK,
    SUMS,
    as_float,
    high_half,
    inner,
    kernel,
    like,
    low_half,
    two_sum,
)

__all__ = [
    "count_bools",
    "count_bytes",
    "scan_bfloat16",
    "scan_float16",
    "scan_float32",
    "scan_float64",
    "scan_integers",
]


@inner(SUMS)
def _add_block(values: Any) -> Any:
    total = 0.0
    squares = 0.0
    for i in range(values.size):
        value = np.float64(values[i])
        total += value
        squares += value * value
    return total, squares


# Inlined, so that `shift` becomes a constant: shifting by a constant takes half the time of shifting by a variable.
@inner(inline=True)
def _widen_block(words: Any, wide: Any, shift: Any, mask: Any) -> None:
    for i in range(words.size):
        wide[i] = np.int32(np.int32(np.int32(np.int16(words[i])) << shift) & mask)


@inner()
def _reduce_block(words: Any, lowest: Any, sign: Any) -> Any:
    """Return the largest signed, largest and smallest unsigned word, and the number of +0 and -0."""
    top = lowest
    high = words[0]
    low = words[0]
    plain = like(0, sign)
    minus = like(0, sign)
    for i in range(words.size):
        word = words[i]
        top = max(top, like(word, lowest))
        high = max(high, word)
        low = min(low, word)
        plain = like(plain + like(word == like(0, sign), sign), sign)
        minus = like(minus + like(word == sign, sign), sign)
    return top, high, low, plain, minus


@inner()
def _reduce_nonfinite(words: Any, lowest: Any, sign: Any, infinity: Any) -> Any:
    """Return the three extremes of `_reduce_block` over the words except NaN, and the number of NaN, +Inf and -Inf."""
    magnitude = like(sign - like(1, sign), sign)
    top = lowest
    high = like(0, sign)
    low = like(~like(0, sign), sign)
    nan = like(0, sign)
    posinf = like(0, sign)
    neginf = like(0, sign)
    for i in range(words.size):
        word = words[i]
        missing = like(word & magnitude, sign) > infinity
        top = max(top, lowest if missing else like(word, lowest))
        high = max(high, like(0, sign) if missing else word)
        low = min(low, like(~like(0, sign), sign) if missing else word)
        nan = like(nan + like(missing, sign), sign)
        posinf = like(posinf + like(word == infinity, sign), sign)
        neginf = like(neginf + like(word == like(infinity | sign, sign), sign), sign)
    return top, high, low, nan, posinf, neginf


@inner(inline=True)
def _scan_floats(
    words: Any, values: Any, lowest: Any, sign: Any, infinity: Any, shift: Any, mask: Any, scale: float
) -> Any:
    """Return the fields of `Partial` for an array of floats.

    words: the elements as unsigned integers. values: the same elements as floats of 32 or 64 bits; empty for 16-bit
    types, which are converted to float32: the word is shifted left by `shift` and masked by `mask`, and the result is
    multiplied by `scale`. lowest, sign, infinity: the smallest signed word, the sign bit, and the pattern of +Inf
    """
    # Converting a block into a buffer in the first-level cache is faster than converting in registers.
    wide = np.empty(0 if values.size else BLOCK, dtype=np.int32)
    top = lowest
    high = like(0, sign)
    low = like(~like(0, sign), sign)
    nan = 0
    posinf = 0
    neginf = 0
    poszero = 0
    negzero = 0
    total = 0.0
    total_lost = 0.0
    squares = 0.0
    squares_lost = 0.0
    for start in range(0, words.size, BLOCK):
        block = words[start : start + BLOCK]
        block_top, block_high, block_low, plain, minus = _reduce_block(block, lowest, sign)
        if block_top >= like(infinity, lowest) or block_high >= like(infinity | sign, sign):
            block_top, block_high, block_low, a, b, c = _reduce_nonfinite(block, lowest, sign, infinity)
            nan += np.int64(a)
            posinf += np.int64(b)
            neginf += np.int64(c)
        top = max(top, block_top)
        high = max(high, block_high)
        low = min(low, block_low)
        poszero += np.int64(plain)
        negzero += np.int64(minus)
        if values.size:
            block_total, block_squares = _add_block(values[start : start + BLOCK])
        else:
            _widen_block(block, wide, shift, mask)
            block_total, block_squares = _add_block(wide[: block.size].view(np.float32))
        total, total_lost = two_sum(total, total_lost, block_total)
        squares, squares_lost = two_sum(squares, squares_lost, block_squares)
    if nan == words.size:
        return -np.inf, np.inf, np.nan, np.nan, nan, 0, 0, 0, 0
    return (
        _extreme(low if top < like(0, lowest) else like(top, sign), sign, infinity, shift, mask, scale),
        _extreme(high if high >= sign else low, sign, infinity, shift, mask, scale),
        (total + total_lost) * scale,
        (squares + squares_lost) * scale * scale,
        nan,
        posinf,
        neginf,
        poszero,
        negzero,
    )


@inner()
def _extreme(word: Any, sign: Any, infinity: Any, shift: Any, mask: Any, scale: float) -> Any:
    if word == infinity:
        return np.inf
    if word == like(infinity | sign, sign):
        return -np.inf
    return as_float(word, shift, mask) * scale


@kernel
def scan_float16(words: Any) -> Any:
    # The bits are moved to their places in a float32, which is then 2**-112 times the value. This is exact for
    # subnormals too. NaN and Inf become finite in the sums, but they are counted, so the sums are not used.
    return _scan_floats(
        words,
        np.empty(0, dtype=np.float32),
        np.int16(-0x8000),
        np.uint16(0x8000),
        np.uint16(0x7C00),
        np.int32(13),
        np.int32(-0x70002000),
        2.0**112,
    )


@kernel
def scan_bfloat16(words: Any) -> Any:
    return _scan_floats(
        words,
        np.empty(0, dtype=np.float32),
        np.int16(-0x8000),
        np.uint16(0x8000),
        np.uint16(0x7F80),
        np.int32(16),
        np.int32(-1),
        1.0,
    )


@kernel
def scan_float32(words: Any) -> Any:
    return _scan_floats(
        words,
        words.view(np.float32),
        np.int32(-0x80000000),
        np.uint32(0x80000000),
        np.uint32(0x7F800000),
        np.int32(0),
        np.int32(-1),
        1.0,
    )


@kernel
def scan_float64(words: Any) -> Any:
    return _scan_floats(
        words,
        words.view(np.float64),
        np.int64(-0x8000000000000000),
        np.uint64(0x8000000000000000),
        np.uint64(0x7FF0000000000000),
        np.int32(0),
        np.int32(-1),
        1.0,
    )


@inner(SUMS)
def _square_block(words: Any) -> float:
    squares = 0.0
    for i in range(words.size):
        value = np.float64(words[i])
        squares += value * value
    return squares


@inner()
def _integer_block(words: Any) -> Any:
    top = words[0]
    low = words[0]
    zero = like(0, words[0])
    for i in range(words.size):
        word = words[i]
        top = max(top, word)
        low = min(low, word)
        zero = like(zero + like(word == like(0, word), word), word)
    return top, low, zero


@inner()
def _add_halves(words: Any) -> Any:
    """Return the sums of the high and of the low 32 bits. They are separate, so that neither sum exceeds 64 bits."""
    high = 0
    low = 0
    for i in range(words.size):
        high += high_half(words[i])
        low += low_half(words[i])
    return high, low


@kernel
def scan_integers(words: Any) -> Any:
    # Returns maximum, minimum, sums of the high and of the low 32 bits, sum of squares, and number of zeros.
    top = words[0]
    low = words[0]
    zero = 0
    high_sum = 0
    low_sum = 0
    squares = 0.0
    lost = 0.0
    for start in range(0, words.size, BLOCK):
        block = words[start : start + BLOCK]
        block_top, block_low, block_zero = _integer_block(block)
        top = max(top, block_top)
        low = min(low, block_low)
        zero += np.int64(block_zero)
        block_high_sum, block_low_sum = _add_halves(block)
        high_sum += block_high_sum
        low_sum += block_low_sum
        squares, lost = two_sum(squares, lost, _square_block(block))
    return top, low, high_sum, low_sum, squares + lost, zero


@kernel
def count_bytes(words: Any) -> Any:
    # Four histograms: with a single one, equal neighbouring bytes would have to wait for each other's store.
    counts = np.zeros((4, 256), dtype=np.uint32)
    whole = words.size - words.size % 4
    for i in range(0, whole, 4):
        counts[0, words[i]] += np.uint32(1)
        counts[1, words[i + 1]] += np.uint32(1)
        counts[2, words[i + 2]] += np.uint32(1)
        counts[3, words[i + 3]] += np.uint32(1)
    for i in range(whole, words.size):
        counts[0, words[i]] += np.uint32(1)
    result = np.empty(256, dtype=np.int64)
    for i in range(256):
        result[i] = np.int64(counts[0, i]) + np.int64(counts[1, i]) + np.int64(counts[2, i]) + np.int64(counts[3, i])
    return result


@kernel
def count_bools(words: Any) -> Any:
    counts = np.zeros(256, dtype=np.int64)
    for start in range(0, words.size, BLOCK):
        block = words[start : start + BLOCK]
        zero = np.uint16(0)
        for i in range(block.size):
            zero = np.uint16(zero + np.uint16(block[i] == np.uint8(0)))
        counts[0] += np.int64(zero)
    counts[1] = words.size - counts[0]
    return counts
