"""Listings of the files below an address, and their byte ranges."""

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

#: Pages of a server could lead in circles.
_DEEPEST = 16
#: Listings that are kept: that of a dump and of its reference, and some that were opened before.
_MOST_LISTINGS = 8
#: As stores name a hash of the content, and where they have none its time.
_STAMPS = (
    *("ETag", "etag", "md5Hash", "content_hash"),
    *("LastModified", "Last-Modified", "last_modified", "mtime", "updated", "created"),
)


class StoredObject(NamedTuple):
    """One stored file.

    stamp  the store's hash of the content, else its time; "" where the store reports neither
    """

    size: int
    stamp: str


@dataclass
class _Listing:
    """The files below one address, and the names in each directory."""

    files: dict[str, Optional[StoredObject]] = field(default_factory=dict)
    directories: dict[str, tuple[dict[str, None], dict[str, None]]] = field(default_factory=dict)


_listings: OrderedDict[str, _Listing] = OrderedDict()


def list_stored(root: str) -> None:
    """List the files below an address anew. Raises StorageError, FileNotFoundError if there are none."""
    fs, store_path = filesystem(root)

    def find() -> dict[str, dict[str, Any]]:
        fs.invalidate_cache()
        # Where a store lists all at once, a depth would make it ask directory by directory.
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
        del _listings[other]  # of a part of it, and older
    _listings[root] = listing
    _listings.move_to_end(root)
    while len(_listings) > _MOST_LISTINGS:
        _listings.popitem(last=False)


def stored_files(root: str) -> Iterator[tuple[str, StoredObject]]:
    """Yield path and status of the files in the last listing of an address."""
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
            if stored is None:  # a server whose pages say no sizes
                stored = listing.files[path] = _asked(path)
            return stored
        if path in listing.directories:
            return None
        raise FileNotFoundError(2, "nothing is stored there", path)
    return _asked(path)


def status_anew(path: str) -> Optional[StoredObject]:
    """Return the status as `status_of`, but always query the store."""
    filesystem(path)[0].invalidate_cache()
    return _asked(path)


def _asked(path: str) -> Optional[StoredObject]:
    if not path.partition("://")[2]:  # no store has files above its buckets
        raise FileNotFoundError(2, "nothing is stored there", path)
    fs, store_path = filesystem(path)
    info = tried(lambda: fs.info(store_path), path)
    if info.get("type") == "directory":
        return None
    stored = _stored(info)
    if stored is None:
        raise StorageError("the store does not say how large this is", path=path, hint="copy the dump to this machine")
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
            # One client gives the same time as a date and as seconds.
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
        # A server that ignores the range sends all.
        data = data[start:end]
    return data
