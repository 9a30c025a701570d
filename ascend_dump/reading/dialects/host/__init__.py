"""Dialect `host`: dumps of the host adapters, see `ascend_dump.dump_format`."""

from __future__ import annotations

import re
from collections.abc import Collection, Hashable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, NamedTuple, Optional

import msgspec

from ascend_dump.dump_format import INDEX, MANIFEST, NO_VALUES, REMOVED, SHARD, STATISTIC, Line, content_of
from ascend_dump.errors import CorruptDump, StorageError
from ascend_dump.reading._dialect import Batch, Directory, Entry, rank_of
from ascend_dump.reading._record import Record
from ascend_dump.reading._runs import is_of_complete_run
from ascend_dump.reading.dialects._unreadable import UnreadableLines
from ascend_dump.reading.dialects.host._calls import NO_CALL, Call, call_after, call_after_all, call_before
from ascend_dump.reading.dialects.host._columns import LineColumns, PlainLine, are_objects, line_ends, line_starts
from ascend_dump.reading.dialects.host._loader import LineLoader, Shards, why_removed
from ascend_dump.reading.dialects.host._lone_shard import LoneShard
from ascend_dump.storage.files import open_regular, size_of

if TYPE_CHECKING:
    import numpy as np
    import polars

__all__ = ["DIALECT"]

_SHARD_FILE = re.compile(r"tensors-\d{5,18}\.safetensors", re.ASCII)
_TIME = re.compile(r"\d{14}", re.ASCII)
#: The most digits of numbers of steps and devices in names.
_MAX_DIGITS = 18
#: The most bytes of a line; usual lines have some hundred.
_LONGEST_LINE = 1 << 20
_USUAL_LINE = 400
#: Bytes decoded at a time: some hundred lines, which fit a processor's cache. The first block is smaller, for callers
#: that read only a few records.
_FIRST_BLOCK, _BLOCK = 1 << 15, 1 << 18
#: Records per batch if lines are read one by one.
_ROWS = 16_384


class _HostDialect:
    name = "host"

    def scan(self, directory: Directory) -> tuple[list[Entry], set[str]]:
        names = directory.names
        shards = [name for name in names if _SHARD_FILE.fullmatch(name)]
        claimed = {*shards, *({MANIFEST, REMOVED} & set(names))}
        if shards or INDEX in names or REMOVED in names:
            # Claimed only next to an index or a shard, because other formats use this name too.
            claimed |= {STATISTIC} & set(names)
        if INDEX in names:
            return [_Index(directory)], {*claimed, INDEX}
        entries: list[Entry] = []
        for name in shards:
            if (directory.path / INDEX).is_file():  # one shard was opened by itself
                entries.append(_Index(directory, only=name))
            elif not (directory.path / REMOVED).is_file():  # else it is there for other steps only
                fields = _levels(directory.parts)
                entries.append(LoneShard(directory.path / name, fields, Shards.of(directory.root)))
        return entries, claimed


class _Reading:
    """State shared by the records of one pass over an index."""

    def __init__(self, index: _Index) -> None:
        self.loader = LineLoader(index._root, index._shards)
        self.decode = msgspec.json.Decoder(Line).decode
        self.paths: dict[str, Path] = {"": index.path}
        #: Interned texts, because most occur many times.
        self.texts: dict[str, str] = {}
        self.unreadable = UnreadableLines()
        self.last = NO_CALL

    def lines_of(self, text: bytes) -> Sequence[Line]:
        """Decode the lines of a text. Raises MsgspecError or ValueError if one of them is not a record."""
        return list(map(self.decode, text[:-1].split(b"\n")))

    def call_of(self, line: Line) -> bytes:
        """Return the arguments of a line's operator, from its first line. Call for consecutive lines."""
        self.last = call_after(line, self.last)
        return self.last.text


class _ReadingColumns(_Reading):
    """A reading of lines as columns instead of records. ends: of the lines decoded last."""

    ends: np.ndarray

    def __init__(self, index: _Index) -> None:
        super().__init__(index)
        self._decode_all = msgspec.json.Decoder(PlainLine).decode_lines

    def lines_of(self, text: bytes) -> Sequence[Line]:
        self.ends = line_ends(text)
        lines = self._decode_all(text) if are_objects(text, self.ends) else []
        return lines if len(lines) == len(self.ends) else []


class _Block(NamedTuple):
    """The next lines of an index, or their records if some lines are no records.

    offset, text    of the lines: their beginning and their text; empty if some are left out
    before          the call of the line before them
    """

    lines: Sequence[Line]
    records: list[Record]
    offset: int = 0
    text: bytes = b""
    before: Call = NO_CALL

    def offsets(self) -> list[int]:
        """Return the offset of each line."""
        offsets: list[int] = line_starts(line_ends(self.text), self.offset).tolist()
        return offsets


