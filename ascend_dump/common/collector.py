"""Let Python's garbage collector run rarely while a large dump is read."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator

__all__ = ["rare_collections"]

#: Number of new objects after which the youngest are searched for cycles. Python's default is 700 (2000 since 3.13).
_MANY = 200_000


@contextlib.contextmanager
def rare_collections() -> Iterator[None]:
    """Collect garbage rarely inside of the block.

    An analysis of a large dump keeps millions of small objects without cycles. Searching them again and again for
    cycles takes a quarter of the time. Objects without cycles are freed at once all the same.
    """
    before = gc.get_threshold()
    gc.set_threshold(max(_MANY, before[0]) if before[0] else 0, *before[1:])
    try:
        yield
    finally:
        gc.set_threshold(*before)
