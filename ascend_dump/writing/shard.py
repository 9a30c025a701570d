"""One safetensors file, appended to as operators run.

The format is an 8-byte little-endian header length, a JSON header, and the tensors without
gaps. Room for the header is reserved when the file is created and filled in when it is closed,
so that no tensor byte is ever moved.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterable
from pathlib import Path
from typing import Union

import msgspec

from ascend_dump._paths import open_private
from ascend_dump.writing.layout import SAFETENSORS_DTYPES

__all__ = ["Shard"]

Buffer = Union[bytes, bytearray, memoryview]

#: Room for the header: about 2,000 tensors. A shard that needs more is closed and followed by
#: the next one. 8 + _ROOM is a multiple of the page size.
_ROOM = 256 * 1024 - 8
_MAX_BYTES = 8 << 30
#: Largest element of any type; readers that view the mapped file need aligned tensors.
_ALIGNMENT = 16
#: Small tensors are gathered into one system call.
_GATHER = 256 * 1024
#: Linux writes at most this many bytes at once.
_WRITE_MAX = 0x7FFFF000


class Shard:
    """Append tensors; `append` gives the file offset, `finish` completes the header."""

    def __init__(self, path: Path, metadata: dict[str, str]) -> None:
        self.path = path
        self._fd = open_private(path, os.O_RDWR | os.O_EXCL)
        self._entries = [b'"__metadata__":' + msgspec.json.encode(metadata)]
        self._names: set[str] = set()
        self._header_bytes = 2 + len(self._entries[0])
        self._start = 8 + _ROOM
        self._end = self._start
        self._gathered: list[Buffer] = []
        self._gathered_bytes = 0
        os.pwrite(self._fd, struct.pack("<Q", _ROOM), 0)
        os.lseek(self._fd, self._start, os.SEEK_SET)

    @property
    def nbytes(self) -> int:
        return self._end

    def has_room(self, name: str, nbytes: int) -> bool:
        header = self._header_bytes + 2 * (len(name) * 6 + 200) < _ROOM
        return header and (self._end + nbytes <= _MAX_BYTES or self._end == self._start)

    def append(self, name: str, dtype: str, shape: tuple[int, ...], data: Buffer, nbytes: int) -> int:
        """Append `nbytes` of data as tensor `name`; returns its offset in the file. Raises OSError.

        A dtype that safetensors lacks is stored as U8 with the same bytes.
        """
        gap = -self._end % _ALIGNMENT
        if gap:
            self._enter(f"__padding__.{self._end}", "U8", (gap,), gap)
            self._put(bytes(gap), gap)
        native = SAFETENSORS_DTYPES.get(dtype)
        while name in self._names:
            name += "'"
        self._names.add(name)
        self._enter(name, native or "U8", shape if native else (nbytes,), nbytes)
        offset = self._end
        self._put(data, nbytes)
        return offset

    def flush(self) -> None:
        """Hand gathered bytes to the operating system. Raises OSError."""
        gathered, self._gathered, self._gathered_bytes = self._gathered, [], 0
        if gathered:
            self._write(b"".join(gathered))

    def finish(self) -> None:
        """Complete the header and close. Raises OSError; the data stays readable either way."""
        if self._fd < 0:
            return
        try:
            self.flush()
            header = b"{" + b",".join(self._entries) + b"}"
            os.pwrite(self._fd, header.ljust(_ROOM), 8)
        finally:
            os.close(self._fd)
            self._fd = -1

    def _enter(self, name: str, dtype: str, shape: Iterable[int], nbytes: int) -> None:
        begin = self._end - self._start
        entry = msgspec.json.encode({"dtype": dtype, "shape": list(shape), "data_offsets": [begin, begin + nbytes]})
        self._entries.append(msgspec.json.encode(name) + b":" + entry)
        self._header_bytes += len(self._entries[-1]) + 1

    def _put(self, data: Buffer, nbytes: int) -> None:
        self._end += nbytes
        if nbytes < _GATHER:
            # A copy, because the caller's memory may change once this returns.
            self._gathered.append(bytes(data))
            self._gathered_bytes += nbytes
            if self._gathered_bytes >= _GATHER:
                self.flush()
        else:
            self.flush()
            self._write(data)

    def _write(self, data: Buffer) -> None:
        view = memoryview(data).cast("B")
        while view:
            view = view[os.write(self._fd, view[:_WRITE_MAX]) :]
