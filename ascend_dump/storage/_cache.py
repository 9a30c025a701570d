"""Copy stored files into a private cache, to map them into memory. A full cache drops the least recently used copies.

{user cache}/objects/{hash of address, size and stamp}
"""

from __future__ import annotations

import contextlib
import os
import stat
import time
from pathlib import Path
from typing import Optional

from ascend_dump.common.log import log
from ascend_dump.common.paths import PRIVATE_DIRECTORY, is_private, user_cache
from ascend_dump.errors import ConfigError, StorageError
from ascend_dump.storage._listing import StoredObject, read_range, status_of
from ascend_dump.storage._path import StoredPath

__all__ = ["cache_limit", "copied_descriptor"]

#: Default limit of the size of all copies together, in bytes.
_USUAL_LIMIT = 10 << 30
_LIMIT = "ASCEND_DUMP_CACHE_BYTES"
_RANGE = 8 << 20


class _NotPrivate(PermissionError):
    """The directory of the copies is not that of this user alone."""


def copied_descriptor(path: StoredPath) -> int:
    """Return a descriptor of a copy of a stored file. The descriptor is usable even after the cache drops the copy.

    Raises FileNotFoundError, IsADirectoryError, StorageError, and ConfigError if `cache_limit` raises it.
    """
    stored = status_of(str(path))
    if stored is None:
        raise IsADirectoryError(21, "a directory", str(path))
    import tempfile  # imported here, because it loads many modules and is rarely needed

    limit = cache_limit()
    copy = _place(path, stored)
    descriptor = _kept(copy, stored.size)
    if descriptor is not None:
        return descriptor
    try:
        copy.parent.mkdir(parents=True, exist_ok=True, mode=PRIVATE_DIRECTORY)
        _check(copy.parent)
        descriptor, draft = tempfile.mkstemp(prefix=".draft-", dir=copy.parent)
    except OSError as error:
        raise _not_copied(path, error) from error
    try:
        for start in range(0, stored.size, _RANGE):
            part = memoryview(read_range(str(path), start, min(start + _RANGE, stored.size)))
            while part:  # a write to a disk that is nearly full may write only a part
                part = part[os.write(descriptor, part) :]
        if stored.stamp and stored.size <= limit:
            _make_room(copy.parent, limit - stored.size)
            os.replace(draft, copy)
        else:  # the copy is not cached; the open descriptor still reads it
            os.unlink(draft)
    except BaseException as error:
        os.close(descriptor)
        with contextlib.suppress(OSError):
            os.unlink(draft)
        if isinstance(error, OSError) and not isinstance(error, (StorageError, FileNotFoundError)):
            raise _not_copied(path, error) from error
        raise
    os.lseek(descriptor, 0, os.SEEK_SET)
    return descriptor


def _kept(copy: Path, size: int) -> Optional[int]:
    try:
        descriptor = os.open(copy, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return None
    status = os.fstat(descriptor)
    if not stat.S_ISREG(status.st_mode) or not is_private(status) or status.st_size != size:
        os.close(descriptor)
        return None
    with contextlib.suppress(OSError):
        os.utime(descriptor)  # the time of the last use, for `_make_room`
    return descriptor


def _check(directory: Path) -> None:
    status = os.lstat(directory)
    if not stat.S_ISDIR(status.st_mode) or not is_private(status):
        raise _NotPrivate(1, f"{directory} is a link, or belongs to other users, or they can write to it")


def _make_room(directory: Path, most: int) -> None:
    copies = []
    with os.scandir(directory) as items:
        for item in items:
            with contextlib.suppress(OSError):
                status = item.stat(follow_symlinks=False)
                # Incomplete copies are removed only if they are so old that no process writes them any more.
                if not item.name.startswith(".draft-") or time.time() - status.st_mtime > 24 * 3600:
                    copies.append((status.st_mtime_ns, status.st_size, item.path))
    total = sum(size for _, size, _ in copies)
    for _, size, path in sorted(copies):
        if total <= most:
            return
        log.debug("%s is removed from the cache, which is full", path)
        with contextlib.suppress(OSError):
            os.unlink(path)
        total -= size


def _place(path: StoredPath, stored: StoredObject) -> Path:
    import xxhash

    name = xxhash.xxh3_128_hexdigest(repr((str(path), *stored)).encode("utf-8", "surrogatepass"))
    return user_cache() / "objects" / name


def cache_limit() -> int:
    """Return the limit of the size of all copies in bytes. Raises ConfigError if ASCEND_DUMP_CACHE_BYTES is invalid."""
    text = os.environ.get(_LIMIT)
    if text is None:
        return _USUAL_LIMIT
    if not text.isascii() or not text.isdigit() or len(text) > 18:
        raise ConfigError(f"{_LIMIT}={text!r}", hint="expected a number of bytes, such as 20000000000")
    return int(text)


def _not_copied(path: StoredPath, error: OSError) -> StorageError:
    is_foreign = isinstance(error, _NotPrivate)
    return StorageError(
        f"it has to be copied to this machine, and that fails: {error.strerror or error}",
        path=path,
        hint="remove this directory, or set XDG_CACHE_HOME to a directory of your own"
        if is_foreign
        else "free space in the user's cache directory, or set XDG_CACHE_HOME to a directory with free space",
    )
