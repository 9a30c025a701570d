"""Find the arguments of a line's operator in an index. Only the first of an operator's lines has them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Callable, NamedTuple

import msgspec

from ascend_dump.dump_format import IndexText, Line

__all__ = ["NO_CALL", "Call", "call_after", "call_after_all", "call_before"]

#: Number of bytes above a line in which the operator's first line is searched: in the first try, and at most.
_LEAST_BACK, _MOST_BACK = 1 << 14, 1 << 24


class Call(NamedTuple):
    """The call of an operator that lines belong to.

    operator  its sequence number, name and time
    text      its arguments as JSON; empty if the lines read so far do not have them
    """

    operator: tuple[int, str, int]
    text: bytes


NO_CALL = Call((-1, "", 0), b"")


def operator_of(line: Line) -> tuple[int, str, int]:
    return line.seq, line.op_name, line.time


def call_after(line: Line, before: Call) -> Call:
    """Return the call of a line. before: the call of the line above it."""
    number, name, time = before.operator
    # No tuple is created: this is called for each line of a dump.
    if not line.call and line.seq == number and line.op_name == name and line.time == time:
        return before
    return Call(operator_of(line), bytes(line.call))


def call_after_all(lines: Sequence[Line], before: Call) -> Call:
    """Return the call of the last one of consecutive lines. before: the call of the line above them."""
    operator = operator_of(lines[-1])
    for line in reversed(lines):
        if operator_of(line) != operator:
            return Call(operator, b"")
        if bytes(line.call):
            return Call(operator, bytes(line.call))
    return before if before.operator == operator else Call(operator, b"")


def call_before(file: IndexText, offset: int, decode: Callable[[bytes], Line], last: Call) -> Call:
    """Return the call of the line above `offset` in an index, for `call_after` with the line at `offset`.

    The lines above are searched only if the line at `offset` has no arguments itself; otherwise return `last`.
    last: the call of the line that was read before, possibly far above. It is returned if it is the same operator.
    """
    file.seek(offset)
    try:
        line = decode(file.readline(_LEAST_BACK * 64))
        if bytes(line.call) or operator_of(line) == last.operator:
            return last
        back = _LEAST_BACK
        while True:
            start = max(offset - back, 0)
            file.seek(start)
            above = file.read(offset - start).split(b"\n")[:-1]
            for text in reversed(above if start == 0 else above[1:]):
                previous = decode(text)
                if operator_of(previous) != operator_of(line):
                    return NO_CALL
                if bytes(previous.call):
                    return Call(operator_of(previous), bytes(previous.call))
            if start == 0 or back >= _MOST_BACK:
                return NO_CALL
            back *= 8
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return NO_CALL
