"""A file object for a stored file. It requests ranges of bytes, which grow as long as the file is read in order."""

from __future__ import annotations

import io
from typing import Any

from ascend_dump.storage._listing import read_range, status_of
from ascend_dump.storage._path import StoredPath

__all__ = ["StoredFile"]

#: Sizes in bytes of the first range, which is enough for a header, and of the largest range.
_FIRST, _LARGEST = 1 << 16, 1 << 23


class StoredFile(io.RawIOBase):
    """A raw file object. The constructor and reads raise FileNotFoundError, IsADirectoryError and StorageError."""

    def __init__(self, path: StoredPath) -> None:
        super().__init__()
        stored = status_of(str(path))
        if stored is None:
            raise IsADirectoryError(21, "a directory", str(path))
        self.path = path
        self.size = stored.size
        self._at = 0
        self._block = b""
        self._begin = 0
        self._next = _FIRST

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self.size}[whence]
        if base + offset < 0:
            raise ValueError(f"the position {base + offset} is before the beginning of the file")
        self._at = base + offset
        return self._at

    def readinto(self, buffer: Any) -> int:
        view = memoryview(buffer).cast("B")
        if self._at >= self.size or not len(view):
            return 0
        if not self._begin <= self._at < self._begin + len(self._block):
            self._fetch(len(view))
        start = self._at - self._begin
        data = self._block[start : start + len(view)]
        view[: len(data)] = data
        self._at += len(data)
        return len(data)

    def _fetch(self, size: int) -> None:
        follows = self._at == self._begin + len(self._block) and self._block
        self._next = min(self._next * 4, _LARGEST) if follows else _FIRST
        end = min(self._at + max(size, self._next), self.size)
        self._block = read_range(str(self.path), self._at, end)
        self._begin = self._at
