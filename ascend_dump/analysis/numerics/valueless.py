"""Records without a value of the program."""

from __future__ import annotations

from ascend_dump.dump_format import NO_VALUES
from ascend_dump.reading import Record

__all__ = ["is_no_value"]


def is_no_value(record: Record) -> bool:
    """Return True if the record stands for no value of the program: no tensor, or uninitialised memory."""
    return bool(record.attrs.get("no_tensor")) or record.attrs.get("skipped") in NO_VALUES
