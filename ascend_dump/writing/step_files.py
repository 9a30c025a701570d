"""The files of one step: shards, index, and the statistics as a table."""

from __future__ import annotations

import contextlib
import functools
import os
import time
from pathlib import Path
from typing import Any, Optional

import msgspec

from ascend_dump._paths import open_directory
from ascend_dump.host import CSV_HEADER, INDEX, REMOVED, SHARD, STATISTIC, Line, encodable, shard_name
from ascend_dump.writing.append_file import AppendFile
from ascend_dump.writing.shard import LIMITS, Buffer, Limits, Shard

__all__ = ["StepFiles"]

#: This many records are handed to the operating system at once.
_GATHER = 200


class StepFiles:
    """Append tensors and lines; a line reaches the file only after the bytes it points at.

    step        its number
    table       write statistic.csv
    next_shard  the number of the next shard; pass it on when the step is visited again, since a
                number must not come twice even if its file was deleted meanwhile
    """

    def __init__(
        self,
        directory: Path,
        step: int,
        metadata: dict[str, str],
        *,
        table: bool = False,
        next_shard: int = 0,
        limits: Limits = LIMITS,
    ) -> None:
        """Open the files of a step in its existing directory. Raises OSError."""
        self.step = step
        self._metadata = metadata
        self._limits = limits
        self._shard: Optional[Shard] = None
        self._shard_name = ""
        self._lines: list[Line] = []
        #: The operators in the index, by their position in the step and their name: several runs count from 0 in it.
        self._operators: set[tuple[int, str]] = set()
        self._encoder = msgspec.json.Encoder()
        self._csv: Optional[AppendFile] = None
        with contextlib.ExitStack() as opened:
            self._directory = open_directory(directory)
            opened.callback(os.close, self._directory)
            # The index of an earlier visit to this step is continued, its shards are not touched.
            taken = (SHARD.fullmatch(f"{step}/{name}") for name in os.listdir(self._directory))
            self.next_shard = self._first_shard = max(next_shard, *(int(one[2][8:-12]) + 1 for one in taken if one), 0)
            self._index = AppendFile(INDEX, self._directory)
            opened.callback(self._index.close)
            # A step that was removed is begun anew; with an index it is part of the dump again.
            with contextlib.suppress(FileNotFoundError):
                os.unlink(REMOVED, dir_fd=self._directory)
            if table:
                self._csv = AppendFile(STATISTIC, self._directory)
                opened.callback(self._csv.close)
                if self._csv.nbytes == 0:
                    self._csv.append(f"{CSV_HEADER}\n".encode(), 1)
            self._opened = opened.pop_all()

    @property
    def records(self) -> int:
        """Records that are in the index."""
        return self._index.lines

    @property
    def operators(self) -> int:
        """Operators that were added to the index."""
        return len(self._operators)

    @property
    def text_bytes(self) -> int:
        """Sizes of the files that are not shards."""
        return self._index.nbytes + (self._csv.nbytes if self._csv is not None else 0)

    @property
    def header_bytes(self) -> int:
        """Room that the shards of this visit reserve."""
        return (self.next_shard - self._first_shard) * (8 + self._limits.room)

    def append(self, name: str, dtype: str, shape: tuple[int, ...], data: Buffer, nbytes: int) -> tuple[str, int]:
        """Store one tensor; returns its shard, as lines name it, and its offset. Raises OSError."""
        if self._shard is not None and not self._shard.has_room(name, shape, nbytes):
            # Kept until it is finished: if that fails, its last lines may point at nothing.
            self._shard.finish()
            self._shard = None
        if self._shard is None:
            self._shard_name = shard_name(self.step, self.next_shard)
            file = self._shard_name.partition("/")[2]
            self.next_shard += 1
            self._shard = Shard(file, self._directory, {**self._metadata, "step": str(self.step)}, self._limits)
        return self._shard_name, self._shard.append(name, dtype, shape, data, nbytes)

    def add(self, lines: list[Line]) -> None:
        """Add records. Raises OSError."""
        self._lines += lines
        if len(self._lines) >= _GATHER:
            self.flush()

    def flush(self) -> None:
        """Hand everything to the operating system, tensors first. Raises OSError."""
        if self._shard is not None:
            self._shard.flush()
        lines, self._lines = self._lines, []
        self._write(lines)

    def close(self) -> None:
        """Flush, complete the shard header and close. Raises OSError after closing everything.

        After a failure the records whose bytes are in the files are kept.
        """
        with self._opened as stack:
            if self._shard is not None:
                stack.callback(self._shard.finish)
            try:
                self.flush()
            except OSError:
                lines, self._lines = self._lines, []
                self._write([line for line in lines if self._is_stored(line)])
                raise

    def _is_stored(self, line: Line) -> bool:
        if self._shard is None or line.blob is None or line.shard != self._shard_name:
            return True
        return sum(line.blob) <= self._shard.written

    def _write(self, lines: list[Line]) -> None:
        if not lines:
            return
        try:
            text = self._encoder.encode_lines(lines)
        except UnicodeEncodeError:
            text = self._encoder.encode_lines([_encodable(line) for line in lines])
        self._index.append(text, len(lines))
        self._operators.update([(line.seq, line.op_name) for line in lines])
        if self._csv is not None:
            rows = _rows(lines)
            self._csv.append("".join(rows).encode("utf-8", "backslashreplace"), len(rows))


def _rows(lines: list[Line]) -> list[str]:
    rows = []
    # Lines of one tensor share their statistics, and most their shape; both live as long as the lines.
    written: dict[tuple[int, int], str] = {}
    op_type = op_name = phase = name = ""
    when = -1
    for line in lines:
        stats: Any = line.stats  # as JSON, see `MeasuredBytes`
        if stats is None:
            continue
        shape = line.shape
        key = (id(stats), id(shape))
        values = written.get(key)
        if values is None:
            # JSON's numbers are those of the table.
            text = bytes(stats)[1:-1].decode().replace("null", "").replace('"', "")
            values = written[key] = f"{line.nbytes},{line.dtype},{_shape(shape)},{text}\n"
        # Not by `seq`: several runs of a program may count from 0 in one step.
        if line.op_name != op_name or line.time != when or line.op_type != op_type or line.phase != phase:
            op_type, op_name, phase, when = line.op_type, line.op_name, line.phase, line.time
            name = f"{_field(op_type)},{_field(op_name)},{phase},{_local_time(when // 1_000_000)}"
        rows.append(f"{name},{line.io},{line.index},{values}")
    return rows


@functools.lru_cache(1 << 13)
def _field(text: str) -> str:
    """As the csv module writes it, which takes several times as long for a row."""
    if any(char in text for char in ',"\r\n'):
        quoted = text.replace('"', '""')
        return f'"{quoted}"'
    return text


@functools.lru_cache(1 << 13)
def _shape(shape: tuple[int, ...]) -> str:
    """(2,3) as MindSpore writes shapes in its statistic.csv."""
    return _field(f"({','.join(map(str, shape))})")


@functools.lru_cache(16)
def _local_time(seconds: int) -> str:
    return time.strftime("%Y%m%d%H%M%S", time.localtime(seconds))


def _encodable(line: Line) -> Line:
    for name in line.__struct_fields__:
        value = getattr(line, name)
        if isinstance(value, str):
            setattr(line, name, encodable(value))
    return line
