"""The last steps of a recorder of statistics (`keep=`), in memory until they are needed on disk.

Most steps of a recorder are never read: they are replaced by later ones. Without tensors a step is small, so it stays
in memory, and only steps that may be read are encoded and written: when the recording ends, when the program is idle
or asks for the dump, and every `EVERY` seconds, so that a killed program leaves the steps before that.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence

from ascend_dump.writing.payload import Item

__all__ = ["EVERY", "RECORD_BYTES", "HeldSteps"]

#: Seconds after which the steps in memory are written.
EVERY = 20.0
#: Bytes of memory that a record takes, with its share of statistics and payloads: 880 in a transformer with AdamW.
RECORD_BYTES = 900
#: Records in memory above which they are written.
_MOST_RECORDS = 100_000


class HeldSteps:
    """The records of the last complete steps and of the open one, by step, in the order of their first record.

    keep     the number of complete steps
    records  the number of records of these steps, and of all that were dropped
    most     the most records in memory at a time
    """

    def __init__(self, keep: int) -> None:
        self.records = self.most = 0
        self._keep = keep
        self._steps: dict[int, list[Item]] = {}
        self._held = 0
        #: When the steps must be written.
        self._due = 0.0
        self._is_first = True

    def __bool__(self) -> bool:
        return bool(self._steps)

    def add(self, step: int, items: Sequence[Item]) -> list[tuple[int, int]]:
        """Add records of the open step. Returns the steps that were dropped, each with its number of records."""
        dropped = []
        records = self._steps.get(step)
        if records is None:
            while len(self._steps) > self._keep:
                oldest = next(iter(self._steps))
                dropped.append((oldest, len(self._steps.pop(oldest))))
            if not self._steps:
                self._due = time.monotonic() + EVERY
            records = self._steps[step] = []
        records += items
        self.records += len(items)
        self._held += len(items) - sum(count for _, count in dropped)
        self.most = max(self.most, self._held)
        return dropped

    def is_due(self, *, ends_step: bool) -> bool:
        """Return True if the steps must be written now. ends_step: the open step is complete.

        The first one is written at its end, so that a directory that cannot be written is reported early.
        """
        if not self._steps:
            return False
        is_over = self._held > _MOST_RECORDS or (ends_step and self._is_first)
        return is_over or time.monotonic() >= self._due

    def take(self) -> Iterator[tuple[int, list[Item]]]:
        """Yield the steps to write, oldest first, and hold them no longer."""
        self._is_first = False
        while self._steps:
            step = next(iter(self._steps))
            records = self._steps.pop(step)
            self._held -= len(records)
            self.records -= len(records)
            yield step, records
