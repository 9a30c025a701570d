"""Compiled functions that read JSON numbers as a JSON decoder does: the nearest float64, and integers.

A text is given by its address in memory, because numba counts the references to an array in each call.

The nearest float64 is computed by the method of Eisel and Lemire ("Number parsing at a gigabyte per second"): the first
19 digits are multiplied by 128 bits of the power of ten. Numbers for which this may round wrongly are not read.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba import types

from ascend_dump.statistics.numba_primitives import inner, intrinsic

__all__ = ["byte_at", "powers_of_five", "read_float", "read_integer", "word_at"]

#: The exponents of ten that are read. Numbers near the limits of float64 are left to the decoder.
_LEAST, _LARGEST = -300, 290
_LONG, _LONGER = ir.IntType(64), ir.IntType(128)
_ZERO, _NINE, _MINUS, _PLUS, _POINT = ord("0"), ord("9"), ord("-"), ord("+"), ord(".")
_EXPONENT, _CAPITAL_EXPONENT = ord("e"), ord("E")
#: The exponents with which a product of 128 bits is exact enough for each number of 19 digits.
_HALVES = (-27, 55)
#: Digits that fit in 64 bits.
_MOST_DIGITS = 19


def powers_of_five() -> np.ndarray:
    """Return the first 128 bits of 5**q for each exponent that is read, as two numbers of 64 bits each."""
    words = []
    for exponent in range(_LEAST, _LARGEST + 1):
        power = 5 ** abs(exponent)
        if exponent < 0:
            # Rounded up where halves between two numbers are possible, so that their products are recognised.
            bits = power.bit_length() * (1 if exponent >= _HALVES[0] else 2)
            power = (1 << (bits + (127 if exponent >= _HALVES[0] else 128))) // power + 1
        surplus = power.bit_length() - 128
        power = power >> surplus if surplus > 0 else power << -surplus
        words.append((power >> 64, power & (2**64 - 1)))
    return np.array(words, np.uint64)


@intrinsic
def _high_product(typing: Any, first: Any, second: Any) -> Any:
    """Return the high 64 bits of the product of two unsigned integers of 64 bits."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        wide = [builder.zext(argument, _LONGER) for argument in arguments]
        return builder.trunc(builder.lshr(builder.mul(*wide), _LONGER(64)), _LONG)

    return types.uint64(types.uint64, types.uint64), generate


@intrinsic
def _leading_zeros(typing: Any, word: Any) -> Any:
    """Return the number of zero bits above the highest one of an unsigned integer of 64 bits, as int64."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.ctlz(arguments[0], ir.IntType(1)(1))

    return types.int64(types.uint64), generate


@intrinsic
def _float_of_bits(typing: Any, word: Any) -> Any:
    """Return the float64 with these bits."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.bitcast(arguments[0], ir.DoubleType())

    return types.float64(types.uint64), generate


@intrinsic
def byte_at(typing: Any, address: Any) -> Any:
    """Return the byte at an address, as int64."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        pointer = builder.inttoptr(arguments[0], ir.IntType(8).as_pointer())
        return builder.zext(builder.load(pointer), _LONG)

    return types.int64(types.int64), generate


@intrinsic
def word_at(typing: Any, address: Any) -> Any:
    """Return the eight bytes at an address, as uint64."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.load(builder.inttoptr(arguments[0], _LONG.as_pointer()), align=1)

    return types.uint64(types.int64), generate


@inner()
def read_integer(text: int, begin: int, end: int) -> tuple[int, int]:
    """Return the integer of at most 18 digits at `begin`, and its end; the end is -1 if there is none."""
    position = begin
    is_negative = position < end and byte_at(text + position) == _MINUS
    if is_negative:
        position += 1
    first = position
    number = 0
    while position < end and _ZERO <= byte_at(text + position) <= _NINE:
        number = number * 10 + (byte_at(text + position) - _ZERO)
        position += 1
        if position - first > 18:
            return 0, -1
    digits = position - first
    # JSON has no leading zeros; -0 is left to the decoder.
    if digits == 0 or (byte_at(text + first) == _ZERO and (digits > 1 or is_negative)):
        return 0, -1
    return (-number if is_negative else number), position


