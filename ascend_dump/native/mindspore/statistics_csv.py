"""`statistic.csv`: one line per tensor of an iteration, with the statistics that the configuration asked for.

The columns after `Shape` come in the order of `statistic_category`. By MindSpore's documents the counts of
"negative zero" and "positive zero" are those of elements below and above zero.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple, Optional, Union

from ascend_dump._errors import ReadError
from ascend_dump._files import NotRegularFile, open_regular

__all__ = ["FILE", "MindsporeStatisticsRow", "parse_statistics", "read_statistics"]

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
_LONGEST_NUMBER = 40
_LONGEST_LINE = 64 * 1024
_MOST = 2**63 - 1

Number = Union[int, float]


class MindsporeStatisticsRow(NamedTuple):
    """One tensor. values: by the name of the column in lower case. problem: why the line cannot be used."""

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
    """Read a statistics file row by row. Raises ReadError when it cannot be opened."""
    try:
        with io.TextIOWrapper(open_regular(path), encoding="utf-8", errors="replace", newline="\n") as file:
            yield from parse_statistics(iter(lambda: file.readline(_LONGEST_LINE), ""))
    except NotRegularFile as error:
        raise ReadError(error.what, path=path) from None
    except OSError as error:
        raise ReadError(f"cannot be read: {error.strerror}", path=path) from None


def parse_statistics(lines: Iterable[str]) -> Iterator[MindsporeStatisticsRow]:
    """Read the lines of a statistics file. A text that does not begin like one gives one row with a problem."""
    columns: list[str] = []
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            fields = next(csv.reader([line.rstrip("\r\n")]))
        except (csv.Error, StopIteration):
            fields = []
        names = [field.strip().lower() for field in fields]
        if tuple(names[: len(_FIXED)]) == _FIXED:
            columns = names
        elif not columns:
            yield MindsporeStatisticsRow(number, problem="it does not begin with the header of a statistic.csv")
            return
        else:
            yield _row(number, fields, columns)


def _row(number: int, fields: list[str], columns: list[str]) -> MindsporeStatisticsRow:
    if len(fields) != len(columns):
        return MindsporeStatisticsRow(number, problem=f"{len(fields)} fields, but the header has {len(columns)}")
    said = dict(zip(columns, (field.strip() for field in fields)))
    io = said["io"].lower()
    try:
        if io not in ("input", "output"):
            raise ValueError(f"{io[:_LONGEST_NUMBER]!r} is neither input nor output")
        task, stream, stamp = (_whole(said[name]) for name in ("task id", "stream id", "timestamp"))
        slot, size = _whole(said["slot"]), _whole(said["data size"])
        values = tuple((name, _value(said[name])) for name in columns[len(_FIXED) :] if said[name])
        shape = tuple(_whole(length) for length in re.findall(r"[^\s,()\[\]x]+", said["shape"]))
    except ValueError as error:
        return MindsporeStatisticsRow(number, problem=str(error))
    return MindsporeStatisticsRow(
        number,
        said["op type"],
        said["op name"],
        task,
        stream,
        stamp,
        io,
        slot,
        size,
        said["data type"] or None,
        shape,
        values,
    )


def _whole(text: str) -> int:
    if text.isascii() and text.isdigit() and len(text) <= _LONGEST_NUMBER and int(text) <= _MOST:
        return int(text)
    raise ValueError(f"{text[:_LONGEST_NUMBER]!r} is not a count")


def _value(text: str) -> Union[Number, str]:
    """A number, or the text of a hash."""
    if len(text) <= _LONGEST_NUMBER and "_" not in text:
        for kind in (int, float):
            try:
                return kind(text)
            except ValueError:
                continue
    return text[:200]
