"""Statistics in two parts: a pass over the memory of a tensor, and later the computation from the pass's result."""

from __future__ import annotations

from typing import Any, Callable, NamedTuple, Optional, Union

import numpy as np

from ascend_dump.statistics._engine import compiled
from ascend_dump.statistics._layout import Layout, layout_of
from ascend_dump.statistics._merge import Partial, combine, combine_counts
from ascend_dump.statistics._value import Statistics

__all__ = ["Scan", "scanner"]

#: Maximum size in bytes of a float word that is scanned. Sums of such elements, and of their squares, never exceed
#: float64, so a second pass with scaled elements is never needed.
_NARROW = 4
#: Positions in the result of a pass: the numbers of NaN, +Inf and -Inf are from `_NAN` to before `_POSZERO`.
_NAN, _POSZERO = Partial._fields.index("nan"), Partial._fields.index("poszero")


class Scan(NamedTuple):
    """The result of the pass over `count` elements. partial: a `Partial`, or the counts of one-byte patterns."""

    layout: Layout
    count: int  # type: ignore[assignment]  # it hides tuple.count on purpose, as in Statistics
    partial: Any

    def is_finite(self) -> bool:
        """Return True if no element is NaN or Inf.

        For one-byte types, whose patterns are only counted, the result is always False: call `statistics` instead.
        """
        if self.layout.kind == "integer":
            return True
        return self.layout.table is None and not any(self.partial[_NAN:_POSZERO])

    def statistics(self) -> Statistics:
        """Return the same as `ascend_dump.statistics.statistics` of these elements. Reads no elements again."""
        if self.layout.table is not None:
            return combine_counts(self.layout.table, self.partial)
        return combine(self.count, self.layout, [self.partial], _unread)


def scanner(dtype: np.dtype[Any]) -> Optional[Callable[[Union[bytes, memoryview]], Scan]]:
    """Return a function that scans the memory of 1 to 2**30 contiguous elements of a dtype.

    The function raises ValueError for memory that is not aligned. Return None instead of a function if one pass is not
    enough for the dtype, if its bytes are not in native order, or if its kernel is not compiled yet.
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
    raise AssertionError("sums of the types that `scanner` accepts stay within float64, so no second pass is needed")
