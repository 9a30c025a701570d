"""The records of a dump as columns, made in one pass and without reading a tensor. Polars is the engine.

Every field of Record is a column, and after them what a comparison needs to know before it reads anything: `error`,
the hash and where in the bytes that it is of the tensor lies, the place in memory, and the statistics that the dump
recorded. `_catalog_cache` keeps large ones as Parquet.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from operator import attrgetter
from types import ModuleType
from typing import TYPE_CHECKING, Any, Callable, Optional

from ascend_dump.dump_format import Line, StoredView, view_of
from ascend_dump.errors import AscendDumpError, NotSupported
from ascend_dump.reading._record import FIELDS, Record
from ascend_dump.reading._runs import ShardUse
from ascend_dump.statistics import Statistics

if TYPE_CHECKING:
    import polars

    from ascend_dump.reading._dialect import Entry
    from ascend_dump.steps import Steps

__all__ = [
    "COLUMNS",
    "ENTRY",
    "PLACE",
    "ROWS",
    "filtered",
    "frames",
    "lists",
    "narrowed",
    "of_columns",
    "of_records",
    "polars_or_refuse",
    "schema",
    "shards_of",
]

_TEXTS = ("op_type", "op_name", "io", "model", "run", "dtype", "format", "phase", "module", "source", "path")
_LISTS = ("shape", "stride", "stored_stride")
_FLOATS = ("max", "min", "mean", "l2norm")
#: What host dumps tell of the place of a tensor in memory, and of why something is missing.
_OF_ATTRS = {
    "seq": "Int64",
    "hash": "String",
    "stride": "List",
    "storage_offset": "Int64",
    "storage": "Int64",
    "address": "UInt64",
    "storage_nbytes": "Int64",
    "version": "Int64",
    "skipped": "String",
    "unmeasured": "String",
    "origin": "Boolean",
    "argument": "String",
}
#: `attrs` has what only one dialect knows, as JSON; `placed_on` is the framework's name of the device of a host tensor;
#: `nth` tells the runs of an operator apart where timestamps do not.
COLUMNS = (*FIELDS, "error", *_OF_ATTRS, "placed_on", *StoredView._fields, *Statistics._fields, "attrs", "nth")
#: The path, which comes last of the fields, is a text in a catalog.
_fields = attrgetter(*FIELDS[:-1])
_NO_VIEW = (None,) * len(StoredView._fields)
_NO_HOST = (None,) * (len(_OF_ATTRS) + 1) + _NO_VIEW
_NO_STATISTICS = (None,) * len(Statistics._fields)
#: The number of the file among those of the dump: a selection by names of files is one by these numbers.
ENTRY = "entry"
#: Where in its file a record is, for `Entry.records_at`.
PLACE = "place"
#: Records that are turned into columns together.
ROWS = 8_192


def polars_or_refuse(what: str) -> ModuleType:
    """Polars. Raises NotSupported with what to install where it is missing."""
    try:
        import polars
    except ImportError:
        raise NotSupported(
            f"{what} needs polars, which is not installed",
            hint="pip install 'ascend-dump[analyze]', or build your own table from record.to_dict()",
        ) from None
    return polars


def schema() -> dict[str, Any]:
    """Return the type of each column."""
    import polars as pl

    types: dict[str, Any] = {}
    for name in COLUMNS:
        kind = _OF_ATTRS.get(name, "")
        if name in _LISTS:
            types[name] = pl.List(pl.Int64)
        elif name in _TEXTS or kind == "String" or name in ("error", "placed_on", "attrs"):
            types[name] = pl.Utf8
        elif name in _FLOATS:
            types[name] = pl.Float64
        elif kind in ("Boolean", "UInt64"):
            types[name] = getattr(pl, kind)
        else:
            types[name] = pl.Int64
    types[ENTRY] = pl.UInt32
    types[PLACE] = pl.Int64
    return types


def of_columns(columns: Mapping[str, Any], height: int) -> polars.DataFrame:
    """Return a part of a catalog from the values of each column: a list or a Series, or one value for all rows; None:
    null."""
    import polars as pl

    types = schema()
    series = []
    for name, kind in types.items():
        values = columns.get(name)
        if isinstance(values, pl.Series):
            made = values
        elif isinstance(values, list):
            made = _lists(name, values) if name in _LISTS else _series(name, values, kind)
        elif values is None:
            made = pl.Series(name, [None], dtype=kind).new_from_index(0, height)
        else:
            made = _series(name, [values], kind).new_from_index(0, height)
        series.append(made)
    return pl.DataFrame(series)


def _series(name: str, values: list[Any], kind: Any) -> polars.Series:
    import polars as pl

    try:
        return pl.Series(name, values, dtype=kind, strict=True)
    except UnicodeEncodeError:  # names of files may come with undecodable bytes in them
        from ascend_dump.dump_format import encodable

        return pl.Series(name, [None if one is None else encodable(one) for one in values], dtype=kind)
    except (TypeError, OverflowError, ValueError, pl.exceptions.PolarsError):
        # A number that no column can hold is null in it; the record still has it.
        return pl.Series(name, [_fitting(one, kind == pl.Float64) for one in values], dtype=kind, strict=False)


def _fitting(value: Any, real: bool) -> Any:
    if not isinstance(value, (int, float)) or isinstance(value, bool):
        return value
    if real:
        try:
            return float(value)
        except OverflowError:
            return None
    return value if -(2**63) <= value < 2**64 else None


def lists(name: str, distinct: Sequence[Optional[Sequence[int]]], where: Sequence[int]) -> polars.Series:
    """Return a column of lists of numbers, which repeat: each distinct one is converted once.

    where: of each row which one it has
    """
    import polars as pl

    made = [None if one is None or any(not -(2**63) <= size < 2**63 for size in one) else list(one) for one in distinct]
    return pl.Series(name, made, dtype=pl.List(pl.Int64))[pl.Series(where, dtype=pl.UInt32)]


def _lists(name: str, values: list[Any]) -> polars.Series:
    number: dict[Any, int] = {}
    where = [number.setdefault(value, len(number)) for value in values]
    return lists(name, [*number], where)


def frames(
    entries: Iterable[tuple[int, Entry]], complete: Optional[Callable[[Record], None]] = None
) -> Iterator[polars.DataFrame]:
    """Yield the records of numbered entries as columns, some thousand rows at a time.

    complete: what is to be done to each record before; then all entries are read by records.
    """
    waiting: list[tuple[Any, ...]] = []
    for number, entry in entries:
        made = entry.frames() if complete is None else None
        if made is None:
            for ordinal, record in enumerate(entry.records(), 1):
                if complete is not None:
                    complete(record)
                waiting.append(_row(record, number, -ordinal))
                if len(waiting) >= ROWS:
                    yield _frame(waiting)
                    waiting = []
            continue
        if waiting:
            yield _frame(waiting)
            waiting = []
        import polars as pl

        for frame in made:
            numbers = pl.Series(ENTRY, [number], dtype=pl.UInt32).new_from_index(0, frame.height)
            yield frame.replace_column(frame.get_column_index(ENTRY), numbers)
    if waiting:
        yield _frame(waiting)


def of_records(records: Sequence[Record], places: Sequence[int]) -> polars.DataFrame:
    """Some records of one file and their places in it as columns, without the number of that file."""
    return _frame([_row(record, 0, place) for record, place in zip(records, places)])


def _frame(rows: Sequence[tuple[Any, ...]]) -> polars.DataFrame:
    """Rows of `_row` as columns; a column without a value costs nothing more."""
    columns = zip((*COLUMNS, ENTRY, PLACE), zip(*rows))
    nothing = (None,) * len(rows)
    return of_columns({name: None if values == nothing else list(values) for name, values in columns}, len(rows))


def _row(record: Record, number: int, place: int) -> tuple[Any, ...]:
    """Return the values of COLUMNS, the number of the file, and the place in it."""
    others = record.attrs
    host: tuple[Any, ...] = _NO_HOST
    if "storage" in others and "hash" in others:
        others = dict(others)
        view = view_of(record.key) if isinstance(record.key, Line) else _NO_VIEW
        host = (*[others.pop(name, None) for name in (*_OF_ATTRS, "device")], *view)
    return (
        *_fields(record),
        str(record.path),
        None if record.error is None else str(record.error),
        *host,
        *(_statistics(record) or _NO_STATISTICS),
        json.dumps(others, default=str) if others else None,
        record.execution[-1],
        number,
        place,
    )


def _statistics(record: Record) -> Optional[Statistics]:
    """Those that the dump holds; none are computed."""
    try:
        return record.recorded_statistics()
    except AscendDumpError:
        return None


def narrowed(
    frame: polars.LazyFrame,
    texts: Sequence[tuple[str, Callable[[str], bool]]],
    numbers: Sequence[tuple[str, Steps]],
) -> polars.LazyFrame:
    """Return the rows that a selection keeps. A broken record stays unless what is known of it rules it out."""
    import polars as pl

    broken = pl.col("error").is_not_null()
    for name, test in texts:
        values = frame.select(pl.col(name).unique()).collect()[name].to_list()
        kept = _one_of(pl.col(name), [value for value in values if test(value or "")])
        frame = frame.filter(kept | (broken & pl.col(name).fill_null("").eq("")))
    for name, steps in numbers:
        values = frame.select(pl.col(name).unique()).collect()[name].to_list()
        kept = _one_of(pl.col(name), [value for value in values if value in steps])
        unknown = pl.col(name).is_null()
        if name == "index":
            unknown = unknown | pl.col("io").eq("")
        frame = frame.filter(kept | (broken & unknown))
    return frame


def filtered(frame: polars.LazyFrame, rows: Sequence[polars.Expr]) -> polars.LazyFrame:
    """Return the rows for which all expressions hold.

    Raises NotSupported where none is left and a column of statistics that they use is null in all rows, although there
    are elements to count: nothing was computed, which looks as if nothing were found.
    """
    import polars as pl

    found = frame.filter(*rows)
    named = {name for row in rows if isinstance(row, pl.Expr) for name in row.meta.root_names()}
    used = [name for name in Statistics._fields if name in named]
    if not used or found.head(1).collect().height:
        return found
    # Where all elements are NaN there is no largest one; of no elements nothing is known.
    told = pl.col("error").is_null() & (pl.col("count").is_null() | (pl.col("count") > pl.col("nan").fill_null(0)))
    count, *known = frame.select(told.sum(), *(pl.col(name).count() for name in used)).collect().row(0)
    missing = [name for name, number in zip(used, known) if not number]
    if count and missing:
        raise NotSupported(
            f"where() uses {', '.join(missing)}, which no record of the selection has: the dump recorded no such "
            "statistics",
            hint="record with data='full', or filter `to_frame(stats=True)`, which computes them from the tensors",
        )
    return found


def shards_of(frame: polars.LazyFrame) -> Iterator[tuple[str, ShardUse]]:
    """Yield the paths of shards that records refer to, and what the records tell of each."""
    import polars as pl

    end = (pl.col("blob") + pl.col("blob_nbytes")).alias("end")
    stored = frame.filter(pl.col("blob").is_not_null() & pl.col("error").is_null()).select("path", end)

    def use_of(path: str, records: int, last: int) -> ShardUse:
        def behind(size: int) -> int:
            ends = stored.filter((pl.col("path") == path) & (pl.col("end") > size))
            return int(ends.select(pl.len()).collect().item())

        return ShardUse(records, last, behind)

    for path, records, last in stored.group_by("path").agg(pl.len(), pl.col("end").max()).collect().iter_rows():
        yield path, use_of(path, records, last)


def _one_of(column: polars.Expr, values: list[Any]) -> polars.Expr:
    known = [value for value in values if value is not None]
    found = column.is_in(known) if known else column.is_not_null() & False
    found = found.fill_null(False)
    return found | column.is_null() if len(known) < len(values) else found
