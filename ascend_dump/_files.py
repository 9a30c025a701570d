"""The one way to open a file that may be hostile: only regular local files, and without ever blocking."""

from __future__ import annotations

import errno
import io
import os
import stat
from collections.abc import Iterator
from typing import BinaryIO, Union, cast

__all__ = [
    "FileTooLarge",
    "NotRegularFile",
    "open_descriptor",
    "open_regular",
    "read_regular",
    "read_small",
    "regular_status",
    "text_lines",
]

_Path = Union[str, "os.PathLike[str]"]


class NotRegularFile(OSError):
    """A directory, pipe, device or socket stands there; or a link, where none is followed."""

    def __init__(self, path: _Path, what: str = "not a regular file") -> None:
        super().__init__(errno.EINVAL, what, os.fspath(path))
        self.what = what


class FileTooLarge(OSError):
    """It has more bytes than a file of its kind can have."""

    def __init__(self, path: _Path, most: int) -> None:
        super().__init__(errno.EFBIG, f"larger than {most} bytes", os.fspath(path))


def open_descriptor(path: _Path, *, follow_links: bool = True) -> int:
    """A descriptor to read a regular file by. Raises OSError, NotRegularFile for anything else."""
    # Without O_NONBLOCK to open a named pipe would wait for its writer.
    flags = os.O_RDONLY | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
    try:
        descriptor = os.open(path, flags | (0 if follow_links else getattr(os, "O_NOFOLLOW", 0)))
    except ValueError as error:  # a null character
        raise OSError(errno.EINVAL, str(error), os.fspath(path)) from None
    except OSError as error:
        if error.errno == errno.ELOOP and not follow_links:
            raise NotRegularFile(path, "a link, which is not followed") from None
        if error.errno == errno.ENXIO:  # a socket
            raise NotRegularFile(path) from None
        raise
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise NotRegularFile(path)
    return descriptor


def open_regular(path: _Path, *, follow_links: bool = True) -> BinaryIO:
    """`open_descriptor` as a file object."""
    return cast(BinaryIO, os.fdopen(open_descriptor(path, follow_links=follow_links), "rb"))


def read_regular(path: _Path, most: int, *, follow_links: bool = True) -> bytes:
    """The first bytes of a regular file, `most` of them at the most. Raises OSError."""
    with open_regular(path, follow_links=follow_links) as file:
        return file.read(most)


def read_small(path: _Path, most: int, *, follow_links: bool = True) -> bytes:
    """The whole of a regular file of at most `most` bytes. Raises OSError, FileTooLarge for a larger one."""
    found = read_regular(path, most + 1, follow_links=follow_links)
    if len(found) > most:
        raise FileTooLarge(path, most)
    return found


def text_lines(path: _Path, *, most: int, errors: str = "replace") -> Iterator[str]:
    """The lines of a text in UTF-8, opened at the first one; what is longer than `most` characters comes in pieces.

    A hole in a file is a line of as many bytes as it has, which would fill the memory. Raises OSError.
    """
    with io.TextIOWrapper(open_regular(path), encoding="utf-8", errors=errors, newline="\n") as file:
        yield from iter(lambda: file.readline(most), "")


def regular_status(path: _Path, *, follow_links: bool = True) -> os.stat_result:
    """`os.stat` of a regular file, which is not opened. Raises OSError, NotRegularFile for anything else."""
    try:
        status = os.stat(path, follow_symlinks=follow_links)
    except ValueError as error:  # a null character
        raise OSError(errno.EINVAL, str(error), os.fspath(path)) from None
    if not stat.S_ISREG(status.st_mode):
        raise NotRegularFile(path)
    return status
