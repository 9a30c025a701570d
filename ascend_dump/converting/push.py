"""Upload a dump to an object store: all finished files that the store lacks. Each file is verified by its hash.

{url}/…                                   the files, with their paths in the dump
{url}/.ascend-dump-pushed-{hash}.json     size, hash (xxh3-128) and the store's stamp of each uploaded file. The hash in
                                          the name is of the machine and the dump's path. Readers skip this file
"""

from __future__ import annotations

import json
import os
import re
import shlex
import socket
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple, Optional, Union

from ascend_dump.common.log import log
from ascend_dump.common.paths import CATALOG, MANIFEST, NO_PART, PUSHED, REMOVED_DIRECTORY
from ascend_dump.dump_format import COMPRESSED_INDEX, INDEX, INDEX_NAMES, index_among
from ascend_dump.errors import ConfigError, ReadError, StorageError
from ascend_dump.reading import RunState, open_dump
from ascend_dump.storage import StoredPath, filesystem, list_stored, located, read_range, stored_files, tried
from ascend_dump.storage.files import is_there, open_regular, walked

__all__ = ["Pushed", "PushedFile", "push"]

_SCHEMA = "ascend-dump/pushed/1"
_MOST_OF_A_LIST = 1 << 30
_BLOCK = 8 << 20
#: Number of files after which the list of uploaded files is written again, so that a killed push can resume.
_NOTE_AFTER = 500
_STEP = re.compile(r"(call_|step_?|iter)?\d{1,18}", re.ASCII)
_MD5 = re.compile(r"[0-9a-f]{32}", re.ASCII)
_ORDER = {**dict.fromkeys(INDEX_NAMES, 1), MANIFEST: 2}
#: Number of seconds without a write after which a step of a capture on another machine counts as finished.
_LATELY = 600


class PushedFile(NamedTuple):
    """A file that was checked.

    name      its path below the dump
    uploaded  True if this call uploaded it; False if it was in the store before
    verified  the way of verification: "hash of the store" or "read back"; "noted" if an earlier push had verified it
    """

    name: str
    nbytes: int
    uploaded: bool
    verified: str


class Pushed(NamedTuple):
    """The result of a push.

    uploaded, nbytes  number of uploaded files, and their bytes
    present           number of files that were in the store before, with the same content
    unfinished        directories of steps into which a running capture may still write; their files were not uploaded
    changed           files that changed while they were read; the next push uploads them
    """

    url: str
    uploaded: int
    nbytes: int
    present: int
    unfinished: tuple[str, ...]
    changed: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        """Return the result as plain values, for JSON."""
        return {**self._asdict(), "unfinished": list(self.unfinished), "changed": list(self.changed)}


_Watch = Callable[[Iterable[PushedFile]], Iterable[PushedFile]]


def push(dump: Union[str, os.PathLike[str]], url: str, *, jobs: int = 4, watch: Optional[_Watch] = None) -> Pushed:
    """Upload the finished files of a local dump that an object store does not have yet.

    dump   a directory that `open` accepts
    url    the address to upload to, such as s3://bucket/run7, in a store that fsspec supports
    jobs   number of parallel uploads
    watch  a function from an iterator of `PushedFile` to the same iterator, for a progress display

    Each file is verified after its upload: by the store's hash if that is an MD5, as for files that S3 gets in one
    piece, else by reading the file back. The newest step of a running capture is not uploaded. Tensors are uploaded
    before the index that refers to them.

    Raises the errors of `open`, ConfigError for an invalid address, NotSupported if the package for the store is
    missing, and StorageError if the store refuses a request, or has other bytes than were sent.

    >>> ascend_dump.push("dumps", "s3://bucket/run7").uploaded   # doctest: +SKIP
    """
    target = located(url)
    if not isinstance(target, StoredPath):
        raise ConfigError(
            f"url={url!r} is a local path, not a storage URL",
            hint="expected an address that fsspec knows, such as s3://bucket/run7, gs://... or az://...; to copy "
            f"it on this machine: {shlex.join(('cp', '-r', str(dump), str(target)))}",
        )
    root = located(dump)
    if isinstance(root, StoredPath):
        raise ConfigError(f"{root} is stored already", hint="expected a directory of this machine")
    opened = open_dump(root)
    if not root.is_dir():
        raise ConfigError(f"{root} is one file", hint="give the directory of the dump")
    running = {run.path: run.state for run in opened.runs() if run.state in (RunState.RUNNING, RunState.UNKNOWN)}
    unfinished = set(_unfinished(root.absolute(), running))
    upload = _Upload(root, str(target))
    phases: list[list[str]] = [[], [], []]
    for directory, names in walked(root):
        path = directory.absolute()
        if _is_left_out(directory, root) or any(path == item or item in path.parents for item in unfinished):
            continue
        for name in sorted(names):
            is_part = not name.startswith((*NO_PART, f".{MANIFEST}."))
            if is_part and (name not in INDEX_NAMES or name == index_among(names)):
                phases[_ORDER.get(name, 0)].append((directory / name).relative_to(root).as_posix())
    files: list[PushedFile] = []
    with ThreadPoolExecutor(max(jobs, 1), "ascend_dump-push") as pool:
        try:
            for item in (watch or iter)(upload.all(pool, phases)):
                files.append(item)
        finally:
            pool.shutdown(cancel_futures=True)
            upload.note()
    new = [item for item in files if item.uploaded]
    return Pushed(
        str(target),
        len(new),
        sum(item.nbytes for item in new),
        len(files) - len(new),
        tuple(sorted(str(item.relative_to(root.absolute())) for item in unfinished)),
        tuple(upload.changed),
    )


