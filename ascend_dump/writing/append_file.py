"""A text file that always ends with a complete line, even on a full disk."""

from __future__ import annotations

import contextlib
import errno
import os

from ascend_dump.common.paths import open_private

__all__ = ["AppendFile"]


class AppendFile:
    """Append lines to a file.

    fd       the descriptor of the file, also open for reading
    nbytes   size of the file
    lines    number of lines appended by this object
    """

    def __init__(self, name: str, directory: int) -> None:
        """Open or create the file in a directory, given by descriptor. Raises OSError."""
        self.lines = 0
        self.fd = open_private(name, os.O_RDWR | os.O_APPEND, directory=directory)
        self.nbytes = os.fstat(self.fd).st_size

    def append(self, data: bytes, lines: int) -> None:
        """Append `data`, which consists of `lines` complete lines.

        If this raises OSError, the file has the lines for which there was room, and no partial line.
        """
        view = memoryview(data)
        try:
            while view:
                count = os.write(self.fd, view)
                if count <= 0:
                    raise OSError(errno.EIO, "no bytes could be written to the file")
                view = view[count:]
        except OSError:
            whole = data.rfind(b"\n", 0, len(data) - len(view)) + 1
            with contextlib.suppress(OSError):
                os.ftruncate(self.fd, self.nbytes + whole)
            self.nbytes += whole
            self.lines += data.count(b"\n", 0, whole)
            raise
        self.nbytes += len(data)
        self.lines += lines

    def close(self) -> None:
        fd, self.fd = self.fd, -1
        if fd >= 0:
            os.close(fd)
