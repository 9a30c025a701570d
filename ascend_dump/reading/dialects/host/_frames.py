"""Read an index as tables of a catalog."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from typing import TYPE_CHECKING, Optional

from ascend_dump.dump_format import open_index
from ascend_dump.reading.catalog import ROWS, of_records
from ascend_dump.reading.dialects.host._blocks import numbered_blocks
from ascend_dump.reading.dialects.host._calls import NO_CALL, call_before
from ascend_dump.reading.dialects.host._columns import LineColumns, line_starts
from ascend_dump.reading.dialects.host._index_reading import ColumnReading
from ascend_dump.reading.dialects.host._repeated_steps import StepIndex, StepText

if TYPE_CHECKING:
    import polars

    from ascend_dump.reading.dialects.host._index_file import IndexFile
    from ascend_dump.reading.dialects.host._repeated_steps import StepTemplates

__all__ = ["frames_after", "frames_of"]


def frames_of(index: IndexFile) -> Iterator[polars.DataFrame]:
    """Yield the tables of an index. Each line is decoded."""
    return _decoded_frames(ColumnReading(index), None)


def frames_after(steps: Optional[StepTemplates], index: IndexFile) -> Iterator[polars.DataFrame]:
    """Yield the tables of an index. Lines that repeat an earlier step are not decoded.

    steps: the steps that were read before, to which this one is added; None without a compiler for reading them
    """
    return frames_of(index) if steps is None else _repeated_frames(ColumnReading(index), steps)


def _repeated_frames(reading: ColumnReading, steps: StepTemplates) -> Iterator[polars.DataFrame]:
    index = reading.index
    prefix = steps.read(StepIndex(index.path, index.root, index.shared, reading.lines_of))
    yield from prefix.frames
    if not prefix.is_over:
        text = StepText(str(index.path))
        yield from _decoded_frames(reading, text, prefix.end, prefix.rows)
        steps.keep(text)


def _decoded_frames(
    reading: ColumnReading, text: Optional[StepText], offset: int = 0, rows: int = 0
) -> Iterator[polars.DataFrame]:
    """Yield the rows of lines that are decoded. text: receives these lines; offset, rows: what was read before"""
    index = reading.index
    columns = LineColumns(index.shared, index.path, index.root)
    if offset:
        with suppress(OSError), open_index(index.path) as file:
            reading.last = call_before(file, offset, reading.decode, NO_CALL)
    for block, numbers in numbered_blocks(reading, offset, rows):
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


def _collected(frame: polars.DataFrame, text: Optional[StepText]) -> Iterator[polars.DataFrame]:
    if text is not None:
        text.frames.append(frame)
    yield frame
