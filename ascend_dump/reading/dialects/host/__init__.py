"""Dialect `host`: dumps that ascend_dump itself wrote, see `ascend_dump.dump_format`.

Each step has an index with a line of JSON per record. A line refers to a byte range in a shard, a file of tensors.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Collection, Hashable, Iterator, Sequence
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Optional

import msgspec

from ascend_dump.dump_format import (
    INDEX_NAMES,
    MANIFEST,
    NO_VALUES,
    REMOVED,
    SHARD,
    STATISTIC,
    IndexText,
    Line,
    content_of,
    ends_at,
    index_among,
    line_count,
    open_index,
    text_size,
)
from ascend_dump.errors import CorruptDump, StorageError
from ascend_dump.reading._dialect import Batch, Directory, Entry, rank_of
from ascend_dump.reading._record import Record
from ascend_dump.reading._runs import is_of_complete_run
from ascend_dump.reading.dialects._unreadable import UnreadableLines
from ascend_dump.reading.dialects.host._calls import NO_CALL, Call, call_after, call_after_all, call_before
from ascend_dump.reading.dialects.host._columns import LineColumns, PlainLine, are_objects, line_ends, line_starts
from ascend_dump.reading.dialects.host._loader import LineLoader, Shards, why_removed
from ascend_dump.reading.dialects.host._lone_shard import LoneShard

if TYPE_CHECKING:
    import numpy as np
    import polars

    from ascend_dump.reading.dialects.host._repeated_steps import StepTemplates, StepText

__all__ = ["DIALECT"]

_SHARD_FILE = re.compile(r"tensors-\d{5,18}\.safetensors", re.ASCII)
_TIME = re.compile(r"\d{14}", re.ASCII)
#: Maximum number of digits of step and device numbers in directory names.
_MAX_DIGITS = 18
#: Maximum size of a line in bytes.
_LONGEST_LINE = 1 << 20
#: Bytes decoded at a time: some hundred lines, which fit into a processor's cache. The first block is smaller, for
#: callers that read only a few records.
_FIRST_BLOCK, _BLOCK = 1 << 15, 1 << 18
#: Records per batch in a part of an index with invalid lines, where lines are decoded one by one.
_ROWS = 16_384


class _HostDialect:
    name = "host"

    def scan(self, directory: Directory) -> tuple[list[Entry], set[str]]:
        names = directory.names
        shards = [name for name in names if _SHARD_FILE.fullmatch(name)]
        claimed = {*shards, *({MANIFEST, REMOVED, *INDEX_NAMES} & set(names))}
        index = index_among(names)
        if shards or index is not None or REMOVED in names:
            # Other formats have files of this name too, so it is claimed only next to a file of this format.
            claimed |= {STATISTIC} & set(names)
        if index is not None:
            return [_Index(directory, index)], claimed
        entries: list[Entry] = []
        for name in shards:
            index = index_among([name for name in INDEX_NAMES if (directory.path / name).is_file()])
            if index is not None:  # the path of a single shard was opened
                entries.append(_Index(directory, index, only=name))
            elif not (directory.path / REMOVED).is_file():  # the shard of a removed step is kept only for other steps
                fields = _levels(directory.parts)
                entries.append(LoneShard(directory.path / name, fields, Shards.of(directory.root)))
        return entries, claimed


class _Reading:
    """State shared by the records of one pass over an index."""

    def __init__(self, index: _Index) -> None:
        self.loader = LineLoader(index._root, index._shards)
        self.decode = msgspec.json.Decoder(Line).decode
        self.paths: dict[str, Path] = {"": index.path}
        #: Texts of fields, each stored once: most texts occur in many lines.
        self.texts: dict[str, str] = {}
        self.unreadable = UnreadableLines()
        self.last = NO_CALL

    def lines_of(self, text: bytes) -> Sequence[Line]:
        """Decode complete lines. Raises MsgspecError or ValueError if a line is not a record."""
        return list(map(self.decode, text[:-1].split(b"\n")))

    def call_of(self, line: Line) -> bytes:
        """Return the arguments of a line's operator. Only the operator's first line has them, so call this in order."""
        self.last = call_after(line, self.last)
        return self.last.text


class _ReadingColumns(_Reading):
    """State for reading lines as columns instead of records.

    ends  positions of the newlines in the text that was decoded last
    """

    ends: np.ndarray

    def __init__(self, index: _Index) -> None:
        super().__init__(index)
        self._decode_all = msgspec.json.Decoder(PlainLine).decode_lines

    def lines_of(self, text: bytes) -> Sequence[Line]:
        self.ends = line_ends(text)
        lines = self._decode_all(text) if are_objects(text, self.ends) else []
        return lines if len(lines) == len(self.ends) else []


class _Block(NamedTuple):
    """A part of an index: its decoded lines, or records instead if some of its lines are invalid.

    offset, text    position of the first line in the index, and the text of all lines; `text` is empty with `records`,
                    and if lines were left out
    before          the call of the line before the part
    """

    lines: Sequence[Line]
    records: list[Record]
    offset: int = 0
    text: bytes = b""
    before: Call = NO_CALL

    def offsets(self) -> list[int]:
        """Return the position of each line in the index; [] without `text`."""
        offsets: list[int] = line_starts(line_ends(self.text), self.offset).tolist()
        return offsets


class _Lines(Batch):
    """A batch of lines that become records on access: a line takes much less memory than its record.

    first: True if these are the first lines of the index
    """

    __slots__ = ("_before", "_first", "_index", "_lines", "_reading")

    def __init__(self, index: _Index, reading: _Reading, block: _Block, first: bool) -> None:
        super().__init__((), index.rank, index.step)
        self._index = index
        self._reading = reading
        self._lines = block.lines
        self._before = block.before
        self._first = first

    def __len__(self) -> int:
        return len(self._lines)

    def __iter__(self) -> Iterator[Record]:
        yield from self._index._records(self._lines, self._reading, self._before)

    def identities(self) -> Iterator[Optional[Hashable]]:
        identities = map(_identity, self._lines)
        if self._first:
            # The other dump may have this record inside an index, below other records of the same operator. So the
            # first record of an index is marked, and is equal only to the first record of an index.
            head = next(identities)
            yield None if head is None else ("first", head)
        yield from identities


class _Index(Entry):
    """The index of one step. It is decoded again at each use, because its records would take too much memory."""

    __slots__ = ("_known", "_only", "_root", "_shards")

    def __init__(self, directory: Directory, name: str, *, only: str = "") -> None:
        fields = _levels(directory.parts)
        super().__init__(
            directory.path / name, **{field: value for field, value in fields.items() if field != "model_id"}
        )
        self._known = fields
        # Lines may refer to shards of earlier steps, so paths are limited to the directory of the steps.
        self._root = directory.path.parent
        self._only = f"{directory.path.name}/{only}" if only else ""
        self._shards = Shards.of(directory.root)

    def records(self) -> Iterator[Record]:
        reading = _Reading(self)
        for block in self._blocks(reading):
            yield from block.records
            yield from self._records(block.lines, reading, block.before)

    def records_at(self, positions: Collection[int]) -> Iterator[Record]:
        reading = _Reading(self)
        if any(position < 0 for position in positions):
            # Negative positions count records from the beginning, so the whole index is read.
            for block, numbers in self._numbered(reading):
                records = block.records or self._records(block.lines, reading, block.before)
                numbered = zip(records, numbers, block.offsets() or numbers)
                yield from (
                    record for record, number, position in numbered if number in positions or position in positions
                )
            return
        try:
            with open_index(self.path) as file:
                for position in positions:
                    reading.last = call_before(file, position, reading.decode, reading.last)
                    file.seek(position)
                    yield from self._lines(file, position, position + 1, reading)
        except OSError as error:
            yield self._unread(error, 0)

    @property
    def work(self) -> int:
        return line_count(self.path)

    @property
    def tensors_below(self) -> Path:
        return self._root

    def batches(self) -> Iterator[Batch]:
        reading = _Reading(self)
        first = True
        for block in self._blocks(reading):
            if block.records:
                yield Batch(block.records, self.rank, self.step)
            if block.lines:
                yield _Lines(self, reading, block, first)
            first = first and not block.records and not block.lines

    def frames(self) -> Optional[Iterator[polars.DataFrame]]:
        return self._frames(None)

    def frames_after(self, shared: dict[str, Any]) -> Optional[Iterator[polars.DataFrame]]:
        from ascend_dump.reading.dialects.host._repeated_steps import repeated_steps

        if "host" not in shared:
            shared["host"] = repeated_steps()
        return self._frames(shared["host"])

    def _frames(self, steps: Optional[StepTemplates]) -> Optional[Iterator[polars.DataFrame]]:
        # Not for a single opened shard: its lines are selected one by one.
        if self._only:
            return None
        reading = _ReadingColumns(self)
        return self._decoded_frames(reading, None) if steps is None else self._repeated_frames(reading, steps)

    def _repeated_frames(self, reading: _ReadingColumns, steps: StepTemplates) -> Iterator[polars.DataFrame]:
        from ascend_dump.reading.dialects.host._repeated_steps import StepIndex, StepText

        decode = functools.partial(_regular, reading)
        prefix = steps.read(StepIndex(self.path, self._root, self._known, decode))
        yield from prefix.frames
        if not prefix.is_over:
            text = StepText(self.path_text)
            yield from self._decoded_frames(reading, text, prefix.end, prefix.rows)
            steps.keep(text)

    def _decoded_frames(
        self, reading: _ReadingColumns, text: Optional[StepText], offset: int = 0, rows: int = 0
    ) -> Iterator[polars.DataFrame]:
        """Yield the rows of lines that are decoded. text: receives these lines; offset, rows: what was read before"""
        from ascend_dump.reading.catalog import ROWS, of_records

        columns = LineColumns(self._known, self.path, self._root)
        if offset:
            with suppress(OSError), open_index(self.path) as file:
                reading.last = call_before(file, offset, reading.decode, NO_CALL)
        for block, numbers in self._numbered(reading, offset, rows):
            if columns and (block.records or len(columns) + len(block.lines) > ROWS):
                yield from _collected(columns.frame(), text)
            if block.records:
                text = None  # lines that are no records are no template
                yield of_records(block.records, numbers)
            else:
                columns.add(block.lines, line_starts(reading.ends, block.offset), block.before)
                if text is not None:
                    text.add(block.text, len(block.lines))
        if columns:
            yield from _collected(columns.frame(), text)

    def _numbered(self, reading: _Reading, offset: int = 0, before: int = 0) -> Iterator[tuple[_Block, range]]:
        """Yield the blocks, each with the negative positions of its records (-1 for the first record of the index).

        offset, before: where to begin, and the number of records above
        """
        for block in self._blocks(reading, offset):
            count = len(block.lines) + len(block.records)
            yield block, range(-before - 1, -before - 1 - count, -1)
            before += count

    def _blocks(self, reading: _Reading, offset: int = 0) -> Iterator[_Block]:
        """Yield the index in blocks. A block with an invalid line is decoded line by line and yielded as records."""
        most = _FIRST_BLOCK
        hole: list[Record] = []
        try:
            with open_index(self.path) as file:
                size = text_size(file)
                while offset < size:
                    file.seek(offset)
                    block = file.read(min(most, size - offset))
                    if not block:
                        break
                    most = _BLOCK
                    if 0 in block:
                        # A part that was never written to disk reads as zero bytes, which JSON cannot contain.
                        size = offset + block.index(0)
                        hole = [self._broken("zero bytes in the index: the rest of it is not read", size)]
                        size = block.rfind(b"\n", 0, size - offset) + 1 + offset
                        block = block[: size - offset]
                        if not block:
                            break
                    end = block.rfind(b"\n") + 1
                    text = block[:end]
                    lines = _regular(reading, text)
                    if lines:
                        before = reading.last
                        reading.last = call_after_all(lines, before)
                        if self._only:
                            lines, before, text = self._of_one_shard(lines, before), NO_CALL, b""
                        yield _Block(lines, [], offset, text, before)
                        offset += end
                        continue
                    file.seek(offset)
                    # Read at least one line: after a killed writer, the last line has no newline and `end` is 0.
                    records = self._lines(file, offset, offset + max(end, 1), reading)
                    batch = list(islice(records, _ROWS))
                    while batch:
                        yield _Block([], batch)
                        batch = list(islice(records, _ROWS))
                    offset = max(file.tell(), offset + 1)
        except OSError as error:
            yield _Block([], [self._unread(error, offset)])
        if hole:
            yield _Block([], hole)

    def _of_one_shard(self, lines: Sequence[Line], before: Call) -> list[Line]:
        """Return the lines that refer to the opened shard, each with the arguments of its operator.

        The operator's first line, which has the arguments, may refer to another shard.
        """
        selected = []
        for line in lines:
            before = call_after(line, before)
            if line.shard == self._only:
                line.call = msgspec.Raw(before.text)
                selected.append(line)
        return selected

    def _records(self, lines: Sequence[Line], reading: _Reading, before: Call) -> Iterator[Record]:
        """Yield the records of consecutive lines. before: the call of the line above the first one."""
        for line in lines:
            before = call_after(line, before)
            yield self._record(line, reading, 0, before.text)

    def _lines(self, file: IndexText, offset: int, until: int, reading: _Reading) -> Iterator[Record]:
        """Yield the records of the lines that begin before `until`. The file has to be positioned at `offset`."""
        while offset < until:
            try:
                raw = file.readline(_LONGEST_LINE)
            except OSError as error:
                yield self._unread(error, offset)
                return
            if not raw:
                break
            if len(raw) == _LONGEST_LINE and not raw.endswith(b"\n"):
                yield self._broken(f"a line is longer than {_LONGEST_LINE} bytes", offset)
                # The line is skipped in pieces, because a file with a hole may have a line of any size.
                while raw and not raw.endswith(b"\n") and 0 not in raw:
                    offset += len(raw)
                    raw = file.readline(_LONGEST_LINE)
                offset += len(raw)
                continue
            if reading.unreadable.are_enough and not raw.startswith(b"{"):
                offset += len(raw)
                continue
            try:
                line = reading.decode(raw)
                call = reading.call_of(line)
                if not self._only or line.shard == self._only:
                    yield self._record(line, reading, offset, call)
            except (msgspec.MsgspecError, ValueError, RecursionError) as error:
                end = offset + len(raw)
                # An incomplete last line is reported only for a complete run: a running or killed writer leaves one.
                if raw.strip() and (raw.endswith(b"\n") or self._is_final(file, end)):
                    cut = not raw.endswith(b"\n")
                    what = "the last line is cut off, although the run had ended" if cut else "not a record"
                    reason = reading.unreadable.reason(f"{what}: {error}")
                    if reason is not None:
                        yield self._broken(reason, offset)
            offset += len(raw)

    def _is_final(self, file: IndexText, end: int) -> bool:
        """Return True if the file ends at `end` and its run is complete, so that nothing will be appended."""
        # The size is read after the state: the run may write its last lines while its index is read.
        return is_of_complete_run(self.path) and ends_at(file, end)

    def _record(self, line: Line, reading: _Reading, offset: int, call: bytes) -> Record:
        once = reading.texts.setdefault
        module, source, dtype = line.module, line.source, line.dtype
        line.module, line.source, line.dtype = once(module, module), once(source, source), once(dtype, dtype)
        if line.call:
            line.call = msgspec.Raw(call)  # a copy, because the decoded value keeps the whole block in memory
        shard = line.shard
        path = reading.paths.get(shard)
        error = None
        if path is None:
            # The name may be forged: only names of shards in this dump are allowed.
            if SHARD.fullmatch(shard):
                path = reading.paths[shard] = self._root / shard
            else:
                path = self.path
                error = CorruptDump(f"{shard[:200]!r} is not a shard of this dump", path=path, offset=offset)
        return Record(
            reading.loader if _is_readable(line) else None,
            path=path,
            op_type=line.op_type,
            op_name=line.op_name,
            io=line.io,
            index=line.index,
            key=line,
            error=error,
            attrs=_attrs,
            timestamp=line.time,
            dtype=line.dtype,
            shape=line.shape,
            format="ND",
            nbytes=line.nbytes,
            phase=line.phase,
            module=line.module,
            source=line.source or None,
            nth=line.seq,
            call=call,
            **self._known,
        )

    def _unread(self, error: OSError, offset: int) -> Record:
        """Return the record that reports an index that cannot be read."""
        removed = why_removed(self.path.parent) if isinstance(error, FileNotFoundError) else None
        removed = error if isinstance(error, StorageError) else removed
        if removed is not None:
            return Record(None, path=self.path, error=removed, **self._known)
        return self._broken(f"cannot be read: {error.strerror}", offset)

    def _broken(self, reason: str, offset: int) -> Record:
        error = CorruptDump(reason, path=self.path, offset=offset, hint="the other records of the dump stay readable")
        return Record(None, path=self.path, error=error, **self._known)


def _collected(frame: polars.DataFrame, text: Optional[StepText]) -> Iterator[polars.DataFrame]:
    if text is not None:
        text.frames.append(frame)
    yield frame


def _regular(reading: _Reading, text: bytes) -> Sequence[Line]:
    """Decode complete lines. Return [] if one of them is no record, or refers to a file other than a shard."""
    try:
        lines = reading.lines_of(text) if text else []
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return []
    if not all(SHARD.fullmatch(shard) for shard in {line.shard for line in lines} - {""}):
        return []
    return lines


def _is_readable(line: Line) -> bool:
    """Return True if the dump has values or statistics for a line, or a reason why it has no statistics."""
    evidence = line.shard or line.stats is not None or line.unmeasured
    return bool(evidence) or (line.nbytes == 0 and not line.skipped)


def _identity(line: Line) -> Optional[Hashable]:
    content = content_of(line) if _is_readable(line) else None
    if content is None:
        if line.skipped not in NO_VALUES:
            return None
        content = (line.skipped, line.dtype, line.shape)
    return (line.seq, line.op_type, line.op_name, line.io, line.index, line.phase, line.module, content)


def _attrs(line: Line) -> dict[str, Any]:
    attrs: dict[str, Any] = {
        "seq": line.seq,
        "hash": line.hash,
        "stride": line.stride,
        "storage_offset": line.storage_offset,
        "storage": line.storage,
        "address": line.address,
        "storage_nbytes": line.storage_nbytes,
        "version": line.version,
        "device": line.device,
    }
    if line.skipped:
        attrs["skipped"] = line.skipped
    if line.unmeasured:
        attrs["unmeasured"] = line.unmeasured
    if line.origin:
        attrs["origin"] = line.origin
    if line.argument:
        attrs["argument"] = line.argument
    if line.parameter:
        attrs["parameter"] = line.parameter
    if line.requires_grad:
        attrs["requires_grad"] = True
    if line.quantization:
        attrs["quantization"] = line.quantization
    for name, value in (("collective", line.collective), ("placement", line.placement)):
        if value is not None:
            attrs[name] = msgspec.to_builtins(value)
    return attrs


def _levels(parts: tuple[str, ...]) -> dict[str, Any]:
    """Return the fields in the levels `{time}/{device}/{model}/{model_id}/{step}`, and the rank from a level above."""
    levels: dict[str, Any] = {"step": _number(parts[-1]) if parts else None, "rank": rank_of(parts)}
    if len(parts) < 5 or not _TIME.fullmatch(parts[-5]):
        return levels
    run, device, model, model_id, _ = parts[-5:]
    return {**levels, "run": run, "device": _number(device), "model": model, "model_id": _number(model_id)}


def _number(text: str) -> Optional[int]:
    return int(text) if text.isascii() and text.isdigit() and len(text) <= _MAX_DIGITS else None


DIALECT = _HostDialect()
