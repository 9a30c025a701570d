"""Decode the lines of an index, and create their records."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import msgspec

from ascend_dump.dump_format import SHARD, Line
from ascend_dump.errors import CorruptDump
from ascend_dump.reading._record import Record
from ascend_dump.reading.dialects._unreadable import UnreadableLines
from ascend_dump.reading.dialects.host._calls import NO_CALL, Call, call_after
from ascend_dump.reading.dialects.host._columns import PlainLine, are_objects, line_ends
from ascend_dump.reading.dialects.host._line_fields import attrs_of, is_readable
from ascend_dump.reading.dialects.host._loader import LineLoader

if TYPE_CHECKING:
    from pathlib import Path

    import numpy as np

    from ascend_dump.reading.dialects.host._index_file import IndexFile

__all__ = ["ColumnReading", "IndexReading"]


class IndexReading:
    """One pass over an index, with the state that its records share.

    last  the call of the line that was read last
    """

    def __init__(self, index: IndexFile) -> None:
        self.index = index
        self.decode = msgspec.json.Decoder(Line).decode
        self.unreadable = UnreadableLines()
        self.last = NO_CALL
        self._loader = LineLoader(index.root, index.shards)
        self._paths: dict[str, Path] = {"": index.path}
        #: Texts of fields, each stored once: most texts occur in many lines.
        self._texts: dict[str, str] = {}

    def lines_of(self, text: bytes) -> Sequence[Line]:
        """Decode complete lines. Return [] if one of them is no record, or refers to a file other than a shard."""
        try:
            lines = self._decoded(text) if text else []
        except (msgspec.MsgspecError, ValueError, RecursionError):
            return []
        if not all(SHARD.fullmatch(shard) for shard in {line.shard for line in lines} - {""}):
            return []
        return lines

    def _decoded(self, text: bytes) -> Sequence[Line]:
        """Decode complete lines. Raises MsgspecError or ValueError if a line is not a record."""
        return list(map(self.decode, text[:-1].split(b"\n")))

    def call_of(self, line: Line) -> bytes:
        """Return the arguments of a line's operator. Only the operator's first line has them, so call this in order."""
        self.last = call_after(line, self.last)
        return self.last.text

    def records(self, lines: Sequence[Line], before: Call) -> Iterator[Record]:
        """Yield the records of consecutive lines. before: the call of the line above the first one."""
        for line in lines:
            before = call_after(line, before)
            yield self.record(line, 0, before.text)

    def record(self, line: Line, offset: int, call: bytes) -> Record:
        """Return the record of a line. offset: its position, for errors; call: the arguments of its operator."""
        once = self._texts.setdefault
        module, source, dtype, op_type = line.module, line.source, line.dtype, line.op_type
        line.module, line.source, line.dtype = once(module, module), once(source, source), once(dtype, dtype)
        if line.call:
            line.call = msgspec.Raw(call)  # a copy, because the decoded value keeps the whole block in memory
        shard = line.shard
        path = self._paths.get(shard)
        error = None
        if path is None:
            # The name may be forged: only names of shards in this dump are allowed.
            if SHARD.fullmatch(shard):
                path = self._paths[shard] = self.index.root / shard
            else:
                path = self.index.path
                error = CorruptDump(f"{shard[:200]!r} is not a shard of this dump", path=path, offset=offset)
        line.op_type = once(op_type, op_type)
        loader = self._loader if is_readable(line) else None
        return Record.of_line(line, loader, path, error, call, attrs_of, self.index.shared)


class ColumnReading(IndexReading):
    """A pass that reads lines as columns instead of records.

    ends  positions of the newlines in the text that was decoded last
    """

    ends: np.ndarray

    def __init__(self, index: IndexFile) -> None:
        super().__init__(index)
        self._decode_all = msgspec.json.Decoder(PlainLine).decode_lines

    def _decoded(self, text: bytes) -> Sequence[Line]:
        self.ends = line_ends(text)
        lines = self._decode_all(text) if are_objects(text, self.ends) else []
        return lines if len(lines) == len(self.ends) else []
