"""The entry of an index. It yields the lines of a step as records, batches and tables."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterator
from typing import TYPE_CHECKING, Any, Optional

from ascend_dump.dump_format import line_count, open_index
from ascend_dump.reading._dialect import Batch, Entry
from ascend_dump.reading.dialects.host._blocks import Block, blocks_of, numbered_blocks
from ascend_dump.reading.dialects.host._calls import call_before
from ascend_dump.reading.dialects.host._index_reading import IndexReading
from ascend_dump.reading.dialects.host._line_fields import identity_of
from ascend_dump.reading.dialects.host._single_lines import records_between

if TYPE_CHECKING:
    from pathlib import Path

    import polars

    from ascend_dump.reading._record import Record
    from ascend_dump.reading.dialects.host._index_file import IndexFile

__all__ = ["IndexEntry"]


class _Lines(Batch):
    """A batch of lines that become records on access: a line takes much less memory than its record.

    first: True if these are the first lines of the index
    """

    __slots__ = ("_before", "_first", "_lines", "_reading")

    def __init__(self, entry: IndexEntry, reading: IndexReading, block: Block, first: bool) -> None:
        super().__init__((), entry.rank, entry.step)
        self._reading = reading
        self._lines = block.lines
        self._before = block.before
        self._first = first

    def __len__(self) -> int:
        return len(self._lines)

    def __iter__(self) -> Iterator[Record]:
        yield from self._reading.records(self._lines, self._before)

    def identities(self) -> Iterator[Optional[Hashable]]:
        identities = map(identity_of, self._lines)
        if self._first:
            # The other dump may have this record inside an index, below other records of the same operator. So the
            # first record of an index is marked, and is equal only to the first record of an index.
            head = next(identities)
            yield None if head is None else ("first", head)
        yield from identities


class IndexEntry(Entry):
    """The index of one step. It is decoded again at each use, because its records would take too much memory."""

    __slots__ = ("_index",)

    def __init__(self, index: IndexFile) -> None:
        super().__init__(index.path, **{name: value for name, value in index.shared.items() if name != "model_id"})
        self._index = index

    def records(self) -> Iterator[Record]:
        reading = IndexReading(self._index)
        for block in blocks_of(reading):
            yield from block.records
            yield from reading.records(block.lines, block.before)

    def records_at(self, positions: Collection[int]) -> Iterator[Record]:
        reading = IndexReading(self._index)
        if any(position < 0 for position in positions):
            # Negative positions count records from the beginning, so the whole index is read.
            for block, numbers in numbered_blocks(reading):
                records = block.records or reading.records(block.lines, block.before)
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
                    yield from records_between(file, position, position + 1, reading)
        except OSError as error:
            yield self._index.unread(error, 0)

    @property
    def work(self) -> int:
        return line_count(self.path)

    @property
    def tensors_below(self) -> Path:
        return self._index.root

    def batches(self) -> Iterator[Batch]:
        reading = IndexReading(self._index)
        first = True
        for block in blocks_of(reading):
            if block.records:
                yield Batch(block.records, self.rank, self.step)
            if block.lines:
                yield _Lines(self, reading, block, first)
            first = first and not block.records and not block.lines

    def frames(self) -> Optional[Iterator[polars.DataFrame]]:
        # Not for a single opened shard: its lines are selected one by one.
        if self._index.only:
            return None
        from ascend_dump.reading.dialects.host._frames import frames_of

        return frames_of(self._index)

    def frames_after(self, shared: dict[str, Any]) -> Optional[Iterator[polars.DataFrame]]:
        if self._index.only:
            return None
        from ascend_dump.reading.dialects.host._frames import frames_after
        from ascend_dump.reading.dialects.host._repeated_steps import repeated_steps

        if "host" not in shared:
            shared["host"] = repeated_steps()
        return frames_after(shared["host"], self._index)
