"""Count the bytes and records that are queued for the writer thread but not in the files yet."""

from __future__ import annotations

import time
from collections import deque

from ascend_dump.writing.payload import Item

__all__ = ["Backlog"]

#: Bytes counted for each queued record besides those of its tensor.
_ITEM_BYTES = 1024
#: If the program is killed, it loses the records that are not in the files yet. The program waits for the writer if
#: more than this many queued records are not in the files, and the oldest of them is older than this many seconds.
_LOST_ITEMS = 200
_LOST_SECONDS = 0.5


class Backlog:
    """Counts the queued bytes until they are stored, and the queued records until they are in the files.

    Each count is changed by one thread only, so none needs a lock: `add` is called under the lock of the queue; `take`,
    `store` and `save` are called by the writer thread. `is_full` and `is_late` may be called by any thread; their
    result may be a moment old.

    buffer_bytes  bytes of queued tensors and records above which the backlog is full
    """

    def __init__(self, buffer_bytes: int) -> None:
        self._buffer_bytes = buffer_bytes
        self._queued_bytes = 0
        self._stored_bytes = 0
        self._queued_items = 0
        self._saved_items = 0
        #: For each batch whose records are not in the files yet: the time when it got its first record.
        self._begun: deque[float] = deque()
        # The batches and records that the writer thread took from the queue, but that are not in the files yet.
        self._taken_batches = 0
        self._taken_items = 0

    def add(self, batch: list[Item], begun: float) -> None:
        """Count a batch that got its first record at the time `begun`. Call this before the batch is queued.

        A payload that several batches contain is counted once.
        """
        nbytes = len(batch) * _ITEM_BYTES
        for item in batch:
            payload = item.payload
            if payload is not None and not payload.counted:
                payload.counted = True
                nbytes += payload.nbytes
        self._queued_bytes += nbytes
        self._queued_items += len(batch)
        self._begun.append(begun)

    def take(self, batch: list[Item]) -> None:
        """Note that the writer thread has taken the batch from the queue."""
        self._taken_batches += 1
        self._taken_items += len(batch)

    def store(self, nbytes: int) -> None:
        """Note that this many bytes of tensors are not needed in memory any more."""
        self._stored_bytes += nbytes

    def store_lines(self, batch: list[Item]) -> None:
        """Note that the records of the batch, without their tensors, are not needed in memory any more."""
        self._stored_bytes += len(batch) * _ITEM_BYTES

    def save(self) -> None:
        """Note that all batches taken so far are in the files."""
        for _ in range(self._taken_batches):
            self._begun.popleft()
        self._saved_items += self._taken_items
        self._taken_batches = self._taken_items = 0

    def is_full(self, share: float = 1.0) -> bool:
        """Return True if more bytes are queued than this share of the buffer."""
        return self._queued_bytes - self._stored_bytes > self._buffer_bytes * share

    def is_late(self, share: float = 1.0) -> bool:
        """Return True if more than `_LOST_ITEMS` queued records are not in the files yet, and one of them is too old.

        share  the part of `_LOST_SECONDS` from which a record is too old
        """
        if self._queued_items - self._saved_items <= _LOST_ITEMS:
            return False
        try:
            return time.monotonic() - self._begun[0] > _LOST_SECONDS * share
        except IndexError:
            return False
