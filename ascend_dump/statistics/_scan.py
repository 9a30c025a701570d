"""Statistics in two parts: a pass over memory now, and the computation from its result at any time later."""

from __future__ import annotations

from typing import Any, Callable, NamedTuple, Optional, Union

import numpy as np

from ascend_dump.statistics._engine import compiled
from ascend_dump.statistics._layout import Layout, layout_of
from ascend_dump.statistics._merge import Partial, combine, combine_counts
from ascend_dump.statistics._value import Statistics

__all__ = ["Scan", "scanner"]

#: Words up to this many bytes have sums and squares within float64, so a second pass is never needed.
_NARROW = 4
#: Positions in the result of a pass: the numbers of NaN, +Inf and -Inf are between them.
_NAN, _POSZERO = Partial._fields.index("nan"), Partial._fields.index("poszero")


class Scan(NamedTuple):
    """The result of the pass over `count` elements."""

    layout: Layout
    count: int  # type: ignore[assignment]  # it hides tuple.count on purpose, as in Statistics
    partial: Any

    def is_finite(self) -> bool:
        """Return True if there is surely no NaN or Inf among the elements; False where only `statistics` shows it."""
        if self.layout.kind == "integer":
            return True
        return self.layout.table is None and not any(self.partial[_NAN:_POSZERO])

    def statistics(self) -> Statistics:
        """Return the same as `ascend_dump.statistics.statistics` of these elements; reads no memory."""
        if self.layout.table is not None:
            return combine_counts(self.layout.table, self.partial)
        return combine(self.count, self.layout, [self.partial], _unread)


def scanner(dtype: np.dtype[Any]) -> Optional[Callable[[Union[bytes, memoryview]], Scan]]:
    """Return a function that scans 1 to 2**30 contiguous elements; it raises ValueError for memory that is not aligned.

    None if one pass is not enough, or the kernel is not compiled yet.
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
