"""Reading dumps: `open_dump` finds records in any tree; one module per on-disk dialect."""

from __future__ import annotations

from ascend_dump.reading._dialect import Dialect, Directory, Entry, rank_of
from ascend_dump.reading._dump import Dump, open_dump
from ascend_dump.reading._record import FIELDS, Loader, Record
from ascend_dump.reading._runs import Run

__all__ = [
    "FIELDS",
    "Dialect",
    "Directory",
    "Dump",
    "Entry",
    "Loader",
    "Record",
    "Run",
    "open_dump",
    "rank_of",
]
