"""Recognise records that contain no value of the program, and read the statistics of all others."""

from __future__ import annotations

from typing import Optional

from ascend_dump.dump_format import NO_VALUES
from ascend_dump.errors import AscendDumpError
from ascend_dump.reading import Record
from ascend_dump.statistics import Statistics

__all__ = ["is_no_value", "statistics_of"]


def is_no_value(record: Record) -> bool:
    """Return True if the record stands for no value of the program: no tensor, or uninitialised memory."""
    attrs = record.attrs
    return bool(attrs.get("no_tensor")) or attrs.get("skipped") in NO_VALUES


def statistics_of(record: Record) -> Optional[Statistics]:
    """Return the statistics of a record; None if it has no value, or if its value is not stored or cannot be read."""
    if is_no_value(record):
        return None
    try:
        return record.statistics()
    except AscendDumpError:
        return None
