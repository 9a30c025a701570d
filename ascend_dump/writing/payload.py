"""Bytes in memory on their way to the writer, and the records that read from them."""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING, Any, Optional, Union

import msgspec
import xxhash

from ascend_dump.host import Line
from ascend_dump.statistics import Statistics

if TYPE_CHECKING:
    from ascend_dump.statistics import Scan

__all__ = [
    "CHANGED",
    "COPYING",
    "DONE",
    "QUEUED",
    "WRITING",
    "Item",
    "MeasuredBytes",
    "Payload",
    "copy_memory",
    "sample_of",
]

QUEUED, COPYING, WRITING, DONE = range(4)

#: Why a record has no bytes whose payload is `changed`.
CHANGED = "changed before it was stored, by another thread or unseen"

#: Number of words sampled to detect that memory changed: filling a tensor changes some of them.
_SAMPLED = 16
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


def sample_of(address: int, nbytes: int) -> bytes:
    """A few words of memory, to compare with what they are later."""
    return _window(_view_memory(address, nbytes, _READ_ONLY), nbytes).tobytes() if nbytes else b""


def _window(memory: memoryview, nbytes: int) -> memoryview:
    words = nbytes // 8
    if words <= _SAMPLED:
        return memory
    if nbytes % 8:
        memory = memory[: words * 8]
    return memory.cast("Q")[:: words // _SAMPLED]


class MeasuredBytes(msgspec.Struct, eq=False, gc=False):
    """What is known of the elements of equal bytes.

    scan       what was read of them, until the rest is computed
    stats      `Line.stats` as JSON: many lines, and rows of the table, have the same
    nonfinite  their statistics where NaN or Inf is among them and somebody asked for these or that (`until=`)
    """

    scan: Optional[Scan]
    stats: Any = None
    nonfinite: Optional[Statistics] = None


class Payload(msgspec.Struct, eq=False, gc=False):
    """Bytes in memory that one or more records read from.

    owner    keeps the memory at `address` alive, or is the bytes themselves
    dtype, shape  how the bytes are entered in the shard
    strided  (shape, strides in bytes) for statistics, when they are not over the plain range
    counted  it is among the bytes that wait for the writer
    digest   xxh3-128 of the bytes, once they are hashed
    sealed   `digest` is that of the bytes as they were when a record was made of them
    sample   some of the bytes as they were then; empty where nothing but the payload has them
    window   where those are in memory, to be read only while somebody knows that it is still there
    changed  what was stored is something else, because the memory was written to meanwhile
    measured  what is known of their values, where somebody asked for that
    unmeasured  why there is nothing
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
    measured: Optional[MeasuredBytes] = None
    unmeasured: str = ""
    sealed: bool = False
    sample: bytes = b""
    window: Optional[memoryview] = None
    changed: bool = False

    def seal(self) -> None:
        """Say what the bytes are at this moment: memory of the program may be something else when it is stored."""
        memory = _view_memory(self.address, self.nbytes, _READ_ONLY)
        self.digest = xxhash.xxh3_128_digest(memory)
        self.sealed = True
        self.window = _window(memory, self.nbytes)
        self.sample = self.window.tobytes()

    def take_sample(self) -> None:
        """Say what some of the bytes are at this moment."""
        self.window = _window(_view_memory(self.address, self.nbytes, _READ_ONLY), self.nbytes)
        self.sample = self.window.tobytes()

    def copy(self) -> None:
        """Keep the bytes as they are at this moment, whatever becomes of the memory; what was sealed is forgotten."""
        self.owner = copy_memory(self.address, self.nbytes)
        self.digest, self.sealed = b"", False

    def is_as_sealed(self) -> bool:
        """Whether the bytes are still those. Call after they were read: they may change at any time."""
        return not self.sealed or xxhash.xxh3_128_digest(self.view()) == self.digest

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
