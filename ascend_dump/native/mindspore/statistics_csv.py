"""Read MindSpore's `statistic.csv`: a line per tensor of an iteration, with the statistics that were requested.

The columns after `Shape` are in the order of `statistic_category`. According to MindSpore's documents, "negative zero
count" and "positive zero count" are the numbers of elements below and above zero.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple, Optional, Union

from ascend_dump.errors import ReadError
from ascend_dump.native.mindspore.names import written
from ascend_dump.storage.files import NotRegularFile, text_lines

__all__ = ["FILE", "MindsporeStatisticsRow", "parse_statistics", "read_names", "read_statistics"]

FILE = "statistic.csv"
_FIXED = (
    "op type",
    "op name",
    "task id",
    "stream id",
    "timestamp",
    "io",
    "slot",
    "data size",
    "data type",
    "shape",
)
_OP_NAME = _FIXED.index("op name")
_LENGTH = re.compile(r"[^\s,()\[\]x]+")
#: Maximum number of dimensions, as in numpy; frameworks allow fewer.
_MOST_DIMENSIONS = 64
_LONGEST_NUMBER = 40
_LONGEST_LINE = 64 * 1024
_MOST = 2**63 - 1

Number = Union[int, float]


class MindsporeStatisticsRow(NamedTuple):
    """A line, which is about one tensor.

    slot     the index among the inputs or outputs
    values   (column in lower case, value) pairs of the statistics
    problem  the reason why the line cannot be used; the other fields are meaningless then
    """

    line: int
    op_type: str = ""
    op_name: str = ""
    task_id: int = 0
    stream_id: int = 0
    timestamp: int = 0
    io: str = "output"
    slot: int = 0
    size: Optional[int] = None
    dtype: Optional[str] = None
    shape: Optional[tuple[int, ...]] = None
    values: tuple[tuple[str, Union[Number, str]], ...] = ()
    problem: str = ""


def read_statistics(path: Path) -> Iterator[MindsporeStatisticsRow]:
    """Yield the rows of a statistics file. Raises ReadError if it cannot be opened."""
    return parse_statistics(_lines(path))


def read_names(path: Path) -> Iterator[str]:
    """Yield the operator's name of each row, in the form of file names. The other columns are not parsed.

    Raises ReadError if the file cannot be opened.
    """
    for _, fields, columns in _split(_lines(path)):
        if len(fields) == len(columns) > 0:
            yield written(fields[_OP_NAME].strip())


def parse_statistics(lines: Iterable[str]) -> Iterator[MindsporeStatisticsRow]:
    """Yield the rows of a statistics file. A line that cannot be used becomes a row with a `problem`.

    If the text does not begin with the header, only one row with a problem is yielded.
    """
    for number, fields, columns in _split(lines):
        if columns:
            yield _row(number, fields, columns)
        else:
            yield MindsporeStatisticsRow(number, problem="it does not begin with the header of a statistic.csv")


def _lines(path: Path) -> Iterator[str]:
    try:
        yield from text_lines(path, most=_LONGEST_LINE)
    except NotRegularFile as error:
        raise ReadError(error.what, path=path) from None
    except OSError as error:
        raise ReadError(f"cannot be read: {error.strerror}", path=path) from None


def _split(lines: Iterable[str]) -> Iterator[tuple[int, list[str], list[str]]]:
    """Yield (line number, fields, column names) for each row.

    If the first line is not a header, yield only this line, with no column names.
    """
    columns: list[str] = []
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            fields = next(csv.reader((line.rstrip("\r\n"),)))
        except (csv.Error, StopIteration):
            fields = []
        if not columns or _begins_header(line):
            names = [field.strip().lower() for field in fields]
            if tuple(names[: len(_FIXED)]) == _FIXED:
                columns = names
                continue
        yield number, fields, columns
        if not columns:
            return


def _begins_header(line: str) -> bool:
    """Return True if a line begins like a header. Each process that appends to the file writes a header."""
    text = line.lstrip().removeprefix('"').lstrip()
    return text[: len(_FIXED[0])].lower() == _FIXED[0]


def _row(number: int, fields: list[str], columns: list[str]) -> MindsporeStatisticsRow:
    if len(fields) != len(columns):
        return MindsporeStatisticsRow(number, problem=f"{len(fields)} fields, but the header has {len(columns)}")
    op_type, op_name, task, stream, stamp, io, slot, size, dtype, shape, *values = [field.strip() for field in fields]
    io = io.lower()
    try:
        if io not in ("input", "output"):
            raise ValueError(f"{io[:_LONGEST_NUMBER]!r} is neither input nor output")
        lengths = _LENGTH.findall(shape)
        if len(lengths) > _MOST_DIMENSIONS:
            raise ValueError(f"a shape of {len(lengths)} dimensions, more than {_MOST_DIMENSIONS}")
        return MindsporeStatisticsRow(
            number,
            op_type,
            op_name,
            _whole(task),
            _whole(stream),
            _whole(stamp),
            io,
            _whole(slot),
            _whole(size),
            dtype or None,
            tuple([_whole(length) for length in lengths]),
            tuple([(name, _value(text)) for name, text in zip(columns[len(_FIXED) :], values) if text]),
        )
    except ValueError as error:
        return MindsporeStatisticsRow(number, problem=str(error))


def _whole(text: str) -> int:
    if text.isdigit() and text.isascii() and len(text) <= _LONGEST_NUMBER:
        number = int(text)
        if number <= _MOST:
            return number
    raise ValueError(f"{text[:_LONGEST_NUMBER]!r} is not a count")


def _value(text: str) -> Union[Number, str]:
    """Return a statistic: a number, or the text of a hash."""
    if len(text) <= _LONGEST_NUMBER and "_" not in text:
        for kind in (int, float):
            try:
                return kind(text)
            except ValueError:
                continue
    return text[:200]
