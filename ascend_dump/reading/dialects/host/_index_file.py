"""Describe the index of one step, and create the records that report its errors."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

from ascend_dump.errors import CorruptDump, StorageError
from ascend_dump.reading._record import Record
from ascend_dump.reading.dialects.host._loader import Shards, why_removed

__all__ = ["IndexFile"]


class IndexFile(NamedTuple):
    """The index of one step.

    root    the directory of the steps
    shared  the fields that all records have, from directory names
    only    the shard whose records are read, relative to `root`, if a single one was opened; else empty
    shards  the shards of the dump that are open
    """

    path: Path
    root: Path
    shared: dict[str, Any]
    only: str
    shards: Shards

    def unread(self, error: OSError, offset: int) -> Record:
        """Return the record that reports an index that cannot be read."""
        removed = why_removed(self.path.parent) if isinstance(error, FileNotFoundError) else None
        removed = error if isinstance(error, StorageError) else removed
        if removed is not None:
            return Record(None, path=self.path, error=removed, **self.shared)
        return self.broken(f"cannot be read: {error.strerror}", offset)

    def broken(self, reason: str, offset: int) -> Record:
        """Return the record that reports an invalid part of the index, which begins at `offset`."""
        error = CorruptDump(reason, path=self.path, offset=offset, hint="the other records of the dump stay readable")
        return Record(None, path=self.path, error=error, **self.shared)
