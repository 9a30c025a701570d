"""Hold the last steps of a capture of statistics (`keep=`) in memory, until they are needed on disk.

With `keep=`, most steps are replaced by later ones and never read. Without the values of tensors a step is small, so it
stays in memory. Only steps that may be read are encoded and written: when the recording ends, when the program is idle
or asks for the dump, and every `EVERY` seconds. So a program that is killed leaves the steps of the last such write.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence

from ascend_dump.writing.payload import Item

__all__ = ["EVERY", "RECORD_BYTES", "HeldSteps"]

#: Seconds after which the steps in memory are written.
EVERY = 20.0
#: Bytes of memory per record, with its share of statistics and payloads: 880 were measured in a transformer with AdamW.
RECORD_BYTES = 900
#: If more than this many records are in memory, all steps in memory are written.
_MOST_RECORDS = 100_000


class HeldSteps:
    """The records of the last complete steps and of the open step, by step, in the order of their first record.

    keep     maximum number of complete steps in memory
    records  number of records of the steps in memory, plus those of the dropped steps
    most     the largest number of records that were in memory at a time
    """

    def __init__(self, keep: int) -> None:
        self.records = self.most = 0
        self._keep = keep
        self._steps: dict[int, list[Item]] = {}
        self._held = 0
        #: The value of `time.monotonic()` from which the steps must be written.
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

        The first step is written at its end, so that a directory without write permission is reported early.
        """
        if not self._steps:
            return False
        is_over = self._held > _MOST_RECORDS or (ends_step and self._is_first)
        return is_over or time.monotonic() >= self._due

    def take(self) -> Iterator[tuple[int, list[Item]]]:
        """Yield the steps in memory, oldest first, each with its records, and drop each from memory."""
        self._is_first = False
        while self._steps:
            step = next(iter(self._steps))
            records = self._steps.pop(step)
            self._held -= len(records)
            self.records -= len(records)
            yield step, records
