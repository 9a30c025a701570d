"""Bytes in memory that are queued for the writer (`Payload`), and the records that refer to them (`Item`)."""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING, Any, Optional, Union

import msgspec
import xxhash

from ascend_dump.dump_format import Line
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

#: States of a payload. COPYING: a thread of the program copies the bytes. WRITING: the writer thread reads them. DONE:
#: the writer does not need the memory any more.
QUEUED, COPYING, WRITING, DONE = range(4)

#: The reason given in a record whose bytes changed before they were stored.
CHANGED = "changed before it was stored, by another thread or by an unnoticed write"

#: Approximate number of 8-byte words in a sample. A write to the whole tensor is detected, because it changes some of
#: these words.
_SAMPLED = 16
_READ_ONLY = 0x100  # PyBUF_READ
_bytes_at = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.c_void_p, ctypes.c_ssize_t)(
    ("PyBytes_FromStringAndSize", ctypes.pythonapi)
)
_view_memory = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.c_void_p, ctypes.c_ssize_t, ctypes.c_int)(
    ("PyMemoryView_FromMemory", ctypes.pythonapi)
)


def copy_memory(address: int, nbytes: int) -> bytes:
    """Return a copy of the bytes at an address. `ctypes.string_at` is not used, because it takes the size modulo 4 GiB
    and so is wrong from 2 GiB on."""
    copy: bytes = _bytes_at(address, nbytes) if nbytes else b""
    return copy


def sample_of(address: int, nbytes: int) -> bytes:
    """Return a few words of the bytes at an address, to detect later changes."""
    return _window(_view_memory(address, nbytes, _READ_ONLY), nbytes).tobytes() if nbytes else b""


def _window(memory: memoryview, nbytes: int) -> memoryview:
    words = nbytes // 8
    if words <= _SAMPLED:
        return memory
    if nbytes % 8:
        memory = memory[: words * 8]
    return memory.cast("Q")[:: words // _SAMPLED]


class MeasuredBytes(msgspec.Struct, eq=False, gc=False):
    """The statistics of some bytes, shared by all payloads with equal bytes.

    scan       the result of the pass over the bytes; None once the statistics are computed from it
    stats      `Line.stats` as JSON, shared by many lines and rows of the table
    nonfinite  the statistics, if an element is NaN or Inf and statistics or `until=` were requested; else None
    is_finite  True if the pass over the bytes has shown that no element is NaN or Inf
    """

    scan: Optional[Scan]
    stats: Any = None
    nonfinite: Optional[Statistics] = None
    is_finite: bool = False


class Payload(msgspec.Struct, eq=False, gc=False):
    """Bytes in memory to which one or more records refer.

    owner    keeps the memory at `address` alive, or is a bytes object with the content
    dtype, shape  those of the entry in the shard
    strided  (shape, strides in bytes) of the elements for which statistics are computed; None if all bytes count
    state    QUEUED, COPYING, WRITING or DONE
    counted  True once the bytes are counted by `Backlog`
    shard, offset  the place of the bytes in the files; shard is "" until they are stored
    digest   xxh3-128 of the bytes; b"" before they are hashed
    sealed   True if `digest` was computed when the record was made
    sample   copy of a few words of the bytes (`seal` or `take_sample`); empty if none was taken
    window   the memory that was sampled, to be read only while the storage is known to be alive
    changed  True if the memory was written to before the bytes were stored
    measured  the statistics, if requested
    unmeasured  why there are no statistics; "" if there are some or none were requested
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
        """Hash and sample the bytes now, to detect later if the program's memory changed before it was stored."""
        memory = _view_memory(self.address, self.nbytes, _READ_ONLY)
        self.digest = xxhash.xxh3_128_digest(memory)
        self.sealed = True
        self.window = _window(memory, self.nbytes)
        self.sample = self.window.tobytes()

    def hash(self) -> None:
        """Hash the bytes as they are now."""
        self.digest = xxhash.xxh3_128_digest(self.view())

    def take_sample(self) -> None:
        """Sample the bytes now."""
        self.window = _window(_view_memory(self.address, self.nbytes, _READ_ONLY), self.nbytes)
        self.sample = self.window.tobytes()

    def copy(self) -> None:
        """Copy the bytes now, so that later changes of the memory do not matter. Drops the digest."""
        self.owner = copy_memory(self.address, self.nbytes)
        self.digest, self.sealed = b"", False

    def is_as_sealed(self) -> bool:
        """Return False if the payload was sealed and its bytes have changed since then. Call this after reading the
        bytes, because they may change at any time."""
        return not self.sealed or xxhash.xxh3_128_digest(self.view()) == self.digest

    def view(self) -> Union[bytes, memoryview]:
        if isinstance(self.owner, bytes):
            return self.owner
        memory: memoryview = _view_memory(self.address, self.nbytes, _READ_ONLY)
        return memory


class Item(msgspec.Struct, eq=False, gc=False):
    """A queued record: its line, and the payload with its bytes, if any.

    The `offset` of the line is the byte position of element 0 in the payload. The writer converts it
    to a file position, and adds hash, shard, blob and statistics.
    """

    line: Line
    payload: Optional[Payload]
