"""Read lines of an index one by one, and report those that are no records."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Optional

import msgspec

from ascend_dump.dump_format import IndexText, ends_at
from ascend_dump.reading._record import Record
from ascend_dump.reading._runs import is_of_complete_run
from ascend_dump.reading.dialects.host._index_reading import IndexReading

__all__ = ["records_between"]

#: Maximum size of a line in bytes.
_LONGEST_LINE = 1 << 20


def records_between(file: IndexText, offset: int, until: int, reading: IndexReading) -> Iterator[Record]:
    """Yield the records of the lines that begin before `until`. The file has to be positioned at `offset`."""
    index = reading.index
    while offset < until:
        try:
            raw = file.readline(_LONGEST_LINE)
        except OSError as error:
            yield index.unread(error, offset)
            return
        if not raw:
            break
        if len(raw) == _LONGEST_LINE and not raw.endswith(b"\n"):
            yield index.broken(f"a line is longer than {_LONGEST_LINE} bytes", offset)
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
            if not index.only or line.shard == index.only:
                yield reading.record(line, offset, call)
        except (msgspec.MsgspecError, ValueError, RecursionError) as error:
            reason = _reason(error, raw, file, offset, reading)
            if reason is not None:
                yield index.broken(reason, offset)
        offset += len(raw)


def _reason(error: Exception, raw: bytes, file: IndexText, offset: int, reading: IndexReading) -> Optional[str]:
    """Return the text that reports a line that cannot be decoded; None if it is not reported."""
    # An incomplete last line is reported only for a complete run: a running or killed writer leaves one.
    is_cut = not raw.endswith(b"\n")
    if not raw.strip() or (is_cut and not _is_final(reading, file, offset + len(raw))):
        return None
    what = "the last line is cut off, although the run had ended" if is_cut else "not a record"
    return reading.unreadable.reason(f"{what}: {error}")


def _is_final(reading: IndexReading, file: IndexText, end: int) -> bool:
    """Return True if the file ends at `end` and its run is complete, so that nothing will be appended."""
    # The size is read after the state: the run may write its last lines while its index is read.
    return is_of_complete_run(reading.index.path) and ends_at(file, end)
