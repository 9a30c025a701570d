"""Compiled function that reads the lines of a repeated step beside those of an earlier step.

Both texts have to be equal, byte by byte, but for the values of some fields. These values are read into arrays.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ascend_dump.dump_format import LAST_TIME
from ascend_dump.reading.dialects.host._decimal_kernel import byte_at, read_float, read_integer, word_at
from ascend_dump.reading.dialects.host._field_kinds import (
    COUNT,
    DIGITS,
    ELEMENTS,
    HASH,
    INTEGER,
    NUMBER,
    SKIPPED_FLOAT,
    SKIPPED_HASH,
    TIME,
)
from ascend_dump.statistics.numba_primitives import inner, kernel

__all__ = ["match_lines"]

_NEWLINE, _ZERO, _NINE, _A, _F = (ord(character) for character in "\n09af")
#: The texts of statistics that are no numbers, as integers of their first bytes.
_NULL, _NAN, _INF = (int.from_bytes(text, "little") for text in (b"null", b'"nan"', b'"inf"'))
_NEGATIVE = int.from_bytes(b'"-inf"', "little")
_QUOTE, _N = ord('"'), ord("n")


@inner()
def _are_equal(text: int, other: int, size: int) -> bool:
    done = 0
    while done + 8 <= size:
        if word_at(text + done) != word_at(other + done):
            return False
        done += 8
    while done < size:
        if byte_at(text + done) != byte_at(other + done):
            return False
        done += 1
    return True


@inner()
def _number_of(text: int, begin: int, size: int) -> int:
    """Return some bytes as one integer, the first byte lowest."""
    number = 0
    for index in range(size):
        number |= byte_at(text + begin + index) << (8 * index)
    return number


@inner()
def _is_hash(text: int, begin: int, end: int) -> bool:
    """Return True if 32 hexadecimal digits begin at an index."""
    if end - begin < 32:
        return False
    for index in range(begin, begin + 32):
        character = byte_at(text + index)
        if not (_ZERO <= character <= _NINE or _A <= character <= _F):
            return False
    return True


@inner()
def _read_word(text: int, begin: int, end: int) -> tuple[float, int, bool]:
    """Return the value of null or of a text that is a number, its end, and True if it is null; -1 if it is neither."""
    if end - begin < 6:
        return 0.0, -1, False
    if _number_of(text, begin, 4) == _NULL:
        return 0.0, begin + 4, True
    if _number_of(text, begin, 5) == _NAN:
        return float("nan"), begin + 5, False
    if _number_of(text, begin, 5) == _INF:
        return float("inf"), begin + 5, False
    return float("-inf"), (begin + 6 if _number_of(text, begin, 6) == _NEGATIVE else -1), False


@inner()
def _read_digits(text: int, begin: int, end: int) -> tuple[int, int]:
    """Return the number of five digits, and its end; the end is -1 if there are fewer digits."""
    number = 0
    for index in range(begin, begin + 5):
        if index >= end or not _ZERO <= byte_at(text + index) <= _NINE:
            return 0, -1
        number = number * 10 + byte_at(text + index) - _ZERO
    return number, begin + 5


@inner()
def _end_of_line(text: int, begin: int, end: int) -> int:
    """Return the position behind the next newline; -1 if there is none."""
    for index in range(begin, end):
        if byte_at(text + index) == _NEWLINE:
            return index + 1
    return -1


@kernel
def match_lines(
    text_bytes: Any,
    template_bytes: Any,
    starts: Any,
    first_fields: Any,
    fields: Any,
    run_ends: Any,
    ties: Any,
    first: int,
    most: int,
    offset: int,
    places: Any,
    differs: Any,
    integers: Any,
    floats: Any,
    counts: Any,
    nulls: Any,
    hashes: Any,
    powers_of_five: Any,
) -> tuple[int, int, bool]:
    """Read lines beside the lines of a template from `first` on.

    Return the next line, the end of the last one, and True if the text ended between the lines of an operator. Lines of
    one operator are read together. If one of them differs outside of the fields, `differs` is True for all of them.

    template_bytes, starts   text of the template, and the positions of its lines
    first_fields, fields     for each line the index of its first field; for each field begin, end, kind and row
    run_ends   for the first line of an operator: the line behind its last one
    ties       for a line of the same operator as the line above: 1 if it has the same time, else 2; 0 for other lines
    most       number of consecutive lines that may differ
    offset     position of the text in its file
    places     receives the position of each line in the file
    integers, floats, counts, nulls, hashes   receive the values
    """
    text, template = np.int64(text_bytes.ctypes.data), np.int64(template_bytes.ctypes.data)
    powers, end = np.int64(powers_of_five.ctypes.data), len(text_bytes)
    line, position = first, 0
    next_line, next_position = first, 0
    while line < len(differs):
        run_end = run_ends[line]
        at = position
        is_equal = True
        for row in range(line, run_end):
            stop = at
            behind = starts[row]
            field = first_fields[row]
            while is_equal:
                is_last = field == first_fields[row + 1]
                size = (starts[row + 1] if is_last else fields[field, 0]) - behind
                if stop + size > end or not _are_equal(text + stop, template + behind, size):
                    is_equal = False
                    break
                stop += size
                if is_last:
                    break
                kind, column = fields[field, 2], fields[field, 3]
                behind = fields[field, 1]
                if kind == NUMBER:
                    character = byte_at(text + stop) if stop < end else 0
                    if character in (_QUOTE, _N):
                        value, stop, is_null = _read_word(text, stop, end)
                    else:
                        value, stop, _ = read_float(text, stop, end, powers)
                        is_null = False
                    floats[column, row] = value
                    nulls[column, row] = is_null
                elif kind in (HASH, SKIPPED_HASH):
                    if not _is_hash(text, stop, end):
                        stop = -1
                    else:
                        if kind == HASH:
                            for word in range(4):
                                hashes[row, word] = word_at(text + stop + 8 * word)
                        stop += 32
                elif kind == SKIPPED_FLOAT:
                    value, stop, is_float = read_float(text, stop, end, powers)
                    if not is_float:
                        stop = -1
                elif kind == DIGITS:
                    integers[column, row], stop = _read_digits(text, stop, end)
                elif kind == COUNT and stop < end and byte_at(text + stop) == _N:
                    value, stop, is_null = _read_word(text, stop, end)
                    nulls[len(floats) + column, row] = True
                else:
                    number, stop = read_integer(text, stop, end)
                    if (number < 0 and kind != INTEGER and kind != COUNT) or (kind == TIME and number > LAST_TIME):
                        stop = -1
                    if kind in (COUNT, ELEMENTS):
                        counts[column, row] = number
                        nulls[len(floats) + column, row] = False
                    elif column >= 0:
                        integers[column, row] = number
                is_equal = stop >= 0
                field += 1
            if is_equal and ties[row] != 0:
                is_equal = (ties[row] == 1) == (integers[0, row] == integers[0, row - 1])
            if not is_equal:
                stop = _end_of_line(text, at, end)
            if stop < 0:
                return next_line, next_position, True
            places[row] = offset + at
            at = stop
        differs[line:run_end] = not is_equal
        line, position = run_end, at
        if is_equal:
            next_line, next_position = line, position
        elif line - next_line > most:
            break
    return next_line, next_position, False
