"""Dump: the records of a dump, read lazily."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterator, Mapping
from itertools import groupby, islice
from pathlib import Path
from secrets import token_hex
from time import monotonic
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn, Optional, Union, overload

from ascend_dump.common.patterns import text_matcher
from ascend_dump.common.suggest import did_you_mean
from ascend_dump.common.units import counted
from ascend_dump.errors import ConfigError, NotSupported, ReadError
from ascend_dump.native.cann.names import loosen_glob
from ascend_dump.reading._dialect import Batch, Entry
from ascend_dump.reading._labels import labels_of
from ascend_dump.reading._query import Query
from ascend_dump.reading._record import FIELDS, Record
from ascend_dump.reading._runs import Indexed, LostRecords, Run, find_lost_records, read_run, runs_above
from ascend_dump.reading.sources import Sources
from ascend_dump.steps import Steps, StepsLike
from ascend_dump.storage import located
from ascend_dump.storage.files import files_of_dump, stamp_of

if TYPE_CHECKING:
    import pandas
    import polars

    from ascend_dump.reading._catalog_cache import Watch
    from ascend_dump.reading._provenance import MadeOf, Provenance
    from ascend_dump.statistics import Statistics

__all__ = ["Dump"]


#: The arguments of `select`, for the message about an unknown one.
_OF_SELECT = ("op", "op_type", "step", "rank", "io", "index", "model", "device", "phase", "module", "run", "label")
#: Fields with a fixed set of values, and these values. The most frequent ones are first: messages list them in order.
_VALUES = {"io": ("input", "output", "buffer", "space"), "phase": ("forward", "backward", "other")}


class _Ahead(NamedTuple):
    """Records that `len` has read, and the time. An iteration soon after reuses them; later, files may have changed."""

    records: list[Record]
    at: float


#: `len` stores at most `_MOST_AHEAD` records (some 50 MB), for `_SOON` seconds.
_MOST_AHEAD = 50_000
_SOON = 0.1
#: From this cost of reading on (in lines of an index, see `Entry.work`) a dump is large: about half a second.
#: Importing polars and checking a stored catalog takes half of that.
_LARGE = 50_000
#: Up to this cost `repr` reads the records to count them: some 50 ms.
_QUICK = 5_000


class Dump:
    """The records of a dump in the order in which their operators ran, read lazily.

    Iterating opens files one by one; `select` opens none, except manifests for `label`. A record that cannot be read is
    still listed: its `error` has the reason, and reading its values raises it. `len()` and `bool()` open files.
    `repr()` opens the files of a small dump only; `root` and `known_values()` open none. A Dump is equal only to
    itself.

    >>> for record in ascend_dump.open("dumps").select(op="*conv1*", io="output"):   # doctest: +SKIP
    ...     print(record, record.statistics().max)
    """

    def __init__(
        self,
        root: Path,
        entries: list[Entry],
        queries: tuple[Query, ...] = (),
        marks: Optional[Mapping[str, Mapping[str, Any]]] = None,
        sources: Optional[Sources] = None,
        runs: tuple[Path, ...] = (),
        whole: Optional[list[Entry]] = None,
        rows: tuple[polars.Expr, ...] = (),
        provenance: Optional[Provenance] = None,
    ) -> None:
        self.root = root
        self._entries = entries
        #: All entries of the dump from which this one was selected.
        self._all = entries if whole is None else whole
        self._queries = queries
        self._marks = marks or {}
        self._sources = sources
        self._runs = runs
        #: Predicates on rows of the catalog.
        self._rows = rows
        self._provenance = provenance
        self._ahead: Optional[_Ahead] = None
        #: A random text by which other processes open this dump only once, see `recipe`; None before its first use.
        self._token: Optional[str] = None

    def __iter__(self) -> Iterator[Record]:
        # A generator, because list() calls __len__ after it has created the iterator.
        ahead, self._ahead = self._ahead, None
        if ahead is not None and monotonic() - ahead.at < _SOON:
            yield from ahead.records
        else:
            yield from self._read()

    def _read(self) -> Iterator[Record]:
        for entry, positions in self._positions():
            yield from self._of(entry, positions)

    def _of(self, entry: Entry, positions: Optional[Collection[int]] = None) -> Iterator[Record]:
        records = entry.records() if positions is None else entry.records_at(positions)
        queries = [query for query in self._queries if not query.takes_all_of(entry)]
        if not queries and not self._marks and self._sources is None:
            yield from records
            return
        for record in records:
            if all(query.matches(record) for query in queries):
                if self._marks:
                    record.attrs.update(self._marks.get(record.model or "", {}))
                if self._sources is not None and record.source is None:
                    record.source = self._sources.find(record)
                yield record

    def _positions(self) -> Iterator[tuple[Entry, Optional[Collection[int]]]]:
        """Yield each entry to read, with the positions of its selected records (see `Entry.records_at`); None: all.

        The positions are taken from the catalog. For a `select` only a stored catalog is used: creating one would
        take longer than reading the files. Without a catalog all positions of all entries are read.
        """
        from ascend_dump.reading._catalog_cache import is_kept

        frame = None
        if self._rows:
            frame = self._catalog()
        elif self.is_large and not all(self._takes_all_of(entry) for entry in self._entries) and is_kept(self.root):
            frame = self._catalog(make=False)
        if frame is None:
            yield from ((entry, None) for entry in self._entries)
            return
        from ascend_dump.reading.catalog import ENTRY, PLACE

        rows = frame.select(ENTRY, PLACE).collect().partition_by(ENTRY, maintain_order=True)
        for group in rows:
            # A dict is a set that keeps its order.
            yield self._all[group[ENTRY][0]], dict.fromkeys(group[PLACE].to_list())

    def _takes_all_of(self, entry: Entry) -> bool:
        return all(query.takes_all_of(entry) for query in self._queries)

    @property
    def is_large(self) -> bool:
        """Return True if iterating over all records would be slower than using the columns of a catalog.

        Estimated from file sizes: True from about 50,000 records on. Always False for a single file or without polars.
        """
        from importlib.util import find_spec

        work = 0
        for entry in self._entries:
            work += entry.work
            if work >= _LARGE:
                return self.root.is_dir() and find_spec("polars") is not None
        return False

    @property
    def has_fast_catalog(self) -> bool:
        """Return True if the dump is large, and its catalog is created without a Record per row, as for host dumps."""
        return self.is_large and self._sources is None and all(entry.frames() is not None for entry in self._entries)

    def where(self, *predicates: polars.Expr) -> Dump:
        """Narrow the dump to rows of its catalog. Needs the extra `analyze` (polars).

        Columns of statistics are null if the dump has no recorded statistics, which is the default. If no row is left
        for this reason, reading raises NotSupported.

        >>> dump.where(polars.col("nan") > 0)   # of a dump with data="full"   # doctest: +SKIP
        """
        from ascend_dump.reading.catalog import polars_or_refuse

        polars_or_refuse("where()")
        return self._narrowed(rows=(*self._rows, *predicates))

    def _narrowed(
        self,
        *,
        entries: Optional[list[Entry]] = None,
        queries: Optional[tuple[Query, ...]] = None,
        marks: Optional[Mapping[str, Mapping[str, Any]]] = None,
        rows: Optional[tuple[polars.Expr, ...]] = None,
    ) -> Dump:
        """Return a copy of this dump with some attributes replaced."""
        return Dump(
            self.root,
            self._entries if entries is None else entries,
            self._queries if queries is None else queries,
            self._marks if marks is None else marks,
            self._sources,
            self._runs,
            self._all,
            self._rows if rows is None else rows,
            self._provenance,
        )

    def after_finite_start(self) -> tuple[Dump, int]:
        """Return the dump without the files at its start that have no NaN and Inf, and the number of their operators.

        Files are left out only if the recorded statistics of a host dump show that they have no NaN and Inf. Statistics
        are read from the catalog, so without `has_fast_catalog` the whole dump and 0 are returned.
        """
        if self._rows or self._marks or not self.has_fast_catalog:
            return self, 0
        from ascend_dump.reading._finite_start import finite_start, numbers_of

        frame = self._catalog()
        assert frame is not None, "it is made where none is kept"
        start = finite_start(frame, numbers_of(self._entries, self._all))
        return self._narrowed(entries=self._entries[start.entries :]), start.operators

    def batches(self) -> Iterator[Batch]:
        """Yield the records in order, in batches of one step and rank. A `Batch` may create its records on access.

        Faster than iterating for code that needs only a few records of a large dump.
        """
        as_they_are = not self._marks and self._sources is None
        for entry, positions in self._positions():
            whole = as_they_are and positions is None and self._takes_all_of(entry)
            entry_batches = entry.batches() if whole else None
            if entry_batches is not None:
                yield from entry_batches
                continue
            records_of = self._of(entry, positions)
            for (rank, step), records in groupby(records_of, key=lambda record: (record.rank, record.step)):
                yield Batch(list(records), rank, step)

    def state(self) -> str:
        """Return a digest that changes when a file of the dump or the selection changes.

        It is computed from file names, sizes and times; for an object store from its hashes. If tensors are in other
        files than their records, all files in the directories of the tensors count, also of steps that are not
        selected, because several steps may share a tensor.
        """
        import xxhash

        digest = xxhash.xxh3_128()

        def add(path: str, stamp: str) -> None:
            digest.update(f"{path}\0{stamp}\n".encode("utf-8", "surrogatepass"))

        for entry in self._entries:
            add(entry.path_text, stamp_of(entry.path))
        for top in dict.fromkeys(entry.tensors_below for entry in self._entries):
            for path in () if top is None else files_of_dump(top):
                add(str(path), stamp_of(path))
        digest.update(repr([(dict(query.chosen)) for query in self._queries]).encode("utf-8", "surrogatepass"))
        digest.update(repr((self._marks, [str(row) for row in self._rows])).encode("utf-8", "surrogatepass"))
        return str(digest.hexdigest())

    @property
    def selections(self) -> list[dict[str, Any]]:
        """The arguments of each `select` by which this dump was narrowed."""
        return [{name: value for name, value in query.chosen.items() if value is not None} for query in self._queries]

    @property
    def selection_text(self) -> str:
        """The text of `selections` for messages, such as `step='7', rank='0'`; "" for a whole dump."""
        return ", ".join(f"{name}={value!r}" for selection in self.selections for name, value in selection.items())

    def lost_records(self) -> list[LostRecords]:
        """Return the losses of each run: records that it wrote but that are missing, and missing or short tensor files.

        Reads indexes, and the sizes of the tensor files. The list is empty after a `select`. Runs with an unknown
        number of records are left out: runs of which only a part was opened, incomplete runs, and runs without the
        number in their manifest.
        """
        root = self.root.absolute()
        runs = [] if self._queries else [run for run in self.runs() if root in (run.path, *run.path.parents)]
        read_indexes = self._indexes_of_catalog() if runs else None
        return [lost for run in runs for lost in find_lost_records(run, read_indexes)]

    def _indexes_of_catalog(self) -> Optional[Callable[[Path], Indexed]]:
        """Return a function from a run's directory to the content of its indexes, read from the stored catalog.

        None if there is no stored catalog, or polars is not installed.
        """
        from ascend_dump.dump_format import INDEX_NAMES
        from ascend_dump.reading._catalog_cache import is_kept
        from ascend_dump.reading.catalog import ENTRY, shards_of

        try:
            catalog = self._catalog(make=False) if is_kept(self.root) else None
        except NotSupported:  # polars is not installed
            return None
        if catalog is None:
            return None
        counts = catalog.group_by(ENTRY).len().collect()
        indexes = [(located(self._all[entry].path_text).absolute(), count) for entry, count in counts.iter_rows()]
        indexes = [pair for pair in indexes if pair[0].name in INDEX_NAMES]
        shards = {located(path).absolute(): use for path, use in shards_of(catalog)}

        def below(root: Path) -> Indexed:
            count = sum(count for path, count in indexes if root in path.parents)
            return Indexed(count, {path: use for path, use in shards.items() if root in path.parents})

        return below

    def recipe(self) -> tuple[Any, ...]:
        """Return the arguments of `_opened_again`, to open the same selection in another process."""
        if self._token is None:
            self._token = token_hex(8)
        return self.root.absolute(), self._token, self.selections, dict(self._marks), self._rows

    def marked(self, marks: Mapping[str, Mapping[str, Any]]) -> Dump:
        """Return the same records with additional attributes. marks: by model name, the entries to add to `attrs`."""
        if not marks:
            return self
        return self._narrowed(marks=marks)

    def __len__(self) -> int:
        if self._ahead is not None and monotonic() - self._ahead.at < _SOON:
            return len(self._ahead.records)  # list() of Python 3.9 calls len() twice
        count = 0
        records: list[Record] = []
        for count, record in enumerate(self._read(), 1):
            if count <= _MOST_AHEAD:
                records.append(record)
        # list() calls len() and then iterates at once: the stored records spare it a second pass over the files.
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
        label: Optional[str] = None,
        **unknown: NoReturn,
    ) -> Dump:
        """Narrow the dump. Texts are globs or `re:` patterns, numbers use the step language.

        label: the label of a capture, as in `capture(label=...)`; "" selects the captures without a label

        Raises ConfigError for an invalid pattern or range, and for an `io` or a `phase` that no record can have. A name
        that is possible but not in this dump selects nothing.

        >>> dump.select(op="*conv1*", step="0|3-5", io="output")   # doctest: +SKIP
        """
        for name in unknown:
            names = [*_OF_SELECT]
            guess = "did you mean op=? " if name in ("op_name", "name") else did_you_mean(name, names)
            raise TypeError(f"select() has no argument {name}=; {guess}it has {', '.join(names)}")
        texts = {"op_name": op, "op_type": op_type, "io": io, "model": model, "phase": phase}
        texts.update(module=module, run=run)
        for name, values in _VALUES.items():
            text = texts[name]
            # "" is a possible value too: records that cannot be read have empty texts.
            if text is not None and not any(map(text_matcher(text), (*values, ""))):
                guess = did_you_mean(text, values)
                choices = " or ".join(map(repr, values))
                raise ConfigError(f"{name}={text!r} matches no value of {name}", hint=f"{guess}expected {choices}")
        numbers = {"step": step, "rank": rank, "index": index, "device": device}
        query = Query(
            tuple((name, text_matcher(text)) for name, text in texts.items() if text is not None),
            tuple((name, Steps(value, name=name)) for name, value in numbers.items() if value is not None),
            None if op is None or op.startswith("re:") else text_matcher(loosen_glob(op)),
            {"op": op, **{name: text for name, text in texts.items() if name != "op_name"}, **numbers, "label": label},
        )
        entries = self._entries if label is None else self._labelled(text_matcher(label))
        entries = [entry for entry in entries if query.may_match(entry)]
        return self._narrowed(entries=entries, queries=(*self._queries, query))

    def made_of(self, record: Record) -> MadeOf:
        """Return the operators of the program from which the compiler made the operator of a record.

        They are known only if a text file of the compiled graph is in the dump or beside it: `ge_proto_*_Build.txt` of
        GE, or `dynamo_*_graph_*.py` of torchair. Otherwise the result is empty.
        """
        from ascend_dump.reading._provenance import MadeOf

        return MadeOf() if self._provenance is None else self._provenance.of(record)

    def torchair_graph(self, record: Record) -> Optional[Path]:
        """Return the path of torchair's graph file (`dynamo_*_graph_*.py`) with the operator of a record, or None."""
        return None if self._sources is None else self._sources.graph_of(record)

    def unselected(self) -> Dump:
        """Return the dump that this one was selected from."""
        return self._narrowed(entries=self._all, queries=(), rows=())

    def known_values(self, field: str) -> set[Any]:
        """Return the values of a field that are known from the names of files and directories. Opens no file.

        field: a field of records, such as "rank" or "step". The set contains None if some file's name lacks the value;
        it contains nothing else for fields that are in no name, such as "module".
        """
        if field not in FIELDS and not hasattr(Entry, field):
            raise ConfigError(f"a record has no field {field!r}", hint=f"give one of {', '.join(FIELDS)}")
        return {getattr(entry, field, None) for entry in self._entries}

    @property
    def steps(self) -> list[int]:
        """The steps of the records. Opens files only if a file's name lacks its step, or some records are selected."""
        return self._values("step")

    @property
    def ranks(self) -> list[int]:
        """The ranks of the records; empty if the dump has no ranks. Opens files in the same cases as `steps`."""
        return self._values("rank")

    @property
    def modules(self) -> list[str]:
        """The paths of the modules of the records, in alphabetical order. Opens files."""
        return self._values("module")

    @property
    def labels(self) -> list[str]:
        """The labels of the captures, as in `capture(label=...)`, in the order of their runs. Reads manifests.

        "" stands for captures without a label; a dump without labels returns [""]. `Record.label` is unrelated: it is
        the name of a tensor.
        """
        return list(dict.fromkeys(labels_of(self._entries, self._runs)))

    def _labelled(self, matches: Callable[[str], bool]) -> list[Entry]:
        labels = labels_of(self._entries, self._runs)
        return [entry for entry, label in zip(self._entries, labels) if matches(label)]

    def _values(self, field: str) -> list[Any]:
        known = self.known_values(field)
        if None in known or self._rows or not all(map(self._takes_all_of, self._entries)):
            if self.is_large:
                known = set(self.catalog().select(field).unique().collect()[field])
            else:
                known = {getattr(record, field) for record in self if record.error is None}
        return sorted(known - {None, ""})

    def errors(self) -> list[Record]:
        """Return the records that cannot be read, each with its `error`."""
        return [record for record in self if record.error is not None]

    def runs(self) -> list[Run]:
        """Return the capture runs in this dump, each with its scene and its state (complete or not).

        After a `select`, only runs with a file that may match. Dumps of other tools have no runs.
        """
        runs = self._runs
        if runs and self._queries:
            run_paths = {str(run) for run in runs}
            selected = {
                above
                for directory in {os.path.dirname(entry.path_text) for entry in self._entries}
                for above in run_paths & {directory, *map(str, runs_above(located(directory)))}
            }
            runs = tuple(run for run in runs if str(run) in selected)
        return [run for run in map(read_run, runs) if run is not None]

    @overload
    def __getitem__(self, index: int) -> Record: ...
    @overload
    def __getitem__(self, index: slice) -> list[Record]: ...
    def __getitem__(self, index: Union[int, slice]) -> Union[Record, list[Record]]:
        """Return the record at an index, or a list of the records of a slice. Opens the files up to the last of them.

        Raises IndexError for an index out of range, TypeError for anything but an integer or a slice.
        """
        if isinstance(index, slice):
            if all(end is None or end >= 0 for end in (index.start, index.stop)) and (index.step or 1) > 0:
                return list(islice(self, index.start, index.stop, index.step))
            return list(self)[index]
        if not isinstance(index, int):
            raise TypeError(f"records of a dump have numbers, not {index!r}; select() takes names")
        if index < 0:
            return list(self)[index]
        for record in islice(self, index, None):
            return record
        raise IndexError(f"index {index} is out of range: {self!r} has fewer records")

    def to_frame(self, *, stats: bool = False) -> polars.DataFrame:
        """Return a polars DataFrame with one row per record and one column per field.

        Needs the extra `analyze` (NotSupported).

        stats: add a column per field of `Statistics`. Statistics that were not recorded are computed, which reads the
        tensors. A record without values, or one that cannot be read, has null
        """
        from ascend_dump.reading.catalog import polars_or_refuse

        pl = polars_or_refuse("to_frame()")
        if not stats:
            return self.catalog().select(*FIELDS).collect()
        from ascend_dump.statistics import Statistics

        frame = self.catalog().select(*FIELDS, *Statistics._fields).collect()
        if frame["count"].null_count():
            measured = [_statistics_of(record) for record in self]
            frame = frame.with_columns(
                pl.Series(name, [row and row[position] for row in measured], dtype=frame.schema[name])
                for position, name in enumerate(Statistics._fields)
            )
        return frame

    def to_pandas(self, *, stats: bool = False) -> pandas.DataFrame:
        """`to_frame` as a data frame of pandas. Raises NotSupported where pandas is not installed."""
        try:
            import pandas
        except ImportError:
            raise NotSupported(
                "to_pandas() needs pandas, which is not installed", hint="pip install pandas, or use to_frame()"
            ) from None
        return pandas.DataFrame(self.to_frame(stats=stats).to_dict(as_series=False))

    def catalog(self, *, watch: Watch = None) -> polars.LazyFrame:
        """Return the records as a polars LazyFrame, without reading tensors. Needs the extra `analyze` (NotSupported).

        Its columns are all fields and the error; for dumps in the dump format also the hash, the memory address and the
        recorded statistics. The catalog of a large dump is stored beside the dump or in the user's cache directory,
        readable by its owner only, and created again when a file of the dump changes.

        watch: a function from an iterator of parts (frames) to the same iterator, for a progress display

        >>> dump.catalog().filter(polars.col("nbytes") > 2**30).collect()   # doctest: +SKIP
        """
        from ascend_dump.reading.catalog import COLUMNS

        frame = self._catalog(watch=watch)
        assert frame is not None, "_catalog creates a catalog unless make=False"
        return frame.select(COLUMNS)

    def _catalog(self, *, make: bool = True, watch: Watch = None) -> Optional[polars.LazyFrame]:
        from ascend_dump.reading._catalog_cache import Whole, catalog_of

        whole = Whole(self.root, self._all, self._sources)
        queries = [(query.texts, query.numbers) for query in self._queries]
        frame = catalog_of(whole, self._entries, queries, make=make, watch=watch)
        if frame is None or not self._rows:
            return frame
        from ascend_dump.reading.catalog import filtered

        return filtered(frame, self._rows)

    def __repr__(self) -> str:
        from ascend_dump.dump_format import ranks_text

        counts = [counted(len(self._entries), "file")]
        if sum(entry.work for entry in self._entries) < _QUICK:
            records = list(self)
            operators = {(record.run, record.rank, record.step, record.execution) for record in records}
            counts = [counted(len(operators), "operator"), counted(len(records), "record")]
        values = {"step": self.known_values("step"), "rank": self.known_values("rank")}
        known = {name: known for name, known in values.items() if None not in known and known}
        parts = [f"{name}{'s' * (len(known) > 1)} {ranks_text(sorted(known))}" for name, known in known.items()]
        return f"<Dump {self.root}: {', '.join([*parts, *counts])}>"

    def _repr_html_(self) -> str:
        """Return the first records as a small static table, for notebooks."""
        from ascend_dump.common.html import ROWS, html_table

        names = ("step", "rank", "op_name", "op_type", "io", "index", "dtype", "shape", "nbytes")
        records = list(islice(self, ROWS + 1))
        rows = [[getattr(record, name) for name in names] for record in records[:ROWS]]
        suffix = f", the first {ROWS} records" if len(records) > ROWS else ""
        return html_table(f"{self!r}{suffix}", names, rows)


def _statistics_of(record: Record) -> Optional[Statistics]:
    try:
        return record.statistics()
    except (ReadError, NotSupported):
        return None