def _is_left_out(directory: Path, root: Path) -> bool:
    return any(part.startswith((CATALOG, REMOVED_DIRECTORY)) for part in directory.parts[len(root.parts) :])


def _unfinished(root: Path, running: Mapping[Path, RunState]) -> Iterator[Path]:
    """Yield the newest step of each directory of steps in the captures `running`: it may be unfinished.

    A capture on another machine may have ended. Its newest step is yielded only if a file in it changed in the last
    `_LATELY` seconds.
    """
    steps: dict[Path, list[tuple[float, Path]]] = {}
    for directory, names in walked(root) if running else ():
        numbered = [
            above
            for above in (directory, *directory.parents)
            if _STEP.fullmatch(above.name) and any(run in above.parents for run in running)
        ]
        # The levels are `{device}/{model}/{model_id}/{step}`, so the innermost number is the step.
        if numbered and names:
            times = [_modified(directory / name) for name in names]
            steps.setdefault(numbered[0].parent, []).append((max(times), numbered[0]))
    for times_of_steps in steps.values():
        modified, step = max(times_of_steps)
        is_running = any(run in step.parents and state is RunState.RUNNING for run, state in running.items())
        if is_running or modified > time.time() - _LATELY:
            yield step


def _modified(path: Path) -> float:
    try:
        return path.lstat().st_mtime
    except OSError:
        return float("inf")


class _Noted(NamedTuple):
    """A file in the list of uploaded files: its local size and time of change, its hash, and the store's stamp."""

    size: int
    modified: int
    xxh3: str
    stamp: str


