"""Write the files of one step: shards, index, and a table of statistics."""

from __future__ import annotations

import contextlib
import functools
import logging
import os
import time
from pathlib import Path
from typing import Any, Optional

import msgspec

from ascend_dump.common.paths import open_directory
from ascend_dump.dump_format import INDEX, LAST_TIME, REMOVED, SHARD, STATISTIC, Line, csv_header, encodable, shard_name
from ascend_dump.writing.append_file import AppendFile
from ascend_dump.writing.index_compression import WORTH_COMPRESSING, compress_index, restore_index
from ascend_dump.writing.shard import LIMITS, Buffer, Limits, Shard

__all__ = ["StepFiles"]

log = logging.getLogger("ascend_dump")

#: Number of buffered records that are written at once.
_GATHER = 200


class StepFiles:
    """Append tensors and lines; a line is written only after the bytes that it refers to.

    step        number of the step
    stats       names of the statistics in statistic.csv; if there are none, that file is not written
    next_shard  number of the next shard. Pass it on when the step is opened again, because no
                number may be used twice, even if the file with that number was deleted
    """

    def __init__(
        self,
        directory: Path,
        step: int,
        metadata: dict[str, str],
        *,
        stats: tuple[str, ...] = (),
        next_shard: int = 0,
        limits: Limits = LIMITS,
    ) -> None:
        """Open the files of a step in its existing directory. Raises OSError."""
        self.step = step
        self._metadata = metadata
        self._limits = limits
        self._shard: Optional[Shard] = None
        self._shard_name = ""
        self._shards = self._header_bytes = 0
        #: The size of the index once it is compressed.
        self._compressed: Optional[int] = None
        self._lines: list[Line] = []
        #: The operators added to the index, as (seq, name). A step may have several runs that each count `seq` from 0.
        self._operators: set[tuple[int, str]] = set()
        self._encoder = msgspec.json.Encoder()
        self._csv: Optional[AppendFile] = None
        with contextlib.ExitStack() as opened:
            self._directory = open_directory(directory)
            opened.callback(os.close, self._directory)
            # If the step was opened before, its index is continued and its shards are not changed.
            shards = (SHARD.fullmatch(f"{step}/{name}") for name in os.listdir(self._directory))
            used = [int(shard[2][8:-12]) for shard in shards if shard is not None]
            self.next_shard = max([next_shard, *(number + 1 for number in used)])
            restore_index(self._directory)
            self._index = AppendFile(INDEX, self._directory)
            self._is_continued = self._index.nbytes > 0
            opened.callback(self._index.close)
            # If the step was removed before, it has a file REMOVED. With an index it is part of the dump again.
            with contextlib.suppress(FileNotFoundError):
                os.unlink(REMOVED, dir_fd=self._directory)
            if stats:
                self._csv = AppendFile(STATISTIC, self._directory)
                opened.callback(self._csv.close)
                if self._csv.nbytes == 0:
                    self._csv.append(f"{csv_header(stats)}\n".encode(), 1)
            self._opened = opened.pop_all()

    @property
    def records(self) -> int:
        """Number of records that this object has added to the index."""
        return self._index.lines

    @property
    def operators(self) -> int:
        """Number of operators that this object has added to the index."""
        return len(self._operators)

    @property
    def text_bytes(self) -> int:
        """Bytes of the files other than shards."""
        index = self._index.nbytes if self._compressed is None else self._compressed
        return index + (self._csv.nbytes if self._csv is not None else 0)

    @property
    def header_bytes(self) -> int:
        """Bytes reserved for headers of the shards created by this object."""
        return self._header_bytes

    def append(self, name: str, dtype: str, shape: tuple[int, ...], data: Buffer, nbytes: int) -> tuple[str, int]:
        """Store one tensor; returns the name of its shard and its offset there. Raises OSError."""
        if self._shard is not None and not self._shard.has_room(name, shape, nbytes):
            # `_shard` is cleared only after `finish` succeeded. If `finish` fails, `close` needs `_shard` to find the
            # lines that refer to missing bytes.
            self._shard.finish()
            self._shard = None
        if self._shard is None:
            self._shard_name = shard_name(self.step, self.next_shard)
            file = self._shard_name.partition("/")[2]
            self.next_shard += 1
            limits = self._limits.of_shard(self._shards)
            self._shard = Shard(file, self._directory, {**self._metadata, "step": str(self.step)}, limits)
            self._shards += 1
            self._header_bytes += 8 + limits.room
        return self._shard_name, self._shard.append(name, dtype, shape, data, nbytes)

    def add(self, lines: list[Line]) -> None:
        """Add records. Raises OSError."""
        self._lines += lines
        if len(self._lines) >= _GATHER:
            self.flush()

    def flush(self) -> None:
        """Write all buffered data to the files, tensors first. Raises OSError."""
        if self._shard is not None:
            self._shard.flush()
        lines, self._lines = self._lines, []
        self._write(lines)

    def close(self) -> None:
        """Flush, compress a large index, complete the shard header and close. Raises OSError after closing everything.

        After a failure, records whose bytes are in the files are kept. The index of a step that was opened before stays
        plain, because the step may be opened many times.
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
            if self._index.nbytes >= WORTH_COMPRESSING and not self._is_continued:
                self._compressed = compress_index(self._index.fd, self._directory)

    def _is_stored(self, line: Line) -> bool:
        if self._shard is None or line.blob is None or line.shard != self._shard_name:
            return True
        return sum(line.blob) <= self._shard.written

    def _write(self, lines: list[Line]) -> None:
        if not lines:
            return
        if max([line.time for line in lines]) > LAST_TIME:
            _warn_of_clock()
            for line in lines:
                line.time = min(line.time, LAST_TIME)
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
    # The end of each row, by the ids of statistics and shape: lines of one tensor usually share both objects.
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
            # Numbers have the same text in JSON and in the table.
            text = bytes(stats)[1:-1].decode().replace("null", "").replace('"', "")
            values = written[key] = f"{line.nbytes},{line.dtype},{_shape(shape)},{text}\n"
        # `seq` does not identify an operator: a step may have several runs that each count from 0.
        if line.op_name != op_name or line.time != when or line.op_type != op_type or line.phase != phase:
            op_type, op_name, phase, when = line.op_type, line.op_name, line.phase, line.time
            name = f"{_field(op_type)},{_field(op_name)},{phase},{_local_time(when // 1_000_000)}"
        rows.append(f"{name},{line.io},{line.index},{values}")
    return rows


@functools.lru_cache(1 << 13)
def _field(text: str) -> str:
    """Quote a field as the csv module does, but several times faster."""
    if any(char in text for char in ',"\r\n'):
        quoted = text.replace('"', '""')
        return f'"{quoted}"'
    return text


@functools.lru_cache(1 << 13)
def _shape(shape: tuple[int, ...]) -> str:
    """Return a shape as MindSpore writes it in its statistic.csv, such as "(2,3)" with the quotes."""
    return _field(f"({','.join(map(str, shape))})")


@functools.lru_cache(16)
def _local_time(seconds: int) -> str:
    return time.strftime("%Y%m%d%H%M%S", time.localtime(seconds))


@functools.cache
def _warn_of_clock() -> None:
    log.warning("the clock of this machine is beyond the year 9999: records have the end of that year as their time")


def _encodable(line: Line) -> Line:
    for name in line.__struct_fields__:
        value = getattr(line, name)
        if isinstance(value, str):
            setattr(line, name, encodable(value))
    return line
