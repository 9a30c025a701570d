"""Find the arguments of a line's operator, which are stored in the first line of the operator."""

from __future__ import annotations

from collections.abc import Sequence
from typing import BinaryIO, Callable, NamedTuple

import msgspec

from ascend_dump.dump_format import Line

__all__ = ["NO_CALL", "Call", "call_after", "call_after_all", "call_before"]

#: How many bytes before a line the first line of its operator is searched: at first, and at most.
_LEAST_BACK, _MOST_BACK = 1 << 14, 1 << 24


class Call(NamedTuple):
    """The operator of a line, and its arguments if the lines read so far have them."""

    operator: tuple[int, str, int]
    text: bytes


NO_CALL = Call((-1, "", 0), b"")


def operator_of(line: Line) -> tuple[int, str, int]:
    return line.seq, line.op_name, line.time


def call_after(line: Line, before: Call) -> Call:
    """Return the call of a line that follows another one."""
    operator = operator_of(line)
    return before if not line.call and operator == before.operator else Call(operator, bytes(line.call))


def call_after_all(lines: Sequence[Line], before: Call) -> Call:
    """Return the call of the last of some lines that follow another one."""
    operator = operator_of(lines[-1])
    for line in reversed(lines):
        if operator_of(line) != operator:
            return Call(operator, b"")
        if bytes(line.call):
            return Call(operator, bytes(line.call))
    return before if before.operator == operator else Call(operator, b"")


def call_before(file: BinaryIO, offset: int, decode: Callable[[bytes], Line], last: Call) -> Call:
    """Return the call of the line above an offset of an index, if the line at the offset needs it.

    last: of the line that was read before, maybe far above.
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
