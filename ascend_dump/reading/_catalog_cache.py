"""Store the catalog of a large dump, a table of its records, as Parquet beside the dump or in the user's cache.

    {dump}/.ascend-dump-catalog/catalog.json      a digest of the dump's files, and the size and hash of each part
                                part-00000.parquet …

A stored catalog is used only if all its files are private files of this user, each part has the hash in
`catalog.json`, and no file of the dump changed since. Otherwise the catalog is created again.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import stat
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Optional

from ascend_dump._version import __version__
from ascend_dump.common.log import log
from ascend_dump.common.paths import (
    CATALOG,
    PRIVATE_DIRECTORY,
    PRIVATE_FILE,
    PUSHED,
    REMOVED_DIRECTORY,
    UNFINISHED,
    is_private,
    user_cache,
)
from ascend_dump.reading._record import Record
from ascend_dump.reading.sources import Sources, graphs_beside
from ascend_dump.storage import StoredPath, stored_files
from ascend_dump.storage.files import open_regular, read_regular, regular_status

if TYPE_CHECKING:
    import polars

    from ascend_dump.reading._dialect import Entry
    from ascend_dump.steps import Steps

__all__ = ["Watch", "Whole", "catalog_of", "is_kept"]

_MANIFEST = "catalog.json"
_SCHEMA = "ascend-dump/catalog/6"
#: Minimum number of records of a stored catalog: a smaller catalog is created faster than it is stored.
_WORTH_KEEPING = 20_000
#: Rows of a part. Two parts are in memory while a catalog is created: one is written while the next one is read.
_PART = 131_072
#: Age in seconds from which an unfinished catalog counts as left by a killed process. A process that creates a catalog
#: writes a part every few seconds.
_ABANDONED = 24 * 3600
_MOST_OF_A_MANIFEST = 10_000_000
_BLOCK = 1 << 20
_PART_NAME = re.compile(r"part-\d{5}\.parquet", re.ASCII)

#: The tests of one `select`, each with the name of its field: tests of texts, and tests of numbers.
_Query = tuple[Sequence[tuple[str, Callable[[str], bool]]], Sequence[tuple[str, "Steps"]]]
#: A function that gets the parts of a catalog as they are created and yields the same parts, to show progress.
Watch = Optional[Callable[[Iterable["polars.DataFrame"]], Iterable["polars.DataFrame"]]]


class Whole(NamedTuple):
    """A dump before anything was selected from it."""

    root: Path
    entries: list[Entry]
    sources: Optional[Sources]


def is_kept(root: Path) -> bool:
    """Return True if a catalog of this dump may exist."""
    return root.is_dir() and any(os.path.lexists(path) for path in _possible_paths(root))


def catalog_of(
    whole: Whole, selected: list[Entry], queries: Sequence[_Query], *, make: bool = True, watch: Watch = None
) -> Optional[polars.LazyFrame]:
    """Return the catalog rows of those records of the entries `selected` that match all queries.

    The rows have the additional columns ENTRY (index in `whole.entries`) and PLACE (position in that entry).
    make: if no stored catalog fits the dump, create one; False: return None instead.
    watch: gets the parts as they are created and yields the same parts.
    """
    from ascend_dump.reading.catalog import ENTRY, frames, narrowed, polars_or_refuse, schema

    pl = polars_or_refuse("catalog()")
    made_of = _made_of(whole) if whole.root.is_dir() else ""
    frame = _load(whole, made_of)
    if frame is None and not make:
        return None
    selected_ids = set(map(id, selected))
    numbers = [number for number, entry in enumerate(whole.entries) if id(entry) in selected_ids]
    if frame is None and len(selected) < len(whole.entries):
        # Reading the selected files takes less time than creating a catalog of all files.
        parts = frames(((number, whole.entries[number]) for number in numbers), _complete(whole))
        chunks = list(parts if watch is None else watch(parts))
        frame = pl.concat(chunks).lazy() if chunks else pl.DataFrame(schema=schema()).lazy()
    else:
        if frame is None:
            frame = _make(whole, made_of, watch)
        if len(selected) < len(whole.entries):
            frame = frame.filter(pl.col(ENTRY).is_in(numbers))
    for texts, numbers_of in queries:
        frame = narrowed(frame, texts, numbers_of)
    return frame


def _complete(whole: Whole) -> Optional[Callable[[Record], None]]:
    sources = whole.sources
    if sources is None:
        return None

    def add_source(record: Record) -> None:
        if record.source is None:
            record.source = sources.find(record)

    return add_source


def _make(whole: Whole, made_of: str, watch: Watch) -> polars.LazyFrame:
    """Create the catalog by reading the whole dump. A large catalog is stored on disk part by part."""
    import polars as pl

    from ascend_dump.reading.catalog import frames, schema

    waiting: list[polars.DataFrame] = []
    rows = waiting_rows = 0
    store: Optional[_Store] = None
    with ExitStack() as stack:
        parts = frames(enumerate(whole.entries), _complete(whole))
        for frame in parts if watch is None else watch(parts):
            waiting.append(frame)
            rows += frame.height
            waiting_rows += frame.height
            if waiting_rows >= _PART and made_of:
                store = store or _Store.of(whole.root, stack)
                if store is not None:
                    store.add(pl.concat(waiting))
                    waiting, waiting_rows = [], 0
        if store is None and rows >= _WORTH_KEEPING and made_of:
            store = _Store.of(whole.root, stack)
        if store is None:
            return pl.concat(waiting).lazy() if waiting else pl.DataFrame(schema=schema()).lazy()
        if waiting:
            store.add(pl.concat(waiting))
        return store.finish(whole, made_of)


def _remove_abandoned(directory: Path) -> None:
    """Remove the unfinished catalogs of processes that were killed."""
    for draft in directory.glob(f"{CATALOG}.*"):
        with suppress(OSError):
            if time.time() - draft.lstat().st_mtime > _ABANDONED:
                shutil.rmtree(draft, ignore_errors=True)


class _WrittenPart(NamedTuple):
    """A part that was written into a file. inside: all paths in it are below the root of the dump."""

    name: str
    bytes: int
    xxh3: str
    inside: bool


class _Store:
    """A catalog that is being written in a directory of its own, and is moved into place when it is complete.

    A part is written by a thread while the next one is read. If a part cannot be written (the disk is full), this
    and all later parts stay in memory and nothing is stored.
    """

    def __init__(self, root: Path, destination: Path, temporary: Path) -> None:
        self._prefix = _prefix(root)
        self._destination = destination
        self._temporary = temporary
        self._parts: list[dict[str, Any]] = []
        self._writer = ThreadPoolExecutor(1, "ascend-dump catalog")
        self._writing: Optional[tuple[polars.DataFrame, Future[_WrittenPart]]] = None
        self._unwritten: list[polars.DataFrame] = []

    @classmethod
    def of(cls, root: Path, stack: ExitStack) -> Optional[_Store]:
        """Return a store in the first writable directory; None if no directory is writable.

        stack: when it exits, the store's thread is stopped and its temporary directory is removed.
        """
        for destination in _possible_paths(root):
            try:
                destination.parent.mkdir(parents=True, exist_ok=True, mode=PRIVATE_DIRECTORY)
                _remove_abandoned(destination.parent)
                store = cls(root, destination, Path(tempfile.mkdtemp(prefix=f"{CATALOG}.", dir=destination.parent)))
            except OSError as error:
                log.debug("no catalog is kept in %s: %s", destination.parent, error)
            else:
                stack.callback(store._close)
                return store
        return None

    def _close(self) -> None:
        self._writer.shutdown()
        shutil.rmtree(self._temporary, ignore_errors=True)

    def add(self, frame: polars.DataFrame) -> None:
        self._wait()
        if self._unwritten:
            self._unwritten.append(frame)
        else:
            self._writing = frame, self._writer.submit(self._write, f"part-{len(self._parts):05}.parquet", frame)

    def _wait(self) -> None:
        """Wait until the current part is written."""
        import polars as pl

        if self._writing is not None:
            frame, written = self._writing
            self._writing = None
            try:
                self._parts.append(written.result()._asdict())
            except (OSError, pl.exceptions.PolarsError) as error:
                log.debug("no catalog is kept in %s: %s", self._destination.parent, error)
                self._unwritten.append(frame)

    def _write(self, name: str, frame: polars.DataFrame) -> _WrittenPart:
        import polars as pl

        # If a subdirectory of a run was opened, some files are outside of the opened root. Their paths stay unchanged.
        inside = bool(frame.select(pl.col("path").str.starts_with(self._prefix).all()).item())
        if inside:
            frame = frame.with_columns(pl.col("path").str.strip_prefix(self._prefix))
        path = self._temporary / name
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, PRIVATE_FILE))
        frame.write_parquet(path, compression="zstd", compression_level=1)
        return _WrittenPart(name, path.stat().st_size, _digest(path), inside)

    def finish(self, whole: Whole, made_of: str) -> polars.LazyFrame:
        """Return the catalog, and move it to its final path.

        It is kept in memory only if a part could not be written or has paths outside of the dump, if the dump changed,
        or if it cannot be moved.
        """
        import polars as pl

        self._wait()
        lasting = not self._unwritten and all(part["inside"] for part in self._parts)
        if lasting and made_of == _made_of(whole):
            manifest = {"schema": _SCHEMA, "made_of": made_of, "parts": self._parts}
            try:
                with open(
                    os.open(self._temporary / _MANIFEST, os.O_WRONLY | os.O_CREAT | os.O_EXCL, PRIVATE_FILE), "w"
                ) as file:
                    json.dump(manifest, file)
                self._move_into_place()
            except OSError as error:  # a full disk, another process was faster, or another user's file has this path
                log.debug("the catalog cannot be moved to %s: %s", self._destination, error)
            else:
                return _scan(self._destination, self._parts, self._prefix)
        written = [_scan(self._temporary, self._parts, self._prefix).collect()] if self._parts else []
        return pl.concat([*written, *self._unwritten]).lazy()

    def _move_into_place(self) -> None:
        if os.path.lexists(self._destination):
            old = Path(tempfile.mkdtemp(prefix=f"{CATALOG}.", dir=self._destination.parent))
            os.rename(self._destination, old / "old")
            shutil.rmtree(old, ignore_errors=True)
        os.rename(self._temporary, self._destination)


def _load(whole: Whole, made_of: str) -> Optional[polars.LazyFrame]:
    """Return the stored catalog; None if there is none, it is damaged or not private, or the dump changed since."""
    for path in _possible_paths(whole.root) if made_of else []:
        try:
            directory = os.lstat(path)
            file = regular_status(path / _MANIFEST, follow_links=False)
            if not stat.S_ISDIR(directory.st_mode) or not is_private(directory) or not is_private(file):
                continue
            manifest = json.loads(read_regular(path / _MANIFEST, _MOST_OF_A_MANIFEST, follow_links=False))
            if manifest["schema"] != _SCHEMA or manifest["made_of"] != made_of:
                continue
            parts = manifest["parts"]
            if parts and all(_is_as_written(path, part) for part in parts):
                return _scan(path, parts, _prefix(whole.root))
            log.debug("the catalog %s is damaged, so it is made anew", path)
        except FileNotFoundError:
            continue
        except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
            log.debug("the catalog %s is not used: %s", path, error)
    return None


def _is_as_written(directory: Path, part: Mapping[str, Any]) -> bool:
    name = part["name"]
    if not isinstance(name, str) or not _PART_NAME.fullmatch(name):
        return False
    status = regular_status(directory / name, follow_links=False)
    return is_private(status) and status.st_size == part["bytes"] and _digest(directory / name) == part["xxh3"]


def _scan(directory: Path, parts: Sequence[Mapping[str, Any]], prefix: str) -> polars.LazyFrame:
    import polars as pl

    scanned = []
    for part in parts:
        frame = pl.scan_parquet(directory / part["name"])
        scanned.append(
            frame.with_columns((pl.lit(prefix) + pl.col("path")).alias("path")) if part["inside"] and prefix else frame
        )
    return pl.concat(scanned)


def _possible_paths(root: Path) -> list[Path]:
    """Return the possible paths of a catalog: inside the dump, and in the user's cache.

    The path inside the dump is left out for a dump in an object store, and if other users can write to its directory.
    """
    import xxhash

    name = xxhash.xxh3_128_hexdigest(os.fsencode(root.resolve()))
    in_cache = user_cache() / name / CATALOG
    beside = not isinstance(root, StoredPath) and is_private(os.stat(root))
    return [root / CATALOG, in_cache] if beside else [in_cache]


def _prefix(root: Path) -> str:
    """Return the common prefix of the paths of files below the root; "" for the current directory."""
    text = str(root)
    return "" if text == "." else text.rstrip(os.sep) + os.sep


def _made_of(whole: Whole) -> str:
    """Return a digest of all that determines a catalog; "" if a change of the files could not be detected.

    These are the files of the dump with their sizes and times, the registered dialects, and the version of ascend_dump.
    """
    import xxhash

    from ascend_dump.reading._registry import registered_dialects
    from ascend_dump.reading.catalog import COLUMNS

    digest = xxhash.xxh3_128()

    def add(*values: object) -> None:
        digest.update(os.fsencode(repr(values)))

    add(_SCHEMA, COLUMNS, __version__, whole.root.resolve(), *registered_dialects())
    for entry in whole.entries:
        add(entry.path_text.removeprefix(_prefix(whole.root)), entry.step, entry.rank)
    if isinstance(whole.root, StoredPath):
        for name, stored in stored_files(str(whole.root)):
            if name.startswith(PUSHED):
                continue
            if not stored.stamp:
                return ""  # a change could not be detected
            add(name, *stored)
        return digest.hexdigest()
    for path in graphs_beside(whole.root):
        add(os.path.realpath(path), *_state(os.stat(path)))
    stack = [os.fspath(whole.root)]
    while stack:
        try:
            with os.scandir(stack.pop()) as listed:
                items = sorted(listed, key=lambda item: item.name)
        except OSError:
            continue
        for item in items:
            if item.name.startswith((CATALOG, REMOVED_DIRECTORY, UNFINISHED)):
                continue
            if item.is_dir(follow_symlinks=False):
                stack.append(item.path)
            elif item.is_file(follow_symlinks=False):
                add(item.name, *_state(item.stat(follow_symlinks=False)))
    return digest.hexdigest()


def _state(status: os.stat_result) -> tuple[int, ...]:
    return status.st_size, status.st_mtime_ns, status.st_mode


def _digest(path: Path) -> str:
    import xxhash

    digest = xxhash.xxh3_128()
    with open_regular(path, follow_links=False) as file:
        for block in iter(lambda: file.read(_BLOCK), b""):
            digest.update(block)
    return digest.hexdigest()