class _Upload:
    """The state of one push: the files in the store, and the list of files that earlier pushes have verified."""

    def __init__(self, root: Path, url: str) -> None:
        self._root = root
        self._url = url
        self.changed: list[str] = []
        self._lock = threading.Lock()
        self._unnoted = 0
        host = f"{socket.gethostname()} {root.absolute()}"
        self._list = f"{url}/{PUSHED}{_xxh3(host.encode('utf-8', 'surrogatepass'))[:16]}.json"
        try:
            list_stored(url)
            self._there = dict(stored_files(url))
        except FileNotFoundError:
            self._there = {}
        self._known: dict[str, _Noted] = {}
        if self._list.rpartition("/")[2] in self._there:
            self._known = _read_list(self._list, self._there[self._list.rpartition("/")[2]].size)

    def all(self, pool: ThreadPoolExecutor, phases: list[list[str]]) -> Iterator[PushedFile]:
        for names in phases:
            for pushed in pool.map(self._one, names):
                if pushed is not None:
                    self._remove_replaced(pushed.name)
                    yield pushed

    def _remove_replaced(self, name: str) -> None:
        """Remove the compressed index of a step that was written again, because readers would prefer it to `name`."""
        directory, slash, file = name.rpartition("/")
        compressed = f"{directory}{slash}{COMPRESSED_INDEX}"
        if file == INDEX and compressed in self._there:
            fs, path = filesystem(f"{self._url}/{compressed}")
            with suppress(FileNotFoundError):
                tried(lambda: fs.rm_file(path), f"{self._url}/{compressed}")

    def _one(self, name: str) -> Optional[PushedFile]:
        path = self._root / name
        try:
            before = path.lstat()
        except FileNotFoundError:  # `keep=` has removed the step meanwhile, or its index was compressed
            if path.name == INDEX and is_there(path.with_name(COMPRESSED_INDEX)):
                with self._lock:
                    self.changed.append(name)
            return None
        stored = self._there.get(name)
        noted = self._known.get(name)
        if stored is not None and stored.size == before.st_size:
            # A file without a stamp is always verified, because a change in the store could not be detected.
            now = (before.st_size, before.st_mtime_ns, stored.stamp)
            if stored.stamp and noted is not None and (noted.size, noted.modified, noted.stamp) == now:
                return PushedFile(name, before.st_size, False, "noted")
            hashes = _Hashes()
            for block in _blocks(path):
                hashes.update(block)
            how = self._is_stored(name, stored.stamp, hashes)
            if how:
                self._remember(name, _Noted(before.st_size, before.st_mtime_ns, hashes.xxh3, stored.stamp))
                return PushedFile(name, before.st_size, False, how)
        hashes = _Hashes()
        tried(lambda: self._send(path, name, hashes), f"{self._url}/{name}", missing="the bucket does not exist")
        after = path.lstat()
        if (after.st_size, after.st_mtime_ns) != (before.st_size, before.st_mtime_ns):
            with self._lock:
                self.changed.append(name)
            return None
        stamp = self._stamp(name, before.st_size)
        how = self._is_stored(name, stamp, hashes)
        if not how:
            raise StorageError(
                "the bytes in the store differ from the bytes that were sent",
                path=f"{self._url}/{name}",
                hint="push again; if the error remains, another program writes there, or the store is damaged",
            )
        self._remember(name, _Noted(before.st_size, before.st_mtime_ns, hashes.xxh3, stamp))
        return PushedFile(name, before.st_size, True, how)

    def _send(self, path: Path, name: str, hashes: _Hashes) -> None:
        hashes.begin()
        fs, path_in_store = filesystem(f"{self._url}/{name}")
        with fs.open(path_in_store, "wb") as file:
            for block in _blocks(path):
                hashes.update(block)
                file.write(block)

    def _stamp(self, name: str, size: int) -> str:
        """Return the store's stamp of a file that was just uploaded. Raises StorageError if its size differs."""
        from ascend_dump.storage import status_anew

        status = status_anew(f"{self._url}/{name}")
        if status is None or status.size != size:
            raise StorageError(
                f"the store has {'a directory' if status is None else f'{status.size} bytes'}, {size} bytes were sent",
                path=f"{self._url}/{name}",
                hint="push again",
            )
        return status.stamp

    def _is_stored(self, name: str, stamp: str, hashes: _Hashes) -> str:
        """Verify that the store has the bytes with these hashes. Return the way of verification; "" for other bytes."""
        if _MD5.fullmatch(stamp.strip('"').lower()) and stamp.strip('"').lower() == hashes.md5:
            return "hash of the store"
        # For files uploaded in parts, and with some kinds of encryption, the store's hash is not a hash of the bytes.
        again = _Hashes()
        for start in range(0, hashes.size, _BLOCK):
            again.update(read_range(f"{self._url}/{name}", start, min(start + _BLOCK, hashes.size)))
        return "read back" if again.xxh3 == hashes.xxh3 else ""

    def _remember(self, name: str, noted: _Noted) -> None:
        with self._lock:
            self._known[name] = noted
            self._unnoted += 1
            if self._unnoted < _NOTE_AFTER:
                return
        self.note()

    def note(self) -> None:
        """Write the list of uploaded files. If that fails, the push succeeds, but the next one verifies more files."""
        with self._lock:
            if not self._unnoted:
                return
            self._unnoted = 0
            files = {name: list(noted) for name, noted in sorted(self._known.items())}
        try:
            fs, path = filesystem(self._list)
            text = json.dumps({"schema": _SCHEMA, "files": files}, ensure_ascii=True).encode()
            tried(lambda: fs.pipe_file(path, text), self._list)
        except (OSError, ReadError) as error:
            log.warning("%s: the list of uploaded files cannot be written: %s", self._url, error)


class _Hashes:
    """Two hashes of the bytes of a file: MD5, which stores have, and xxh3, which our list has."""

    def __init__(self) -> None:
        self.begin()

    def begin(self) -> None:
        import hashlib

        import xxhash

        self._md5 = hashlib.md5(usedforsecurity=False)
        self._xxh3 = xxhash.xxh3_128()
        self.size = 0

    def update(self, block: bytes) -> None:
        self._md5.update(block)
        self._xxh3.update(block)
        self.size += len(block)

    @property
    def md5(self) -> str:
        return self._md5.hexdigest()

    @property
    def xxh3(self) -> str:
        return str(self._xxh3.hexdigest())


def _blocks(path: Path) -> Iterator[bytes]:
    with open_regular(path, follow_links=False) as file:
        yield from iter(lambda: file.read(_BLOCK), b"")


def _xxh3(text: bytes) -> str:
    import xxhash

    return str(xxhash.xxh3_128_hexdigest(text))


def _read_list(url: str, size: int) -> dict[str, _Noted]:
    """Return the list that an earlier push wrote; empty if it is damaged."""
    try:
        document = json.loads(read_range(url, 0, min(size, _MOST_OF_A_LIST)))
        if document["schema"] != _SCHEMA:
            return {}
        noted = {}
        for name, (nbytes, modified, xxh3, stamp) in document["files"].items():
            if type(nbytes) is int and type(modified) is int and isinstance(xxh3, str) and isinstance(stamp, str):
                noted[name] = _Noted(nbytes, modified, xxh3, stamp)
        return noted
    except (OSError, ReadError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        log.debug("%s is not used: %s", url, error)
        return {}
