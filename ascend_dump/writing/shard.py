"""A safetensors file to which tensors are appended.

The format is an 8-byte little-endian header length, a JSON header, and the tensors without
gaps. Room for the header is reserved when the file is created, and the header is written when the
file is closed, so that tensors are never moved.
"""

from __future__ import annotations

import contextlib
import errno
import os
import struct
from typing import NamedTuple, Optional, Union

import msgspec

from ascend_dump.common.paths import open_private
from ascend_dump.dump_format import PADDING, SAFETENSORS, encodable

__all__ = ["LIMITS", "Limits", "Shard"]

Buffer = Union[bytes, bytearray, memoryview]

#: Tensors begin at multiples of this many bytes, the size of the largest element type: readers may map the file.
_ALIGNMENT = 16
#: Small tensors are buffered until this many bytes can be written with one system call.
_GATHER = 256 * 1024
#: Linux writes at most this many bytes at once.
_WRITE_MAX = 0x7FFFF000
#: Maximum number of characters of a name; longer names are shortened in the middle, so that no name fills the header.
_LONGEST_NAME = 1000
_MOST_DIMENSIONS = 64
#: Maximum number of bytes of a header entry without its name (up to six bytes per character) and its shape.
_ENTRY = 200
#: Maximum number of bytes of one dimension of the shape.
_DIMENSION = 21
#: Bytes reserved for the header of a step's first shard: enough for the largest entry, or for about 100 usual ones.
_FIRST_ROOM = 16 * 1024
_LARGEST_ENTRY = 6 * _LONGEST_NAME + _DIMENSION * _MOST_DIMENSIONS + 2 * _ENTRY


class Limits(NamedTuple):
    """The size limits of a shard: a tensor that does not fit goes into the next one.

    room    bytes of the largest header, by default enough for about 2,000 tensors; 8 + room should be a multiple of the
            page size
    nbytes  size of the file; a larger tensor gets its own shard
    """

    room: int = 256 * 1024 - 8
    nbytes: int = 8 << 30

    def of_shard(self, number: int) -> Limits:
        """Return the limits of a shard by its number in the step. Each header has four times the room of the previous
        one, at most `room`, so that a small step does not reserve room for a large header."""
        return self._replace(room=min(self.room, (_FIRST_ROOM << 2 * min(number, 16)) - 8))


LIMITS = Limits()


