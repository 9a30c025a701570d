"""Bytes in memory on their way to the writer, and the records that read from them."""

from __future__ import annotations

import ctypes
from typing import Any, Optional, Union

import msgspec

from ascend_dump.host.layout import Line

__all__ = ["COPYING", "DONE", "QUEUED", "WRITING", "Item", "Payload", "copy_memory"]

QUEUED, COPYING, WRITING, DONE = range(4)

_READ_ONLY = 0x100  # PyBUF_READ
_bytes_at = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.c_void_p, ctypes.c_ssize_t)(
    ("PyBytes_FromStringAndSize", ctypes.pythonapi)
)
_view_memory = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.c_void_p, ctypes.c_ssize_t, ctypes.c_int)(
    ("PyMemoryView_FromMemory", ctypes.pythonapi)
)


def copy_memory(address: int, nbytes: int) -> bytes:
    """The bytes at an address. `ctypes.string_at` does the same below 2 GiB, and takes the size modulo 4 GiB above."""
    found: bytes = _bytes_at(address, nbytes) if nbytes else b""
    return found


class Payload(msgspec.Struct, eq=False, gc=False):
    """Bytes in memory that one or more records read from.

    owner    keeps the memory at `address` alive, or is the bytes themselves
    dtype, shape  how the bytes are entered in the shard
    strided  (shape, strides in bytes) for statistics, when they are not over the plain range
    counted  it is among the bytes that wait for the writer
    digest   xxh3-128 of the bytes, once they are hashed
    stats    `Line.stats` as JSON: many lines, and rows of the table, have the same
    unmeasured  why there are none
    """

    owner: Any
    address: int
    nbytes: int
    dtype: str
    shape: tuple[int, ...]
    strided: Optional[tuple[tuple[int, ...], tuple[int, ...]]] = None
    state: int = QUEUED
    counted: bool = False
    shard: str = ""
    offset: int = 0
    digest: bytes = b""
    stats: Any = None
    unmeasured: str = ""

    def view(self) -> Union[bytes, memoryview]:
        if isinstance(self.owner, bytes):
            return self.owner
        found: memoryview = _view_memory(self.address, self.nbytes, _READ_ONLY)
        return found


class Item(msgspec.Struct, eq=False, gc=False):
    """One record on its way: the line, and the bytes it reads from, if any.

    The line's `offset` is the byte position of element 0 within the payload; the writer makes
    it a file position, and fills in hash, shard, blob and statistics.
    """

    line: Line
    payload: Optional[Payload]
