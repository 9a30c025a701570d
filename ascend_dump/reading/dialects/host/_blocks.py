"""Read an index in blocks of some hundred lines."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice
from typing import NamedTuple, Optional

import msgspec

from ascend_dump.dump_format import IndexText, Line, open_index, text_size
from ascend_dump.reading._record import Record
from ascend_dump.reading.dialects.host._calls import NO_CALL, Call, call_after, call_after_all
from ascend_dump.reading.dialects.host._columns import line_ends, line_starts
from ascend_dump.reading.dialects.host._index_reading import IndexReading
from ascend_dump.reading.dialects.host._single_lines import records_between

__all__ = ["Block", "blocks_of", "numbered_blocks"]

#: Bytes decoded at a time: some hundred lines, which fit into a processor's cache. The first block is smaller, for
#: callers that read only a few records.
_FIRST_BLOCK, _BLOCK = 1 << 15, 1 << 18
#: Records per batch in a part of an index with invalid lines, where lines are decoded one by one.
_ROWS = 16_384


class Block(NamedTuple):
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


def numbered_blocks(reading: IndexReading, offset: int = 0, before: int = 0) -> Iterator[tuple[Block, range]]:
    """Yield the blocks, each with the negative positions of its records (-1 for the first record of the index).

    offset, before: where to begin, and the number of records above
    """
    for block in blocks_of(reading, offset):
        count = len(block.lines) + len(block.records)
        yield block, range(-before - 1, -before - 1 - count, -1)
        before += count


def blocks_of(reading: IndexReading, offset: int = 0) -> Iterator[Block]:
    """Yield the index in blocks. A block with an invalid line is decoded line by line and yielded as records."""
    index = reading.index
    most = _FIRST_BLOCK
    hole: list[Record] = []
    try:
        with open_index(index.path) as file:
            size = text_size(file)
            while offset < size:
                file.seek(offset)
                text = file.read(min(most, size - offset))
                if not text:
                    break
                most = _BLOCK
                if 0 in text:
                    # A part that was never written to disk reads as zero bytes, which JSON cannot contain.
                    size = offset + text.index(0)
                    hole = [index.broken("zero bytes in the index: the rest of it is not read", size)]
                    size = text.rfind(b"\n", 0, size - offset) + 1 + offset
                    text = text[: size - offset]
                    if not text:
                        break
                text = text[: text.rfind(b"\n") + 1]
                block = _decoded(text, offset, reading)
                if block is not None:
                    yield block
                    offset += len(text)
                    continue
                file.seek(offset)
                # Read at least one line: after a killed writer, the last line has no newline and `text` is empty.
                yield from _single_lines(file, offset, offset + max(len(text), 1), reading)
                offset = max(file.tell(), offset + 1)
    except OSError as error:
        yield Block([], [index.unread(error, offset)])
    if hole:
        yield Block([], hole)


def _decoded(text: bytes, offset: int, reading: IndexReading) -> Optional[Block]:
    """Return complete lines as a block; None if one of them is invalid."""
    lines = reading.lines_of(text)
    if not lines:
        return None
    before = reading.last
    reading.last = call_after_all(lines, before)
    if reading.index.only:
        return Block(_of_one_shard(lines, before, reading.index.only), [], offset)
    return Block(lines, [], offset, text, before)


def _single_lines(file: IndexText, offset: int, until: int, reading: IndexReading) -> Iterator[Block]:
    """Yield the lines that begin before `until` as blocks of records. The file has to be positioned at `offset`."""
    records = records_between(file, offset, until, reading)
    batch = list(islice(records, _ROWS))
    while batch:
        yield Block([], batch)
        batch = list(islice(records, _ROWS))


def _of_one_shard(lines: Sequence[Line], before: Call, shard: str) -> list[Line]:
    """Return the lines that refer to a shard, each with the arguments of its operator.

    The operator's first line, which has the arguments, may refer to another shard.
    """
    selected = []
    for line in lines:
        before = call_after(line, before)
        if line.shard == shard:
            line.call = msgspec.Raw(before.text)
            selected.append(line)
    return selected
