"""A fast check for NaN and Inf in an array."""

from __future__ import annotations

from typing import Any

import numpy as np

from ascend_dump.statistics._layout import CHUNK

__all__ = ["surely_finite"]

#: For each dtype: the integer type of its words, and the mask of their exponent bits. A word is an element (or a part
#: of a complex element) read as an unsigned integer.
#: All exponent bits are set in NaN and Inf, and in no other value.
_EXPONENTS = {
    "float16": ("u2", 0x7C00),
    "bfloat16": ("u2", 0x7F80),
    "float32": ("u4", 0x7F80_0000),
    "float64": ("u8", 0x7FF0_0000_0000_0000),
    "complex64": ("u4", 0x7F80_0000),
    "complex128": ("u8", 0x7FF0_0000_0000_0000),
}


def surely_finite(array: np.ndarray[Any, Any]) -> bool:
    """Return True if no element is NaN or Inf.

    The result is True for integers and bools, and for arrays without elements. Of the other types, arrays that are not
    contiguous or not of native byte order, and types without an entry in `_EXPONENTS`, are not checked: the result is
    False.
    """
    if array.dtype.kind in "biu":
        return True
    bits = _EXPONENTS.get(array.dtype.name)
    if bits is None or not array.flags.c_contiguous or not array.dtype.isnative:
        return False
    word, exponent = np.dtype(bits[0]), bits[1]
    words = array.reshape(-1).view(word)
    mask = word.type(exponent)
    return all(bool((words[start : start + CHUNK] & mask).max() != mask) for start in range(0, words.size, CHUNK))
