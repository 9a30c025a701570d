"""The files of one step: shards, index, and the statistics as a table."""

from __future__ import annotations

import contextlib
import csv
import io
import os
import time
from pathlib import Path
from typing import Optional

import msgspec

from ascend_dump._paths import open_private
from ascend_dump.writing.layout import CSV_HEADER, INDEX, STATISTIC, Line, shard_name
from ascend_dump.writing.shard import Buffer, Shard

__all__ = ["StepFiles"]

#: This many records are handed to the operating system at once.
_GATHER = 200
#: Order of `Statistics` in the columns of statistic.csv after Count.
_COLUMNS = ("max", "min", "mean", "l2norm", "nan", "posinf", "neginf", "zero", "poszero", "negzero")


class StepFiles:
    """Append tensors and lines; a line reaches the file only after the bytes it points at."""

    def __init__(self, directory: Path, step: int, metadata: dict[str, str], *, stats: tuple[str, ...]) -> None:
        self._directory = directory
        self._step = step
        self._metadata = metadata
        self._stats = stats
        self._shard: Optional[Shard] = None
        self._lines: list[Line] = []
        self._encoder = msgspec.json.Encoder()
        # The index of an earlier visit to this step is continued, its shards are not touched.
        self._shards = sum(1 for name in os.listdir(directory) if name.endswith(".safetensors"))
        self._index = open_private(directory / INDEX, os.O_WRONLY | os.O_APPEND)
        self._csv: Optional[int] = None
        self._rows = io.StringIO()
        self._writer = csv.writer(self._rows, lineterminator="\n")
        if stats:
            self._csv = open_private(directory / STATISTIC, os.O_WRONLY | os.O_APPEND)
            if os.fstat(self._csv).st_size == 0:
                self._rows.write(CSV_HEADER + "\n")

    def append(self, name: str, dtype: str, shape: tuple[int, ...], data: Buffer, nbytes: int) -> tuple[str, int]:
        """Store one tensor; returns its shard, as lines name it, and its offset. Raises OSError."""
        if self._shard is not None and not self._shard.has_room(name, nbytes):
            shard, self._shard = self._shard, None
            shard.finish()
        if self._shard is None:
            path = self._directory.parent / shard_name(self._step, self._shards)
            self._shard = Shard(path, {**self._metadata, "step": str(self._step)})
            self._shards += 1
        offset = self._shard.append(name, dtype, shape, data, nbytes)
        return f"{self._directory.name}/{self._shard.path.name}", offset

    def add(self, lines: list[Line]) -> None:
        """Add records. Raises OSError."""
        if self._stats:
            for line in lines:
                if line.stats is not None:
                    if self._csv is not None:
                        self._add_row(line)
                    wanted = self._stats
                    kept = (value if name in wanted else None for name, value in zip(_COLUMNS, line.stats[1:]))
                    line.stats = (line.stats[0], *kept)
        self._lines += lines
        if len(self._lines) >= _GATHER:
            self.flush()

    def flush(self) -> None:
        """Hand everything to the operating system, tensors first. Raises OSError."""
        if self._shard is not None:
            self._shard.flush()
        if self._lines:
            lines, self._lines = self._lines, []
            _write_all(self._index, self._encoder.encode_lines(lines))
        if self._csv is not None and self._rows.tell():
            _write_all(self._csv, self._rows.getvalue().encode())
            self._rows.seek(0)
            self._rows.truncate()

    def close(self) -> None:
        """Flush, complete the shard header and close. Raises OSError after closing everything."""
        with contextlib.ExitStack() as stack:
            if self._csv is not None:
                stack.callback(os.close, self._csv)
            stack.callback(os.close, self._index)
            if self._shard is not None:
                stack.callback(self._shard.finish)
            self.flush()

    def _add_row(self, line: Line) -> None:
        assert line.stats is not None, "called for lines with statistics"
        when = time.strftime("%Y%m%d%H%M%S", time.localtime(line.time / 1e6))
        # (2,3) as MindSpore writes shapes in its statistic.csv
        shape = f"({','.join(map(str, line.shape))})"
        values = [
            "" if value is None or name not in self._stats else value for name, value in zip(_COLUMNS, line.stats[1:])
        ]
        self._writer.writerow(
            [
                *(line.op_type, line.op_name, line.phase, when, line.io, line.index),
                *(line.nbytes, line.dtype, shape, line.stats[0], *values),
            ]
        )


def _write_all(fd: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]
