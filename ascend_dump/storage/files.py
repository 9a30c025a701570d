"""Open files that may be malicious, on this machine or in a store. All other modules open such files through this one.

Only regular files are opened, so that a program never blocks in a named pipe.
"""

from __future__ import annotations

import errno
import io
import os
import secrets
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, Union, cast

from ascend_dump.common.paths import NO_PART
from ascend_dump.storage import StoredFile, StoredPath, copied_descriptor, read_range

__all__ = [
    "FileTooLarge",
    "NotRegularFile",
    "children",
    "files_of_dump",
    "is_there",
    "open_descriptor",
    "open_regular",
    "read_part",
    "read_regular",
    "read_small",
    "regular_status",
    "size_of",
    "stamp_of",
    "text_lines",
    "walked",
]

_Path = Union[str, "os.PathLike[str]"]


class NotRegularFile(OSError):
    """The path is a directory, pipe, device or socket; or it is a link, and links are not followed."""

    def __init__(self, path: _Path, what: str = "not a regular file") -> None:
        super().__init__(errno.EINVAL, what, os.fspath(path))
        self.what = what


class FileTooLarge(OSError):
    """The file has more bytes than a file of its kind can have."""

    def __init__(self, path: _Path, most: int) -> None:
        super().__init__(errno.EFBIG, f"larger than {most} bytes", os.fspath(path))


def open_descriptor(path: _Path, *, follow_links: bool = True) -> int:
    """Return a descriptor of a regular file. A stored file is copied to this machine first.

    Raises OSError; NotRegularFile if it is no regular file.
    """
    if isinstance(path, StoredPath):
        return copied_descriptor(path)
    # O_NONBLOCK: otherwise opening a named pipe would wait for a writer.
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
    """Return a file object for a regular file. A stored file is read in ranges. Raises as `open_descriptor`."""
    if isinstance(path, StoredPath):
        return io.BufferedReader(StoredFile(path))
    return cast(BinaryIO, os.fdopen(open_descriptor(path, follow_links=follow_links), "rb"))


def read_regular(path: _Path, most: int, *, follow_links: bool = True) -> bytes:
    """Return at most the first `most` bytes of a regular file. Raises OSError."""
    with open_regular(path, follow_links=follow_links) as file:
        return file.read(most)


def read_small(path: _Path, most: int, *, follow_links: bool = True) -> bytes:
    """Return the content of a regular file of at most `most` bytes. Raises OSError, FileTooLarge for a larger file."""
    data = read_regular(path, most + 1, follow_links=follow_links)
    if len(data) > most:
        raise FileTooLarge(path, most)
    return data


def text_lines(path: _Path, *, most: int, errors: str = "replace") -> Iterator[str]:
    """Yield the lines of a UTF-8 text. A line of more than `most` characters is yielded in pieces.

    The text ends at a zero byte: a part of a file that was never written to disk reads as zero bytes. Raises OSError.
    """
    with io.TextIOWrapper(open_regular(path), encoding="utf-8", errors=errors, newline="\n") as file:
        for line in iter(lambda: file.readline(most), ""):
            text, end, _ = line.partition("\0")
            if text:
                yield text
            if end:
                return


def regular_status(path: _Path, *, follow_links: bool = True) -> os.stat_result:
    """Return `os.stat` of a regular file without opening it. Raises OSError; NotRegularFile for other files."""
    if isinstance(path, StoredPath):
        status = path.stat()
        if not stat.S_ISREG(status.st_mode):
            raise NotRegularFile(path)
        return status
    try:
        status = os.stat(path, follow_symlinks=follow_links)
    except ValueError as error:  # a null character
        raise OSError(errno.EINVAL, str(error), os.fspath(path)) from None
    if not stat.S_ISREG(status.st_mode):
        raise NotRegularFile(path)
    return status


def size_of(file: BinaryIO) -> int:
    """Return the size in bytes of a file that `open_regular` opened."""
    raw = getattr(file, "raw", None)
    return raw.size if isinstance(raw, StoredFile) else os.fstat(file.fileno()).st_size


def read_part(path: _Path, start: int, size: int) -> bytes:
    """Return `size` bytes of a regular file from `start` on, or fewer at the end of the file. Raises OSError."""
    if isinstance(path, StoredPath):
        return read_range(str(path), start, min(start + size, path.stat().st_size))
    descriptor = open_descriptor(path)
    blocks = []
    try:
        # Linux returns at most 2,147,479,552 bytes from one call.
        while size > 0 and (block := os.pread(descriptor, size, start)):
            blocks.append(block)
            start += len(block)
            size -= len(block)
    finally:
        os.close(descriptor)
    return blocks[0] if len(blocks) == 1 else b"".join(blocks)


def is_there(path: Path) -> bool:
    """Return True if the path exists, even as a dangling link."""
    return path.exists() if isinstance(path, StoredPath) else os.path.lexists(path)


def children(directory: Path) -> tuple[list[str], list[str]]:
    """Return (names of directories, names of regular files) in a directory. Links and special files are left out.

    Raises OSError.
    """
    if isinstance(directory, StoredPath):
        return directory.children()
    directories: list[str] = []
    files: list[str] = []
    with os.scandir(directory) as entries:
        for item in entries:
            if item.is_dir(follow_symlinks=False):
                directories.append(item.name)
            elif item.is_file(follow_symlinks=False):
                files.append(item.name)
    return directories, files


def walked(root: Path) -> Iterator[tuple[Path, list[str]]]:
    """Yield `root` and all directories below it, each with the names of its files, except unreadable directories."""
    stack = [root]
    while stack:
        directory = stack.pop()
        try:
            directories, files = children(directory)
        except OSError:
            continue
        yield directory, files
        stack += [directory / name for name in directories]


def files_of_dump(top: Path) -> list[Path]:
    """Return all files of a dump below a directory, sorted. Files with names of NO_PART are left out."""
    directories = (entry for entry in walked(top) if not entry[0].name.startswith(NO_PART))
    return sorted(
        directory / name for directory, names in directories for name in names if not name.startswith(NO_PART)
    )


def stamp_of(path: Path) -> str:
    """Return a text that changes when a file changes: its size and time, or the store's stamp.

    If neither is known, return a random text.
    """
    try:
        if isinstance(path, StoredPath):
            return path.stamp() or secrets.token_hex(8)
        status = os.stat(path)
    except OSError:
        return secrets.token_hex(8)
    return f"{status.st_size} {status.st_mtime_ns} {status.st_mode}"
