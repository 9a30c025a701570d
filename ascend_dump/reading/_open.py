"""Open a dump: walk over a directory tree, and let the dialects find their files."""

from __future__ import annotations

import copyreg
import json
import os
import re
from collections.abc import Collection, Hashable, Iterable, Iterator, Mapping
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Optional, Union

from ascend_dump.common.paths import CALL, CALL_SCHEMA, NO_PART
from ascend_dump.common.units import counted
from ascend_dump.errors import ConfigError, DumpNotFound, ReadError, StorageError, UnknownFormat
from ascend_dump.reading._dialect import Batch, Directory, Entry, WrappedEntry, rank_of
from ascend_dump.reading._dump import Dump
from ascend_dump.reading._provenance import Provenance
from ascend_dump.reading._record import Record
from ascend_dump.reading._registry import dialects
from ascend_dump.reading._runs import runs_above
from ascend_dump.reading.sources import Sources, graphs_beside, is_ge_graph, is_graph_file
from ascend_dump.steps import Steps
from ascend_dump.storage import StoredPath, cache_limit, is_url, list_stored, located
from ascend_dump.storage.files import children, read_regular

if TYPE_CHECKING:
    import polars

__all__ = ["open_dump"]

_AT_STEP = re.compile(r"(.+)@(\d{1,18})", re.ASCII | re.DOTALL)
#: Maximum size in bytes of the file that marks the directory of a decorated function's call.
_MOST_OF_A_MARK = 1000


class _BatchOfCall(Batch):
    __slots__ = ("_inner",)

    def __init__(self, inner: Batch, call: Optional[int]) -> None:
        super().__init__((), inner.rank, call)
        self._inner = inner

    def __len__(self) -> int:
        return len(self._inner)

    def __iter__(self) -> Iterator[Record]:
        for record in self._inner:
            record.step = self.step
            yield record

    def identities(self) -> Iterable[Optional[Hashable]]:
        return self._inner.identities()


class _OfCall(WrappedEntry):
    """An entry in the directory of one call of a decorated function. The number of the call replaces the step."""

    __slots__ = ()

    def __init__(self, inner: Entry, call: int) -> None:
        super().__init__(inner)
        self.step = call

    @property
    def framework_step(self) -> Optional[int]:
        return self._inner.step

    def records(self) -> Iterator[Record]:
        for record in self._inner.records():
            record.step = self.step
            yield record

    def batches(self) -> Optional[Iterator[Batch]]:
        batches = self._inner.batches()
        return None if batches is None else (_BatchOfCall(batch, self.step) for batch in batches)

    def records_at(self, positions: Collection[int]) -> Iterator[Record]:
        for record in self._inner.records_at(positions):
            record.step = self.step
            yield record

    @property
    def work(self) -> int:
        return self._inner.work

    def frames(self) -> Optional[Iterator[polars.DataFrame]]:
        frames = self._inner.frames()
        return None if frames is None else map(self._of_this_call, frames)

    def frames_after(self, shared: dict[str, Any]) -> Optional[Iterator[polars.DataFrame]]:
        frames = self._inner.frames_after(shared)
        return None if frames is None else map(self._of_this_call, frames)

    def _of_this_call(self, frame: polars.DataFrame) -> polars.DataFrame:
        import polars as pl

        return frame.with_columns(pl.lit(self.step, dtype=pl.Int64).alias("step"))


class _Lost(Entry):
    """A directory that cannot be listed. It has one unreadable record, so that the user sees that files are missing."""

    __slots__ = ("_error",)

    def __init__(self, path: Path, parts: tuple[str, ...], error: OSError) -> None:
        super().__init__(path, rank=rank_of(parts))
        self._error = ReadError(
            f"the directory cannot be listed: {error.strerror}", path=path, hint="check its permissions"
        )

    def records(self) -> list[Record]:
        return [Record(None, path=self.path, error=self._error, rank=self.rank)]


def open_dump(path: Union[str, os.PathLike[str]]) -> Dump:
    """Open a dump: a directory tree or a single file, in any mix of dialects. No tensor is read.

    path: a local path, or the URL of a dump in an object store that fsspec supports (`s3://bucket/run7`; this needs the
    extra `remote`). `PATH@STEP` opens a single step, unless a file or directory has exactly this name

    Symbolic links and special files inside the tree are skipped; `path` itself may be a link. Raises DumpNotFound if
    the path does not exist, contains no file or lacks the step; UnknownFormat if no dialect recognises a file in it;
    StorageError if a store does not answer; and NotSupported if the package for the store is missing.
    """
    whole, step = _step_in(path)
    if step is not None:
        return _at_step(open_dump(whole), step)
    root = located(path)
    try:
        if isinstance(root, StoredPath):
            cache_limit()  # reports a wrong setting before anything is read
            list_stored(str(root))
        root.stat()
    except (ConfigError, StorageError):
        raise
    except (OSError, ValueError) as error:  # ValueError: a NUL in the path
        raise DumpNotFound(
            f"{getattr(error, 'strerror', None) or error}".lower(),
            path=root,
            hint="give the path= of the capture, or a directory inside it",
        ) from None
    from ascend_dump.dump_format import MANIFEST

    available = dialects()
    runs = [above for above in runs_above(root) if (above / MANIFEST).is_file()][:1]
    entries: list[Entry] = []
    files = 0
    recognised = False
    graphs: list[Path] = []
    for item in _walk(root):
        if isinstance(item, _Lost):
            entries.append(item)
            continue
        directory, call = item
        files += len(directory.names)
        if MANIFEST in directory.names:
            runs.append(directory.path.absolute())
        graphs += [directory.path / name for name in directory.names if is_graph_file(name) or is_ge_graph(name)]
        for dialect in available:
            if not directory.names:
                break
            scanned, claimed = dialect.scan(directory)
            entries += scanned if call is None else [_OfCall(entry, call) for entry in scanned]
            if claimed:
                recognised = True
                directory = directory._replace(names=[name for name in directory.names if name not in claimed])
    if not entries and not files:
        raise DumpNotFound(
            "holds no files", path=root, hint="the capture wrote nothing: see its problems, and `ascend-dump doctor`"
        )
    if not entries and not recognised:
        raise UnknownFormat(
            f"no dialect recognises a dump in {counted(files, 'file')}",
            path=root,
            hint=f"known dialects: {', '.join(dialect.name for dialect in available)}",
        )
    entries.sort(key=_order)
    graphs += graphs_beside(root)
    sources = Sources(graphs) or None
    provenance = Provenance([path for path in graphs if is_ge_graph(path.name)], sources) or None
    return Dump(root, entries, sources=sources, runs=tuple(dict.fromkeys(runs)), provenance=provenance)