class _Lines(Batch):
    """A batch of lines of an index; a line takes much less memory than its record.

    first: they are the first ones of the index.
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
            # The first line of an index is also the first line of an operator.
            head = next(identities)
            yield None if head is None else ("first", head)
        yield from identities


class _Index(Entry):
    """The index of one step. Decoded each time, to save the memory of keeping the records of a large dump."""

    __slots__ = ("_known", "_only", "_root", "_shards")

    def __init__(self, directory: Directory, *, only: str = "") -> None:
        fields = _levels(directory.parts)
        super().__init__(
            directory.path / INDEX, **{name: value for name, value in fields.items() if name != "model_id"}
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
            # Some lines were read one by one, so all must be read again to find them.
            for block, numbers in self._numbered(reading):
                records = block.records or self._records(block.lines, reading, block.before)
                numbered = zip(records, numbers, block.offsets() or numbers)
                yield from (
                    record for record, number, position in numbered if number in positions or position in positions
                )
            return
        try:
            with open_regular(self.path) as file:
                for position in positions:
                    reading.last = call_before(file, position, reading.decode, reading.last)
                    file.seek(position)
                    yield from self._lines(file, position, position + 1, reading)
        except OSError as error:
            yield self._unread(error, 0)

    @property
    def work(self) -> int:
        try:
            return self.path.stat().st_size // _USUAL_LINE
        except OSError:
            return 0

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
        # One shard of a step is a matter of single records.
        return None if self._only else self._frames()

    def _frames(self) -> Iterator[polars.DataFrame]:
        from ascend_dump.reading.catalog import ROWS, of_records

        columns = LineColumns(self._known, self.path, self._root)
        reading = _ReadingColumns(self)
        for block, numbers in self._numbered(reading):
            if columns and (block.records or len(columns) + len(block.lines) > ROWS):
                yield columns.frame()
            if block.records:
                yield of_records(block.records, numbers)
            else:
                columns.add(block.lines, line_starts(reading.ends, block.offset))
        if columns:
            yield columns.frame()

    def _numbered(self, reading: _Reading) -> Iterator[tuple[_Block, range]]:
        """Yield the blocks, each with the negative ordinals of its records in the index."""
        before = 0
        for block in self._blocks(reading):
            count = len(block.lines) + len(block.records)
            yield block, range(-before - 1, -before - 1 - count, -1)
            before += count

    def _blocks(self, reading: _Reading) -> Iterator[_Block]:
        """Yield blocks of lines; the lines around an invalid one are read one by one."""
        offset, most = 0, _FIRST_BLOCK
        hole: list[Record] = []
        try:
            with open_regular(self.path) as file:
                # Lines appended after this point are not read.
                size = size_of(file)
                while offset < size:
                    file.seek(offset)
                    block = file.read(min(most, size - offset))
                    most = _BLOCK
                    if 0 in block:
                        # A hole in a file reads as any number of NUL, and no text has one.
                        size = offset + block.index(0)
                        hole = [self._broken("a NUL, which no text has: nothing is read from there on", size)]
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
                    # At least one line; the last line of a killed writer has no newline.
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
        """Return the lines of the opened shard, with the calls that stand in lines of other shards."""
        selected = []
        for line in lines:
            before = call_after(line, before)
            if line.shard == self._only:
                line.call = msgspec.Raw(before.text)
                selected.append(line)
        return selected

    def _records(self, lines: Sequence[Line], reading: _Reading, before: Call) -> Iterator[Record]:
        """Yield the records of lines that follow each other, the first of them after one with this call."""
        for line in lines:
            before = call_after(line, before)
            yield self._record(line, reading, 0, before.text)

    def _lines(self, file: BinaryIO, offset: int, until: int, reading: _Reading) -> Iterator[Record]:
        """Yield the records of the lines that begin from `offset`, where the file stands, and before `until`."""
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
                # Skipped in pieces, because it may be a sparse hole of any size.
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
                # A killed writer leaves at most one incomplete line.
                if raw.strip() and (raw.endswith(b"\n") or self._is_final(file, end)):
                    cut = not raw.endswith(b"\n")
                    what = "the last line is cut off, although the run had ended" if cut else "not a record"
                    reason = reading.unreadable.reason(f"{what}: {error}")
                    if reason is not None:
                        yield self._broken(reason, offset)
            offset += len(raw)

    def _is_final(self, file: BinaryIO, end: int) -> bool:
        """Return True if the file ends here for good."""
        # The size is asked for last: the run may end while its index is read.
        return is_of_complete_run(self.path) and size_of(file) == end

    def _record(self, line: Line, reading: _Reading, offset: int, call: bytes) -> Record:
        once = reading.texts.setdefault
        module, source, dtype = line.module, line.source, line.dtype
        line.module, line.source, line.dtype = once(module, module), once(source, source), once(dtype, dtype)
        if line.call:
            line.call = msgspec.Raw(call)  # the decoded one keeps the whole decoded block alive
        shard = line.shard
        path = reading.paths.get(shard)
        error = None
        if path is None:
            # The name is untrusted: only shards of this dump are allowed.
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


def _regular(reading: _Reading, text: bytes) -> Sequence[Line]:
    """Return the lines of a text; none where one of them is no record, or names a shard that is none of this dump."""
    try:
        lines = reading.lines_of(text) if text else []
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return []
    if not all(SHARD.fullmatch(shard) for shard in {line.shard for line in lines} - {""}):
        return []
    return lines


def _is_readable(line: Line) -> bool:
    """Return True if the dump has values or statistics of it, or the reason for none."""
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
    """Return the fields in `{time}/{device}/{model}/{model_id}/{step}` below the directory of the rank."""
    levels: dict[str, Any] = {"step": _number(parts[-1]) if parts else None, "rank": rank_of(parts)}
    if len(parts) < 5 or not _TIME.fullmatch(parts[-5]):
        return levels
    run, device, model, model_id, _ = parts[-5:]
    return {**levels, "run": run, "device": _number(device), "model": model, "model_id": _number(model_id)}


def _number(text: str) -> Optional[int]:
    return int(text) if text.isascii() and text.isdigit() and len(text) <= _MAX_DIGITS else None


DIALECT = _HostDialect()
