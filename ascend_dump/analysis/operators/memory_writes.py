"""The operators that last wrote each part of the memory of a step."""

from __future__ import annotations

import functools
import math
from collections.abc import Hashable
from typing import NamedTuple, Optional

from ascend_dump.reading import Record

__all__ = ["MemoryWrites", "elements_in_memory"]

#: Maximum number of earlier writes to parts of one memory that are kept.
_MOST_WRITES = 256


class _ElementsWritten(NamedTuple):
    """A write of the elements [begin, end) of a memory. number: that of the operator in its step"""

    begin: int
    end: int
    site: Hashable
    number: int


class MemoryWrites:
    """The last writes of a step, by the number of the memory."""

    def __init__(self) -> None:
        self._writes: dict[int, list[_ElementsWritten]] = {}

    def add_write(self, record: Record, storage: int, site: Hashable, number: int) -> None:
        """Add a write of a tensor. site: its operator, as a key; number: that of the operator in its step"""
        write = _ElementsWritten(*elements_in_memory(record), site, number)
        earlier = self._writes.get(storage)
        if earlier is None:
            self._writes[storage] = [write]
            return
        remaining = [before for before in earlier if before.begin < write.begin or before.end > write.end]
        self._writes[storage] = [*remaining[-_MOST_WRITES:], write]

    def writer_of(self, record: Record, storage: int, before: float = math.inf) -> Optional[Hashable]:
        """Return the last site that wrote a part of a tensor in its step.

        before: the number of an operator, at or before which it was written
        """
        writes = self._writes.get(storage)
        if writes is not None:
            begin, end = elements_in_memory(record)
            for write in reversed(writes):
                if write.begin < end and begin < write.end and write.number <= before:
                    return write.site
        return None


def elements_in_memory(record: Record) -> tuple[int, int]:
    """Return the first element of a tensor in its memory, and the one after its last."""
    attrs = record.attrs
    begin = attrs.get("storage_offset") or 0
    return begin, begin + _extent(record.shape or (), tuple(attrs.get("stride") or ()))


@functools.lru_cache(maxsize=4096)
def _extent(shape: tuple[int, ...], strides: tuple[int, ...]) -> int:
    return 1 + sum((size - 1) * stride for size, stride in zip(shape, strides) if size > 1)