class Shard:
    """Append tensors; `append` returns the file offset, `finish` completes the header.

    written  position up to which appended bytes are in the file. It does not move after a failed
             write; `finish` then truncates the file after the last complete tensor.
    """

    def __init__(self, name: str, directory: int, metadata: dict[str, str], limits: Limits = LIMITS) -> None:
        """Create the file in a directory, given by descriptor, with a blank header. Raises OSError; FileExistsError if
        it exists."""
        self._limits = limits
        self._start = self._end = self.written = 8 + limits.room
        self._metadata = b'"__metadata__":' + msgspec.json.encode(metadata)
        self._header_bytes = 2 + len(self._metadata)
        if self._header_bytes + _LARGEST_ENTRY > limits.room:
            raise ValueError(
                f"room={limits.room} is too small for a header with {len(self._metadata)} bytes of metadata"
            )
        self._entries: list[bytes] = []
        self._ends: list[int] = []
        self._names: dict[str, int] = {}
        self._gathered: list[Buffer] = []
        self._gathered_bytes = 0
        self._failure: Optional[OSError] = None
        self._encode = msgspec.json.Encoder().encode
        self._fd = open_private(name, os.O_WRONLY | os.O_EXCL, directory=directory)
        try:
            # Written instead of skipped, so that the header still fits if the disk fills up later.
            _write_at(self._fd, struct.pack("<Q", limits.room) + bytes(limits.room), 0)
        except OSError:
            os.close(self._fd)
            with contextlib.suppress(OSError):
                os.unlink(name, dir_fd=directory)
            raise

    def has_room(self, name: str, shape: tuple[int, ...], nbytes: int) -> bool:
        entry = 6 * min(len(name), _LONGEST_NAME) + _DIMENSION * min(len(shape), _MOST_DIMENSIONS) + 2 * _ENTRY
        fits = self._end + _ALIGNMENT + nbytes <= self._limits.nbytes
        return self._header_bytes + entry <= self._limits.room and (fits or self._end == self._start)

    def append(self, name: str, dtype: str, shape: tuple[int, ...], data: Buffer, nbytes: int) -> int:
        """Append `nbytes` of data as tensor `name`; returns its offset in the file. Raises OSError.

        The bytes are stored as U8 if safetensors does not support the dtype, if the shape does not match `nbytes`, or
        if the shape has more than `_MOST_DIMENSIONS` dimensions.
        """
        gap = -self._end % _ALIGNMENT
        if gap:
            self._enter(f"{PADDING}.{self._end}", "U8", (gap,), gap)
            self._put(bytes(gap), gap)
        native = SAFETENSORS.get(dtype)
        elements = 1
        for size in shape:
            elements *= size
        # Readers refuse the whole file if one entry does not match its shape.
        if native is None or elements * native.itemsize != nbytes or len(shape) > _MOST_DIMENSIONS:
            self._enter(self._unique(name), "U8", (nbytes,), nbytes)
        else:
            self._enter(self._unique(name), native.name, shape, nbytes)
        offset = self._end
        self._put(data, nbytes)
        return offset

    def flush(self) -> None:
        """Write buffered bytes to the file. Raises OSError; after a failed write it raises that error again."""
        if self._failure is not None:
            raise OSError(*self._failure.args)
        gathered, self._gathered, self._gathered_bytes = self._gathered, [], 0
        if gathered:
            self._write(b"".join(gathered))

    def finish(self) -> None:
        """Complete the header and close the file. Even if this raises OSError, the stored data stays readable."""
        if self._fd < 0:
            return
        try:
            try:
                self.flush()
            finally:
                self._complete()
        finally:
            os.close(self._fd)
            self._fd = -1

    def _complete(self) -> None:
        if self._failure is not None:
            # A tensor that is not completely in the file is dropped, with all tensors after it.
            while self._ends and self._ends[-1] > self.written:
                self._ends.pop()
            os.ftruncate(self._fd, self._ends[-1] if self._ends else self._start)
        header = b"{" + b",".join([self._metadata, *self._entries[: len(self._ends)]]) + b"}"
        _write_at(self._fd, header.ljust(self._limits.room), 8)

    def _unique(self, name: str) -> str:
        if not name.isascii():
            name = encodable(name)
        if len(name) > _LONGEST_NAME - 20:
            half = _LONGEST_NAME // 2 - 20
            name = f"{name[:half]}...{name[-half:]}"
        count = self._names.get(name, 0) + 1
        self._names[name] = count
        return name if count == 1 else self._unique(f"{name}~{count}")

    def _enter(self, name: str, dtype: str, shape: tuple[int, ...], nbytes: int) -> None:
        begin = self._end - self._start
        entry = self._encode({"dtype": dtype, "shape": shape, "data_offsets": (begin, begin + nbytes)})
        text = self._encode(name) + b":" + entry
        self._entries.append(text)
        self._ends.append(self._end + nbytes)
        self._header_bytes += len(text) + 1

    def _put(self, data: Buffer, nbytes: int) -> None:
        self._end += nbytes
        if nbytes < _GATHER and self._failure is None:
            # A copy, because the caller's memory may change after this returns.
            self._gathered.append(bytes(data))
            self._gathered_bytes += nbytes
            if self._gathered_bytes >= _GATHER:
                self.flush()
        else:
            self.flush()
            self._write(data)

    def _write(self, data: Buffer) -> None:
        view = memoryview(data).cast("B")
        try:
            while view:
                count = _write_some(self._fd, view, self.written)
                self.written += count
                view = view[count:]
        except OSError as error:
            self._failure = error
            raise


def _write_at(fd: int, data: Buffer, position: int) -> None:
    view = memoryview(data)
    while view:
        count = _write_some(fd, view, position)
        position += count
        view = view[count:]


def _write_some(fd: int, view: memoryview, position: int) -> int:
    count = os.pwrite(fd, view[:_WRITE_MAX], position)
    if count <= 0:
        raise OSError(errno.EIO, "no bytes could be written to the file")
    return count
