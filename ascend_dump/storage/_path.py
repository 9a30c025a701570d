"""Paths for addresses in object stores."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any, Union
from urllib.parse import unquote

from ascend_dump.errors import ConfigError, NotSupported
from ascend_dump.storage._listing import children, status_of

__all__ = ["StoredPath", "is_url", "located", "named_beside"]

_URL = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://")
_LOCAL = ("file", "local")


def is_url(path: Union[str, os.PathLike[str]]) -> bool:
    """Return True for an address in a store (also `file://`), False for a path on this machine."""
    return isinstance(path, StoredPath) or (isinstance(path, str) and _URL.match(path) is not None)


def located(path: Union[str, os.PathLike[str]]) -> Path:
    """Return a Path for a text: a StoredPath for `scheme://...`, a local path for `file://...` and other texts.

    Raises ConfigError for an address with `..` in it, and for several addresses chained by `::`.
    """
    if isinstance(path, Path):
        return path
    text = os.fspath(path)
    match = _URL.match(text)
    if match is None:
        return Path(text)
    if match[1].lower() in _LOCAL:
        return Path("/", unquote(text[match.end() :].split("/", 1)[-1]))
    if "::" in text:
        raise ConfigError(f"{text!r} chains several addresses", hint="give one address, such as s3://bucket/run7")
    if ".." in text.split("/") or "\0" in text or not text[match.end() :].strip("/"):
        raise ConfigError(
            f"{text!r} is not the address of a dump",
            hint="expected scheme://bucket/name without .., such as s3://bucket/run7",
        )
    return StoredPath(text)


def named_beside(path: Path, ending: str) -> Path:
    """Return the path with `ending` added to its name. For an address it is a path in the working directory."""
    name = f"{path.name}{ending}"
    return Path(name) if isinstance(path, StoredPath) else path.parent / name


class StoredPath(type(Path())):  # type: ignore[misc]  # the class of paths of this system
    """The address of a file or directory in a store, such as s3://bucket/run7/index.jsonl.

    It is a Path: names can be joined to it, and its status is taken from the listing of the opened dump. Its content is
    read by functions in `ascend_dump.storage.files`. It cannot be written.
    """

    __slots__ = ()

    def __str__(self) -> str:
        # pathlib replaces the two slashes after the scheme by one.
        scheme, slash, address = super().__str__().partition(":/")
        return f"{scheme}://{address.lstrip('/')}" if slash else scheme

    def __fspath__(self) -> str:
        return str(self)

    def __repr__(self) -> str:
        return f"StoredPath({str(self)!r})"

    def stat(self, *, follow_symlinks: bool = True) -> os.stat_result:
        """Return size and kind. Raises FileNotFoundError, StorageError."""
        stored = status_of(str(self))
        kind = stat.S_IFDIR | 0o700 if stored is None else stat.S_IFREG | 0o600
        size = 0 if stored is None else stored.size
        return os.stat_result((kind, 0, 0, 1, 0, 0, size, 0, 0, 0))

    def stamp(self) -> str:
        """Return the size and the store's stamp; "" without a stamp. Raises as `stat`."""
        stored = status_of(str(self))
        return "" if stored is None or not stored.stamp else f"{stored.size} {stored.stamp}"

    def lstat(self) -> os.stat_result:
        return self.stat()

    def exists(self, *, follow_symlinks: bool = True) -> bool:
        return self._mode() != 0

    def is_file(self, *, follow_symlinks: bool = True) -> bool:
        return stat.S_ISREG(self._mode())

    def is_dir(self, *, follow_symlinks: bool = True) -> bool:
        return stat.S_ISDIR(self._mode())

    def is_symlink(self) -> bool:
        return False

    def _mode(self) -> int:
        try:
            return self.stat().st_mode
        except OSError:
            return 0

    def children(self) -> tuple[list[str], list[str]]:
        """Return the names of directories and of files in this directory. Raises FileNotFoundError, StorageError."""
        return children(str(self))

    def iterdir(self) -> Iterator[StoredPath]:
        directories, files = self.children()
        return (self / name for name in (*directories, *files))

    def resolve(self, strict: bool = False) -> StoredPath:
        return self

    def absolute(self) -> StoredPath:
        return self

    def open(self, *arguments: Any, **named: Any) -> IO[Any]:
        raise self._refused()

    def mkdir(self, *arguments: Any, **named: Any) -> None:
        raise self._refused()

    def touch(self, *arguments: Any, **named: Any) -> None:
        raise self._refused()

    def _refused(self) -> NotSupported:
        return NotSupported(
            f"{self} is an address in a store and cannot be written like a file",
            hint="write to a directory on this machine, then upload it: `ascend-dump push DIRECTORY URL`",
        )
