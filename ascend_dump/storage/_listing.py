"""List the stored files below an address, and read byte ranges of them. Listings are cached."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, NamedTuple, Optional

from ascend_dump.common.log import log
from ascend_dump.errors import StorageError
from ascend_dump.storage._clients import ShortAnswer, filesystem, tried

__all__ = ["StoredObject", "children", "list_stored", "read_range", "status_anew", "status_of", "stored_files"]

#: Maximum number of levels of directories on an HTTP server, whose pages could lead in circles.
_DEEPEST = 16
#: Maximum number of cached listings. A comparison needs two, for a dump and its reference.
_MOST_LISTINGS = 8
#: The names under which clients report a hash of a file's content, and then the names for its time of change.
_STAMPS = (
    *("ETag", "etag", "md5Hash", "content_hash"),
    *("LastModified", "Last-Modified", "last_modified", "mtime", "updated", "created"),
)


class StoredObject(NamedTuple):
    """A stored file.

    stamp  the store's hash of the content; if it has none, the time of the last change; "" if it reports neither
    """

    size: int
    stamp: str


@dataclass
class _Listing:
    """The files below an address, and the names of directories and of files in each directory.

    A file whose size is unknown is None.
    """

    files: dict[str, Optional[StoredObject]] = field(default_factory=dict)
    directories: dict[str, tuple[dict[str, None], dict[str, None]]] = field(default_factory=dict)


_listings: OrderedDict[str, _Listing] = OrderedDict()


def list_stored(root: str) -> None:
    """List the files below an address, even if a listing is cached. Raises StorageError, FileNotFoundError.

    Later calls of the other functions use this listing.
    """
    fs, store_path = filesystem(root)

    def find() -> dict[str, dict[str, Any]]:
        fs.invalidate_cache()
        # Only for HTTP: with a limit of the depth, clients of object stores would request directory by directory.
        depth = {"maxdepth": _DEEPEST} if "http" in root[:5] else {}
        entries: dict[str, dict[str, Any]] = fs.find(store_path, detail=True, **depth)
        return entries

    entries = tried(find, root)
    listing = _Listing()
    passed: list[str] = []
    prefix = store_path.rstrip("/") + "/"
    for name, info in entries.items():
        if info.get("type") == "directory" or name.endswith("/"):
            continue
        if name.rstrip("/") == store_path.rstrip("/"):
            listing.files[root] = _stored(info)
            continue
        names = name[len(prefix) :].split("/") if name.startswith(prefix) else [""]
        if any(part in ("", ".", "..") or "\0" in part for part in names):
            passed.append(name)
            continue
        listing.files[f"{root}/{'/'.join(names)}"] = _stored(info)
        above = root
        for part in names[:-1]:
            listing.directories.setdefault(above, ({}, {}))[0][part] = None
            above = f"{above}/{part}"
        listing.directories.setdefault(above, ({}, {}))[1][names[-1]] = None
    if passed:
        log.warning(
            "%s: %d stored names are not valid paths and are ignored, the first is %.200r", root, len(passed), passed[0]
        )
    if not listing.files:
        raise FileNotFoundError(2, "nothing is stored there", root)
    for other in [address for address in _listings if address.startswith(f"{root}/")]:
        del _listings[other]  # an older listing of a directory below
    _listings[root] = listing
    _listings.move_to_end(root)
    while len(_listings) > _MOST_LISTINGS:
        _listings.popitem(last=False)


def stored_files(root: str) -> Iterator[tuple[str, StoredObject]]:
    """Yield (path below the address, size and stamp) for the files in the cached listing of an address."""
    if root not in _listings:
        list_stored(root)
    for name in sorted(_listings[root].files):
        stored = status_of(name)
        if stored is not None:
            yield name[len(root) + 1 :], stored


def children(directory: str) -> tuple[list[str], list[str]]:
    """Return the names of directories and of files in a directory. Raises FileNotFoundError, StorageError."""
    listing = _listing_of(directory)
    if listing is None:
        fs, store_path = filesystem(directory)
        names: tuple[list[str], list[str]] = ([], [])
        for info in tried(lambda: fs.ls(store_path, detail=True), directory):
            name = str(info["name"]).rstrip("/").rpartition("/")[2]
            if name not in ("", ".", ".."):
                names[info.get("type") != "directory"].append(name)
        return names
    names_below = listing.directories.get(directory)
    if names_below is None:
        raise FileNotFoundError(2, "nothing is stored there", directory)
    return list(names_below[0]), list(names_below[1])


def status_of(path: str) -> Optional[StoredObject]:
    """Return size and stamp of a stored file; None for a directory. Raises FileNotFoundError, StorageError."""
    listing = _listing_of(path)
    if listing is not None:
        if path in listing.files:
            stored = listing.files[path]
            if stored is None:  # an HTTP server whose pages have no sizes
                stored = listing.files[path] = _asked(path)
            return stored
        if path in listing.directories:
            return None
        raise FileNotFoundError(2, "nothing is stored there", path)
    return _asked(path)


def status_anew(path: str) -> Optional[StoredObject]:
    """Return the same as `status_of`, but request it from the store, even if a listing is cached."""
    filesystem(path)[0].invalidate_cache()
    return _asked(path)


def _asked(path: str) -> Optional[StoredObject]:
    if not path.partition("://")[2]:  # an address without a bucket is no file
        raise FileNotFoundError(2, "nothing is stored there", path)
    fs, store_path = filesystem(path)
    info = tried(lambda: fs.info(store_path), path)
    if info.get("type") == "directory":
        return None
    stored = _stored(info)
    if stored is None:
        raise StorageError("the store does not report its size", path=path, hint="copy the dump to this machine")
    return stored


def _listing_of(path: str) -> Optional[_Listing]:
    above = path
    while above:
        listing = _listings.get(above)
        if listing is not None:
            return listing
        above = above.rpartition("/")[0]
    return None


def _stored(info: dict[str, Any]) -> Optional[StoredObject]:
    size = info.get("size")
    if not isinstance(size, int) or size < 0:
        return None
    for name in _STAMPS:
        stamp = info.get(name)
        if stamp:
            # As seconds, because one client reports the same time sometimes as a date and sometimes as seconds.
            return StoredObject(size, str(stamp.timestamp() if isinstance(stamp, datetime) else stamp))
    return StoredObject(size, "")


def read_range(path: str, start: int, end: int) -> bytes:
    """Return the bytes from `start` to `end` of a file. Raises StorageError, FileNotFoundError."""
    if start >= end:
        return b""
    fs, store_path = filesystem(path)

    def get() -> bytes:
        data: bytes = fs.cat_file(store_path, start=start, end=end)
        if len(data) < end - start:
            raise ShortAnswer(len(data))
        return data

    data = tried(get, path, start)
    if len(data) > end - start:
        # A server that ignores the requested range sends the whole file.
        data = data[start:end]
    return data
