"""Compiled statistics of complex64. They are computed from magnitudes; NaN and Inf are counted per element.

An element is two words, the real and the imaginary part; see `_kernels` for the rules of kernels.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ascend_dump.statistics.numba_primitives import BLOCK, as_float, inner, kernel, largest_exponent, two_sum

__all__ = ["scan_complex64"]


# Only called for blocks without NaN and Inf. The flag `nnan` tells the compiler that there is no NaN, so that it can
# vectorise min and max.
@inner({"reassoc", "contract", "nnan", "nsz"})
def _add_complex_block(words: Any) -> Any:
    total = 0.0
    squares = 0.0
    top = 0.0
    low = np.inf
    for i in range(0, words.size, 2):
        real = as_float(words[i], np.int32(0), np.int32(-1))
        imaginary = as_float(words[i + 1], np.int32(0), np.int32(-1))
        # Both products are exact in float64, so a fused multiply-add gives the same result.
        square = real * real + imaginary * imaginary
        total += np.sqrt(square)
        squares += square
        top = max(top, square)
        low = min(low, square)
    return top, low, total, squares


@inner()
def _add_nonfinite_complex_block(words: Any) -> Any:
    infinity = np.uint32(0x7F800000)
    magnitude = np.uint32(0x7FFFFFFF)
    top = -np.inf
    low = np.inf
    nan = 0
    infinite = 0
    for i in range(0, words.size, 2):
        a = np.uint32(words[i] & magnitude)
        b = np.uint32(words[i + 1] & magnitude)
        if a > infinity or b > infinity:
            nan += 1
            continue
        if a == infinity or b == infinity:
            infinite += 1
        real = as_float(a, np.int32(0), np.int32(-1))
        imaginary = as_float(b, np.int32(0), np.int32(-1))
        square = real * real + imaginary * imaginary
        top = max(top, square)
        low = min(low, square)
    return top, low, nan, infinite


@inner()
def _zero_pairs(words: Any) -> int:
    count = 0
    for i in range(0, words.size, 2):
        count += np.uint32((words[i] | words[i + 1]) & np.uint32(0x7FFFFFFF)) == np.uint32(0)
    return count


@kernel
def scan_complex64(words: Any) -> Any:
    exponent = np.uint32(0x7F800000)
    top = -np.inf
    low = np.inf
    total = 0.0
    total_lost = 0.0
    squares = 0.0
    squares_lost = 0.0
    nan = 0
    infinite = 0
    zero = 0
    for start in range(0, words.size, BLOCK):
        block = words[start : start + BLOCK]
        if largest_exponent(block, exponent) == exponent:
            block_top, block_low, a, b = _add_nonfinite_complex_block(block)
            nan += a
            infinite += b
        else:
            block_top, block_low, block_total, block_squares = _add_complex_block(block)
            total, total_lost = two_sum(total, total_lost, block_total)
            squares, squares_lost = two_sum(squares, squares_lost, block_squares)
        top = max(top, block_top)
        low = min(low, block_low)
        zero += _zero_pairs(block)
    if nan * 2 == words.size:
        return -np.inf, np.inf, np.nan, np.nan, nan, 0, 0, 0, 0
    return np.sqrt(top), np.sqrt(low), total + total_lost, squares + squares_lost, nan, infinite, 0, zero, 0
