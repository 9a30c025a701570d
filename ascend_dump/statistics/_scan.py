"""Statistics in two parts: what has to be read of memory now, and what can be computed of that at any time later."""

from __future__ import annotations

from typing import Any, Callable, NamedTuple, Optional, Union

import numpy as np

from ascend_dump.statistics._engine import compiled
from ascend_dump.statistics._layout import Layout, layout_of
from ascend_dump.statistics._merge import combine, combine_counts
from ascend_dump.statistics._value import Statistics

__all__ = ["Scan", "scanner"]

#: Words of which sums and squares always stay within float64: a second look is never needed.
_NARROW = 4


class Scan(NamedTuple):
    """What was read of `count` elements."""

    layout: Layout
    count: int  # type: ignore[assignment]  # it hides tuple.count on purpose, as in Statistics
    partial: Any

    def statistics(self) -> Statistics:
        """What `ascend_dump.statistics.statistics` gives for these elements; reads no memory."""
        if self.layout.table is not None:
            return combine_counts(self.layout.table, self.partial)
        return combine(self.count, self.layout, [self.partial], _unread)


def scanner(dtype: np.dtype[Any]) -> Optional[Callable[[Union[bytes, memoryview]], Scan]]:
    """A function that reads aligned elements in a row, at least one and at most 2**30; None where that takes more than
    one look or a kernel that is not compiled (yet). It raises ValueError for memory that is not aligned.

    Raises ConfigError (AD101) for a dtype that has no statistics.
    """
    layout = layout_of(dtype)
    word = layout.word
    if (layout.kind == "float" or layout.kind == "complex") and word.itemsize > _NARROW:
        return None
    scan = compiled(layout) if dtype.isnative else None
    if scan is None:
        return None
    itemsize = dtype.itemsize
    read = np.frombuffer

    def read_all(memory: Union[bytes, memoryview]) -> Scan:
        words = read(memory, word)
        if not words.flags.aligned:
            raise ValueError("the memory is not aligned")
        return Scan(layout, len(memory) // itemsize, scan(words))

    return read_all


def _unread() -> np.ndarray:
    raise AssertionError("these sums stay within float64")