def _step_in(path: Union[str, os.PathLike[str]]) -> tuple[str, Optional[int]]:
    """Split PATH@STEP into both parts. The step is None if the text has no `@STEP`, or if a file has the whole name."""
    text = os.fspath(path)
    match = _AT_STEP.fullmatch(text)
    if match is None or isinstance(path, StoredPath) or (not is_url(text) and os.path.lexists(text)):
        return text, None
    return match[1], int(match[2])


def _at_step(dump: Dump, step: int) -> Dump:
    """Return one step of a dump. Raises DumpNotFound, which names the existing steps, if the dump lacks this one."""
    steps = dump.steps
    if step not in steps:
        there = f"its steps are {Steps(steps)}" if steps else "its records are in no step"
        raise DumpNotFound(f"has no step {step}", path=dump.root, hint=there)
    return dump.select(step=step)


def _opened_again(
    root: Path,
    token: str,
    chosen: list[dict[str, Any]],
    marks: Mapping[str, Mapping[str, Any]],
    rows: tuple[polars.Expr, ...],
) -> Dump:
    """Open a dump with the arguments that `Dump.recipe` returned in another process."""
    dump = _open_once(root, token)
    for arguments in chosen:
        dump = dump.select(**arguments)
    return (dump.where(*rows) if rows else dump).marked(marks)


@lru_cache(maxsize=4)
def _open_once(root: Path, token: str) -> Dump:
    """Open a dump. The cache opens it only once in this process for all calls with the same token."""
    return open_dump(root)


#: A pickled dump is opened again; its cached records are not pickled.
copyreg.pickle(Dump, lambda dump: (_opened_again, dump.recipe()))


def _walk(root: Path) -> Iterator[Union[tuple[Directory, Optional[int]], _Lost]]:
    """Yield each directory with files, and the number of the decorated function's call it belongs to, or None.

    A directory that cannot be listed is yielded as `_Lost`.
    """
    # The levels above the opened root count too: in them are rank, run and step if a subdirectory is opened.
    base, call = _above(root)
    if root.is_file():
        yield Directory(root.parent, base[:-1], [root.name], root.parent), call
        return
    stack: list[tuple[Path, tuple[str, ...], Optional[int]]] = [(root, base, call)]
    while stack:
        path, parts, call = stack.pop()
        if call is None and path.name.startswith("call_"):
            call = _call_of(path)
            # Dialects do not know the level `call_N`: without it they see the levels of an ordinary run.
            parts = parts if call is None else parts[:-1]
        try:
            # `children` leaves out links and special files: links could lead out of the dump or in circles, and
            # opening a pipe would never return.
            directories, files = children(path)
        except FileNotFoundError:
            continue  # a step that was removed since its directory was listed
        except OSError as error:
            yield _Lost(path, parts, error)
            continue
        stack += [(path / name, (*parts, name), call) for name in directories if not name.startswith(NO_PART)]
        names = [name for name in files if not (name == CALL and call is not None) and not name.startswith(NO_PART)]
        if names:
            yield Directory(path, parts, names, root), call


def _above(root: Path) -> tuple[tuple[str, ...], Optional[int]]:
    """Return the levels of the absolute path of `root`, and the number of the call that `root` belongs to, or None.

    The level of that call is left out.
    """
    whole = root.resolve()
    for above in (whole, *whole.parents):
        if above.name.startswith("call_"):
            call = _call_of(above)
            if call is not None:
                depth = len(above.parts) - 1
                return (*whole.parts[:depth], *whole.parts[depth + 1 :]), call
    return tuple(whole.parts), None


def _call_of(directory: Path) -> Optional[int]:
    """Return the number in a directory `call_N` of a decorated function; None for all other directories."""
    try:
        mark = json.loads(read_regular(directory / CALL, _MOST_OF_A_MARK, follow_links=False))
    except (OSError, ValueError, RecursionError):
        return None
    if not isinstance(mark, dict) or mark.get("schema") != CALL_SCHEMA:
        return None
    call = mark.get("call")
    return call if type(call) is int and call >= 0 else None


def _order(entry: Entry) -> tuple[Any, ...]:
    return (
        entry.run or "",
        -1 if entry.rank is None else entry.rank,
        -1 if entry.device is None else entry.device,
        entry.model or "",
        -1 if entry.step is None else entry.step,
        -1 if entry.framework_step is None else entry.framework_step,
        entry.order,
        entry.path_text,
    )
