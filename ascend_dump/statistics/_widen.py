"""Convert words (see `_layout`) to float64."""

from __future__ import annotations

import numpy as np

from ascend_dump.statistics._layout import Layout

__all__ = ["floats", "magnitudes", "widen"]


def widen(layout: Layout, words: np.ndarray, exponent: int = 0) -> np.ndarray:
    """Return the values of words as float64, multiplied by 2**exponent. For complex elements return magnitudes."""
    if layout.table is not None:
        values: np.ndarray = layout.table.lookup[words]
    elif layout.kind == "integer":
        values = words.astype(np.float64)
    else:
        values = floats(layout, words)
    if layout.kind == "complex":
        return magnitudes(layout, values, exponent)
    return np.ldexp(values, exponent) if exponent else values


def magnitudes(layout: Layout, parts: np.ndarray, exponent: int = 0) -> np.ndarray:
    """Return the magnitudes of complex elements, multiplied by 2**exponent.

    parts: the real and the imaginary part of the first element, then those of the second element, and so on
    """
    real, imaginary = parts[0::2], parts[1::2]
    if exponent:
        # The parts are scaled, and not the magnitude, because that may exceed float64 although the parts do not.
        real, imaginary = np.ldexp(real, exponent), np.ldexp(imaginary, exponent)
    if layout.name == "complex128":
        return np.asarray(np.hypot(real, imaginary))
    # The squares of narrower floats are exact in float64 and far below its limits.
    return np.asarray(np.sqrt(real * real + imaginary * imaginary))


def floats(layout: Layout, words: np.ndarray) -> np.ndarray:
    """Return the float64 values of the words of a float or complex layout."""
    if layout.name in ("bfloat16", "bcomplex32"):
        bits = words.astype(np.int32)
        bits <<= 16
        return bits.view(np.float32).astype(np.float64)
    if layout.word.itemsize == 8:
        return words.view(np.float64)
    if layout.word.itemsize == 4:
        return words.view(np.float32).astype(np.float64)
    # float16 is converted by integer operations, because numpy's conversion takes up to six times longer. NaN and Inf
    # become finite numbers, which are replaced below.
    bits = words.view(np.int16).astype(np.int32)
    bits <<= 13
    bits &= -0x70002000
    values = bits.view(np.float32).astype(np.float64)
    values *= 2.0**112
    special = np.bitwise_and(words, np.uint16(0x7C00)) == 0x7C00
    if special.any():
        values[special] = words[special].view(np.float16)
    return values
