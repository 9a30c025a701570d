"""Free memory that the heap does not give back to the system while tensors wait to be read.

The GNU allocator gives the free end of its heap back to the system, and takes it again, page by page, for the next
large tensor: a fault of 2.5 microseconds for each 4 KiB. A program under capture holds tensors for a while longer, so
that this happens in other places and more often: 4,000 to 9,000 times more in a step of the benchmark's models. A small
block at the end of the heap, with free memory below it, keeps what is below; the program's own faults become fewer too.
"""

from __future__ import annotations

import ctypes
import functools
import sys
from pathlib import Path
from typing import Any, NamedTuple, Optional

__all__ = ["Reserve"]

#: Bytes below the block. With less the transformer of the benchmark has its faults back, with more nothing is won.
_SIZE = 256 << 20
#: Bytes that the allocator surely takes from its heap: from 128 KiB on it may ask the system for each block alone.
_PIECE = 120 << 10
#: What may lie between the last piece and the end of the heap (M_TOP_PAD is 128 KiB, and it ends with a page).
_END = 1 << 20


class Reserve:
    """Nothing until `take`, and again after `give_back`. Either may be called at any time, from any thread."""

    def __init__(self) -> None:
        self._last: Optional[int] = None

    def take(self) -> None:
        """Keep memory, where it is the GNU allocator's and there is some; takes 3 ms, and 9 MB for what it writes."""
        heap = _heap()
        if heap is None or self._last is not None:
            return
        pieces: list[Optional[int]] = []
        try:
            for _ in range(_SIZE // _PIECE):
                pieces.append(heap.malloc(_PIECE))
            last = max(piece or 0 for piece in pieces)
            # Elsewhere they lie in free memory that is kept already, in another thread's heap, or are another
            # allocator's.
            if None not in pieces and 0 <= (heap.sbrk(0) or 0) - last <= _PIECE + _END:
                self._last = last
        finally:
            for piece in pieces:
                if piece != self._last:
                    heap.free(piece)

    def give_back(self) -> None:
        last, self._last = self._last, None
        heap = _heap()
        if heap is not None and last is not None:
            heap.free(last)


class _Heap(NamedTuple):
    malloc: Any
    free: Any
    sbrk: Any


@functools.lru_cache(maxsize=1)
def _heap() -> Optional[_Heap]:
    """The functions of the GNU C library; None with another one, and where to take memory is not for nothing."""
    if not sys.platform.startswith("linux"):
        return None
    library: Any = ctypes.PyDLL(None)
    if not hasattr(library, "gnu_get_libc_version") or _costs_before_use():
        return None
    malloc, free, sbrk = library.malloc, library.free, library.sbrk
    malloc.argtypes, malloc.restype = [ctypes.c_size_t], ctypes.c_void_p
    free.argtypes, free.restype = [ctypes.c_void_p], None
    sbrk.argtypes, sbrk.restype = [ctypes.c_ssize_t], ctypes.c_void_p
    return _Heap(malloc, free, sbrk)


def _costs_before_use() -> bool:
    """Whether memory that is taken and not used may be missing elsewhere for a moment, or is filled all the same."""
    import resource  # not on every system

    limits = (resource.getrlimit(kind)[0] for kind in (resource.RLIMIT_AS, resource.RLIMIT_DATA))
    if any(limit != resource.RLIM_INFINITY for limit in limits):
        return True
    # Huge pages, where everybody has them: a fault is rare then, and each fills 2 MB.
    settings = (("/proc/sys/vm/overcommit_memory", b"2"), ("/sys/kernel/mm/transparent_hugepage/enabled", b"[always]"))
    for path, value in settings:
        try:
            if value in Path(path).read_bytes().split():
                return True
        except OSError:
            pass
    return False
