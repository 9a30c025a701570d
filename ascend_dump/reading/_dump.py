"""Dump: a catalog of records, opened by one walk over the tree and read lazily."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from itertools import groupby, islice
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Any, NamedTuple, Optional, Union

from ascend_dump._errors import ConfigError, DumpNotFound, ReadError, UnknownFormat
from ascend_dump._files import read_regular
from ascend_dump._paths import CALL, CALL_SCHEMA, CATALOG
from ascend_dump._patterns import text_matcher
from ascend_dump._steps import Steps, StepsLike
from ascend_dump.native.cann.names import loosen_glob
from ascend_dump.reading._dialect import Batch, Directory, Entry, WrappedEntry, rank_of
from ascend_dump.reading._record import FIELDS, Record
from ascend_dump.reading._registry import dialects
from ascend_dump.reading._runs import Run, read_run, runs_above
from ascend_dump.reading._sources import Sources, graphs_beside, is_graph_file

if TYPE_CHECKING:
    import polars

__all__ = ["Dump", "open_dump"]


#: What all records of one file have in common, where its name tells it.
_OF_FILES = ("step", "rank", "device")


class _Query(NamedTuple):
    """One `select`. Tests on names run on entries too, so that unwanted files stay closed."""

    texts: tuple[tuple[str, Callable[[str], bool]], ...]
    numbers: tuple[tuple[str, Steps], ...]
    written: Optional[Callable[[str], bool]] = None

    def may_match(self, entry: Entry) -> bool:
        for name, test in self.texts:
            text = getattr(entry, name, None)
            if text is not None and not test(text):
                return False
        for name, steps in self.numbers:
            number = getattr(entry, name, None)
            if number is not None and number not in steps:
                return False
        return self.written is None or entry.written_name is None or self.written(entry.written_name)

    def takes_all_of(self, entry: Entry) -> bool:
        """Whether all that was asked for is what the name of a file tells already."""
        told = (name in _OF_FILES and getattr(entry, name) is not None for name, _ in self.numbers)
        return not self.texts and all(told)

    def matches(self, record: Record) -> bool:
        if record.error is not None:
            return self._may_be(record)
        return all(test(getattr(record, name) or "") for name, test in self.texts) and all(
            getattr(record, name) in steps for name, steps in self.numbers
        )

    def _may_be(self, broken: Record) -> bool:
        """Whether an unreadable record may match: only the fields that are known can rule it out."""
        for name, test in self.texts:
            text = getattr(broken, name)
            if text and not test(text):
                return False
        for name, steps in self.numbers:
            number = getattr(broken, name)
            known = number is not None and (name != "index" or broken.io != "")
            if known and number not in steps:
                return False
        return True


class _Ahead(NamedTuple):
    """Records that `len` has read, and when: they are used again only shortly after, since files may change."""

    records: list[Record]
    at: float


#: `len` keeps at most so many records (some 50 MB), for so many seconds.
_MOST_AHEAD = 50_000
_SOON = 0.1
#: Bytes of the mark of a call.
_MOST_OF_A_MARK = 1000


class Dump:
    """Records in the order they ran. Iterating opens files one by one; `select` opens none.

    A record that cannot be read is still listed: its `error` says why, reading it raises that.
    `len()` and truth look into the files, `root` and `known_values()` do not. A Dump equals only
    itself.
    """

    def __init__(
        self,
        root: Path,
        entries: list[Entry],
        queries: tuple[_Query, ...] = (),
        marks: Optional[Mapping[str, Mapping[str, Any]]] = None,
        sources: Optional[Sources] = None,
        runs: tuple[Path, ...] = (),
        whole: Optional[list[Entry]] = None,
    ) -> None:
        self.root = root
        self._entries = entries
        #: Of the dump that this one was selected from.
        self._all = entries if whole is None else whole
        self._queries = queries
        self._marks = marks or {}
        self._sources = sources
        self._runs = runs
        self._ahead: Optional[_Ahead] = None

    def __iter__(self) -> Iterator[Record]:
        # A generator, since list() asks for the length only when it has the iterator.
        ahead, self._ahead = self._ahead, None
        if ahead is not None and monotonic() - ahead.at < _SOON:
            yield from ahead.records
        else:
            yield from self._read()

    def _read(self) -> Iterator[Record]:
        for entry in self._entries:
            yield from self._of(entry)

    def _of(self, entry: Entry) -> Iterator[Record]:
        for record in entry.records():
            if all(query.matches(record) for query in self._queries):
                if self._marks:
                    record.attrs.update(self._marks.get(record.model or "", {}))
                if self._sources is not None and record.source is None:
                    record.source = self._sources.find(record)
                yield record

    def batches(self) -> Iterator[Batch]:
        """The same records in the same order, in batches of one step and rank that make a Record when it is asked for.

        For those who go through large dumps and look at few records: see `Batch`.
        """
        as_they_are = not self._marks and self._sources is None
        for entry in self._entries:
            made = entry.batches() if as_they_are and all(one.takes_all_of(entry) for one in self._queries) else None
            if made is not None:
                yield from made
                continue
            for (rank, step), records in groupby(self._of(entry), key=lambda record: (record.rank, record.step)):
                yield Batch(list(records), rank, step)

    def marked(self, marks: Mapping[str, Mapping[str, Any]]) -> Dump:
        """The same records, with more `attrs` for those of the models named."""
        if not marks:
            return self
        return Dump(self.root, self._entries, self._queries, marks, self._sources, self._runs, self._all)

    def __len__(self) -> int:
        if self._ahead is not None and monotonic() - self._ahead.at < _SOON:
            return len(self._ahead.records)  # list() of Python 3.9 asks twice
        count = 0
        records: list[Record] = []
        for count, record in enumerate(self._read(), 1):
            if count <= _MOST_AHEAD:
                records.append(record)
        # list() asks for the length and iterates at once: it need not read everything again.
        self._ahead = _Ahead(records, monotonic()) if count <= _MOST_AHEAD else None
        return count

    def __bool__(self) -> bool:
        return any(True for _ in self)

    def select(
        self,
        op: Optional[str] = None,
        *,
        op_type: Optional[str] = None,
        step: StepsLike = None,
        rank: StepsLike = None,
        io: Optional[str] = None,
        index: StepsLike = None,
        model: Optional[str] = None,
        device: StepsLike = None,
        phase: Optional[str] = None,
        module: Optional[str] = None,
        run: Optional[str] = None,
    ) -> Dump:
        """Narrow the dump; texts are globs or `re:` patterns, numbers the step language.

        >>> dump.select(op="*conv1*", step="0|3-5", io="output")   # doctest: +SKIP
        """
        texts = {"op_name": op, "op_type": op_type, "io": io, "model": model, "phase": phase}
        texts.update(module=module, run=run)
        numbers = {"step": step, "rank": rank, "index": index, "device": device}
        query = _Query(
            tuple((name, text_matcher(text)) for name, text in texts.items() if text is not None),
            tuple((name, Steps(value, name=name)) for name, value in numbers.items() if value is not None),
            None if op is None or op.startswith("re:") else text_matcher(loosen_glob(op)),
        )
        kept = [entry for entry in self._entries if query.may_match(entry)]
        return Dump(self.root, kept, (*self._queries, query), self._marks, self._sources, self._runs, self._all)

    def known_values(self, field: str) -> set[Any]:
        """The values of a field as far as names of files and directories tell them; opens no file.

        field: of a record, such as "rank" or "step"; what names do not tell, such as "module", is None.
        """
        if field not in FIELDS and not hasattr(Entry, field):
            raise ConfigError(f"a record has no field {field!r}", hint=f"give one of {', '.join(FIELDS)}")
        return {getattr(entry, field, None) for entry in self._entries}

    def errors(self) -> list[Record]:
        """The records that cannot be read, each with its `error`."""
        return [record for record in self if record.error is not None]

    def runs(self) -> list[Run]:
        """The runs of captures in this dump, with their scene and whether they came to their end.

        After a `select` they are the runs of the files that may match. Other tools leave no trace of a run.
        """
        runs = self._runs
        if runs and self._queries:
            wanted = {str(run) for run in runs}
            kept = {
                above
                for directory in {os.path.dirname(entry.path_text) for entry in self._entries}
                for above in wanted & {directory, *map(str, runs_above(Path(directory)))}
            }
            runs = tuple(run for run in runs if str(run) in kept)
        return [found for found in map(read_run, runs) if found is not None]

    def to_frame(self) -> polars.DataFrame:
        """One row per record, one column per field. Needs the extra `analyze` (polars)."""
        from ascend_dump.reading.catalog import polars_or_refuse

        polars_or_refuse("to_frame()")
        return self.catalog().select(FIELDS).collect()

    def catalog(self) -> polars.LazyFrame:
        """The records as columns: every field, the error, and of host dumps the hash, the place in memory and the
        recorded statistics. No tensor is read. Needs the extra `analyze` (polars).

        That of a large dump is kept beside it, readable by its owner only, or in the user's cache directory, and made
        anew when a file of the dump changed.

        >>> dump.catalog().filter(polars.col("nan") > 0).collect()   # doctest: +SKIP
        """
        from ascend_dump.reading._catalog_cache import Whole, catalog_of

        whole = Whole(self.root, self._all, self._sources)
        return catalog_of(whole, self._entries, [(query.texts, query.numbers) for query in self._queries])

    def __repr__(self) -> str:
        return f"<Dump {self.root} ({len(self._entries)} files)>"

    def _repr_html_(self) -> str:
        """The first records as a small static table, for notebooks."""
        from ascend_dump._html import ROWS, html_table

        names = ("step", "rank", "op_name", "op_type", "io", "index", "dtype", "shape", "nbytes")
        found = list(islice(self, ROWS + 1))
        rows = [[getattr(record, name) for name in names] for record in found[:ROWS]]
        more = f", the first {ROWS} records" if len(found) > ROWS else ""
        return html_table(f"{self!r}{more}", names, rows)


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
    """An entry in the directory of a call of a decorated function: the call is the step of its records."""

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
        made = self._inner.batches()
        return None if made is None else (_BatchOfCall(batch, self.step) for batch in made)

    def frames(self) -> Optional[Iterator[polars.DataFrame]]:
        made = self._inner.frames()
        return None if made is None else map(self._of_this_call, made)

    def _of_this_call(self, frame: polars.DataFrame) -> polars.DataFrame:
        import polars as pl

        return frame.with_columns(pl.lit(self.step, dtype=pl.Int64).alias("step"))


class _Lost(Entry):
    """A directory that cannot be listed: one unreadable record, so that it is not forgotten."""

    __slots__ = ("_error",)

    def __init__(self, path: Path, parts: tuple[str, ...], error: OSError) -> None:
        super().__init__(path, rank=rank_of(parts))
        self._error = ReadError(
            f"the directory cannot be listed: {error.strerror}", path=path, hint="check its permissions"
        )

    def records(self) -> list[Record]:
        return [Record(None, path=self.path, error=self._error, rank=self.rank)]


def open_dump(path: Union[str, os.PathLike[str]]) -> Dump:
    """Open any tree (or one file) in any mix of dialects, without reading a tensor.

    Symbolic links and special files inside the tree are passed over; `path` may be a link.
    Raises DumpNotFound when the path does not exist or holds no file, and UnknownFormat when
    nothing in it is recognised.
    """
    root = Path(path)
    try:
        root.stat()
    except (OSError, ValueError) as error:  # ValueError: a NUL in the path
        raise DumpNotFound(
            f"{getattr(error, 'strerror', None) or error}".lower(),
            path=root,
            hint="give the path= of the capture, or a directory inside it",
        ) from None
    from ascend_dump.host import MANIFEST

    asked = dialects()
    runs = [above for above in runs_above(root) if os.path.isfile(above / MANIFEST)][:1]
    entries: list[Entry] = []
    files = 0
    recognised = False
    graphs: list[Path] = []
    for found in _walk(root):
        if isinstance(found, _Lost):
            entries.append(found)
            continue
        directory, call = found
        files += len(directory.names)
        if MANIFEST in directory.names:
            runs.append(directory.path.absolute())
        graphs += [directory.path / name for name in directory.names if is_graph_file(name)]
        for dialect in asked:
            if not directory.names:
                break
            some, claimed = dialect.scan(directory)
            entries += some if call is None else [_OfCall(entry, call) for entry in some]
            if claimed:
                recognised = True
                directory = directory._replace(names=[name for name in directory.names if name not in claimed])
    if not entries and not files:
        raise DumpNotFound(
            "holds no files", path=root, hint="the capture wrote nothing: see its problems, and `ascend-dump doctor`"
        )
    if not entries and not recognised:
        raise UnknownFormat(
            f"none of its {files} files is a dump that a dialect recognises",
            path=root,
            hint=f"known dialects: {', '.join(dialect.name for dialect in asked)}",
        )
    entries.sort(key=_order)
    sources = Sources([*graphs_beside(root), *graphs])
    return Dump(root, entries, sources=sources if sources else None, runs=tuple(dict.fromkeys(runs)))


def _walk(root: Path) -> Iterator[Union[tuple[Directory, Optional[int]], _Lost]]:
    """The directories, each with the call of a decorated function that it belongs to."""
    # The levels above the root still say rank, run and step when a subdirectory is opened.
    base, call = _above(root)
    if root.is_file():
        yield Directory(root.parent, base[:-1], [root.name], root.parent), call
        return
    stack: list[tuple[str, tuple[str, ...], Optional[int]]] = [(os.fspath(root), base, call)]
    while stack:
        path, parts, call = stack.pop()
        names = []
        if call is None and os.path.basename(path).startswith("call_"):
            call = _call_of(Path(path))
            # The levels of the frameworks stand as they do without calls.
            parts = parts if call is None else parts[:-1]
        try:
            with os.scandir(path) as found:
                for item in found:
                    # Links could lead out of the dump or in circles; opening a pipe would never return.
                    if item.name.startswith(CATALOG):
                        continue
                    if item.is_dir(follow_symlinks=False):
                        stack.append((item.path, (*parts, item.name), call))
                    elif item.is_file(follow_symlinks=False) and not (call is not None and item.name == CALL):
                        names.append(item.name)
        except FileNotFoundError:
            continue  # a step that was removed since its directory was listed
        except OSError as error:
            yield _Lost(Path(path), parts, error)
        if names:
            yield Directory(Path(path), parts, names, root), call


def _above(root: Path) -> tuple[tuple[str, ...], Optional[int]]:
    """The levels down to `root`, and the call whose directory is above it."""
    whole = root.resolve()
    for above in (whole, *whole.parents):
        if above.name.startswith("call_"):
            call = _call_of(above)
            if call is not None:
                at = len(above.parts) - 1
                return (*whole.parts[:at], *whole.parts[at + 1 :]), call
    return tuple(whole.parts), None


def _call_of(directory: Path) -> Optional[int]:
    """The number of the call whose directory this is, None where it is nothing of ours."""
    try:
        found = json.loads(read_regular(directory / CALL, _MOST_OF_A_MARK, follow_links=False))
    except (OSError, ValueError, RecursionError):
        return None
    if not isinstance(found, dict) or found.get("schema") != CALL_SCHEMA:
        return None
    call = found.get("call")
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