@inner()
def read_float(text: int, begin: int, end: int, powers: int) -> tuple[float, int, bool]:
    """Return the number at `begin`, its end, and True if it is written as a float; the end is -1 if it is not read."""
    position = begin
    is_negative = position < end and byte_at(text + position) == _MINUS
    if is_negative:
        position += 1
    first = position
    digits = np.uint64(0)
    count = 0
    exponent = 0
    point = -1
    while position < end:
        character = byte_at(text + position)
        if _ZERO <= character <= _NINE:
            if count or character != _ZERO:
                count += 1
                if count > _MOST_DIGITS:
                    return 0.0, -1, False
            digits = digits * np.uint64(10) + np.uint64(character - _ZERO)
        elif character == _POINT and point < 0 and position > first:
            point = position
        else:
            break
        position += 1
    whole_end = position if point < 0 else point
    if whole_end == first or (byte_at(text + first) == _ZERO and whole_end - first > 1) or position - 1 == point:
        return 0.0, -1, False
    if point >= 0:
        exponent = point + 1 - position
    is_float = point >= 0
    if position < end and (byte_at(text + position) == _EXPONENT or byte_at(text + position) == _CAPITAL_EXPONENT):
        is_float = True
        position += 1
        has_sign = position < end and (byte_at(text + position) == _MINUS or byte_at(text + position) == _PLUS)
        is_small = has_sign and byte_at(text + position) == _MINUS
        if has_sign:
            position += 1
        begin_exponent = position
        written = 0
        while position < end and _ZERO <= byte_at(text + position) <= _NINE and position - begin_exponent < 5:
            written = written * 10 + (byte_at(text + position) - _ZERO)
            position += 1
        if position == begin_exponent or (position < end and _ZERO <= byte_at(text + position) <= _NINE):
            return 0.0, -1, False
        exponent += -written if is_small else written
    if not is_float and position - first > 18:
        return 0.0, -1, False
    if digits == np.uint64(0):
        if not is_float and is_negative:
            return 0.0, -1, False
        return (-0.0 if is_negative else 0.0), position, is_float
    if not _LEAST <= exponent <= _LARGEST:
        return 0.0, -1, False
    bits = _nearest(digits, exponent, powers)
    if bits == np.uint64(0):
        return 0.0, -1, False
    value = _float_of_bits(bits)
    return (-value if is_negative else value), position, is_float


@inner()
def _nearest(digits: Any, exponent: int, powers: int) -> Any:
    """Return the bits of the float64 next to digits * 10**exponent; 0 if it is not certain or not a normal number."""
    zeros = _leading_zeros(digits)
    word = digits << np.uint64(zeros)
    row = exponent - _LEAST
    high, low = _high_product(word, word_at(powers + 16 * row)), word * word_at(powers + 16 * row)
    if (high & np.uint64(0x1FF)) == np.uint64(0x1FF):
        more = _high_product(word, word_at(powers + 16 * row + 8))
        low += more
        if more > low:
            high += np.uint64(1)
    if low == np.uint64(0xFFFFFFFFFFFFFFFF) and not _HALVES[0] <= exponent <= _HALVES[1]:
        return np.uint64(0)
    upper = high >> np.uint64(63)
    shift = upper + np.uint64(9)
    mantissa = high >> shift
    power = ((217706 * exponent) >> 16) + 63 + np.int64(upper) - zeros + 1023
    # Halfway between two numbers: the even one is the nearest.
    is_halfway = low <= np.uint64(1) and -4 <= exponent <= 23 and (mantissa & np.uint64(3)) == np.uint64(1)
    if is_halfway and (mantissa << shift) == high:
        mantissa &= ~np.uint64(1)
    mantissa += mantissa & np.uint64(1)
    mantissa >>= np.uint64(1)
    if mantissa >= np.uint64(1 << 53):
        mantissa = np.uint64(1 << 52)
        power += 1
    if not 0 < power < 2047:
        return np.uint64(0)
    return (np.uint64(power) << np.uint64(52)) | (mantissa & np.uint64((1 << 52) - 1))
