"""Create the catalog of a dump: a polars table with a row per record. No tensor is read.

Every field of Record is a column. After them come the columns that a comparison needs before it reads a tensor:
`error`, the hash, the byte range of the tensor in the hashed bytes, its memory address, and the recorded statistics.
`_catalog_cache` stores large catalogs as Parquet.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from operator import attrgetter
from types import ModuleType
from typing import TYPE_CHECKING, Any, Callable, Optional

from ascend_dump.dump_format import Line, StoredView, view_of
from ascend_dump.errors import AscendDumpError, NotSupported
from ascend_dump.reading._record import FIELDS, Record
from ascend_dump.reading._runs import ShardUse
from ascend_dump.statistics import COUNTS, Statistics

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
    "of_constant",
    "of_records",
    "polars_or_refuse",
    "schema",
    "shards_of",
]

_TEXTS = ("op_type", "op_name", "io", "model", "run", "dtype", "format", "phase", "module", "source", "kernel", "path")
_LISTS = ("shape", "stride", "stored_stride")
_FLOATS = tuple(name for name in Statistics._fields if name not in COUNTS)
#: Attributes of records in the dump format that are columns, with their types: the hash and memory of a tensor, the
#: reasons for missing values (`skipped`, `unmeasured`), and others. `argument` is that of `Record`.
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
#: The columns of a catalog. `attrs` has the remaining attributes as JSON. `placed_on` is the framework's name of the
#: tensor's device, in the dump format only. `nth` numbers the executions of an operator if timestamps cannot.
COLUMNS = (*FIELDS, "error", *_OF_ATTRS, "placed_on", *StoredView._fields, *Statistics._fields, "attrs", "nth")
#: All fields but the last one, the path, which a catalog has as text.
_fields = attrgetter(*FIELDS[:-1])
_NO_VIEW = (None,) * len(StoredView._fields)
_NO_HOST = (None,) * (len(_OF_ATTRS) + 1) + _NO_VIEW
_NO_STATISTICS = (None,) * len(Statistics._fields)
#: The column with the index of the record's file (entry) in the dump.
ENTRY = "entry"
#: The column with the record's position in its file, for `Entry.records_at`.
PLACE = "place"
#: Number of records that are converted to columns at a time.
ROWS = 8_192
#: From this cost of reading on (see `Entry.work`) loading numba takes less time than it saves.
_MANY = 300_000


def polars_or_refuse(what: str) -> ModuleType:
    """Return the module polars. Raises NotSupported if it is not installed. what: the feature, for the message."""
    try:
        import polars
    except ImportError:
        raise NotSupported(
            f"{what} needs polars, which is not installed",
            hint="pip install 'ascend-dump[analyze]', or build your own table from record.to_dict()",
        ) from None
    return polars


@functools.cache
def schema() -> Mapping[str, Any]:
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
    """Return `height` rows of a catalog.

    columns: by name a list or a Series, or one value for all rows. None and missing columns become null.
    """
    import polars as pl

    types = schema()
    series = []
    for name, kind in types.items():
        values = columns.get(name)
        if isinstance(values, pl.Series):
            column = values
        elif isinstance(values, list):
            column = _lists(name, values) if name in _LISTS else _series(name, values, kind)
        elif values is None:
            column = pl.Series(name, [None], dtype=kind).new_from_index(0, height)
        else:
            column = _series(name, [values], kind).new_from_index(0, height)
        series.append(column)
    return pl.DataFrame(series)


def of_constant(name: str, value: Any, height: int) -> polars.Series:
    """Return a column with one value in all rows; None becomes null."""
    column: polars.Series = _series(name, [value], schema()[name]).new_from_index(0, height)
    return column


def _series(name: str, values: list[Any], kind: Any) -> polars.Series:
    import polars as pl

    try:
        return pl.Series(name, values, dtype=kind, strict=True)
    except UnicodeEncodeError:  # names of files may contain bytes that are not UTF-8
        from ascend_dump.dump_format import encodable

        return pl.Series(name, [None if value is None else encodable(value) for value in values], dtype=kind)
    except (TypeError, OverflowError, ValueError, pl.exceptions.PolarsError):
        # A number outside the range of its column's type becomes null. The record still has the number.
        return pl.Series(name, [_fitting(value, kind == pl.Float64) for value in values], dtype=kind, strict=False)


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
    """Return a column of lists of numbers, such as shapes, converting each distinct list only once.

    where: for each row the index of its list in `distinct`
    """
    import polars as pl

    converted = [
        None if values is None or any(not -(2**63) <= size < 2**63 for size in values) else list(values)
        for values in distinct
    ]
    return pl.Series(name, converted, dtype=pl.List(pl.Int64))[pl.Series(where, dtype=pl.UInt32)]


def _lists(name: str, values: list[Any]) -> polars.Series:
    number: dict[Any, int] = {}
    where = [number.setdefault(value, len(number)) for value in values]
    return lists(name, [*number], where)


def frames(
    entries: Iterable[tuple[int, Entry]], complete: Optional[Callable[[Record], None]] = None
) -> Iterator[polars.DataFrame]:
    """Yield the catalog of numbered entries in parts of a few thousand rows.

    complete: changes each record before its row is created. If it is given, `Entry.frames` is not used, because
    `frames` creates no records.
    """
    waiting: list[tuple[Any, ...]] = []
    entries = list(entries)
    is_large = sum(entry.work for _, entry in entries) >= _MANY
    shared: dict[str, Any] = {}
    for number, entry in entries:
        entry_frames = None
        if complete is None:
            entry_frames = entry.frames_after(shared) if is_large else entry.frames()
        if entry_frames is None:
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

        for frame in entry_frames:
            numbers = pl.Series(ENTRY, [number], dtype=pl.UInt32).new_from_index(0, frame.height)
            yield frame.replace_column(frame.get_column_index(ENTRY), numbers)
    if waiting:
        yield _frame(waiting)


def of_records(records: Sequence[Record], positions: Sequence[int]) -> polars.DataFrame:
    """Return catalog rows for records of one file, with their positions in PLACE. ENTRY is 0 and has to be replaced."""
    return _frame([_row(record, 0, position) for record, position in zip(records, positions)])


def _frame(rows: Sequence[tuple[Any, ...]]) -> polars.DataFrame:
    """Convert rows of `_row` to columns. Columns without any value are not converted."""
    columns = zip((*COLUMNS, ENTRY, PLACE), zip(*rows))
    nothing = (None,) * len(rows)
    return of_columns({name: None if values == nothing else list(values) for name, values in columns}, len(rows))


def _row(record: Record, number: int, position: int) -> tuple[Any, ...]:
    """Return the values of COLUMNS, ENTRY and PLACE for a record."""
    attrs = record.attrs
    host: tuple[Any, ...] = _NO_HOST
    if "storage" in attrs and "hash" in attrs:
        attrs = {**attrs, "argument": record.argument}
        view = view_of(record.key) if isinstance(record.key, Line) else _NO_VIEW
        host = (*[attrs.pop(name, None) for name in (*_OF_ATTRS, "device")], *view)
    return (
        *_fields(record),
        str(record.path),
        None if record.error is None else str(record.error),
        *host,
        *(_statistics(record) or _NO_STATISTICS),
        json.dumps(attrs, default=str) if attrs else None,
        record.execution[-1],
        number,
        position,
    )


def _statistics(record: Record) -> Optional[Statistics]:
    """Return the recorded statistics of a record; None if it has none. Statistics are never computed here."""
    try:
        return record.recorded_statistics()
    except AscendDumpError:
        return None


def narrowed(
    frame: polars.LazyFrame,
    texts: Sequence[tuple[str, Callable[[str], bool]]],
    numbers: Sequence[tuple[str, Steps]],
) -> polars.LazyFrame:
    """Return the rows that match all tests of a `select`, and unreadable records that no known field excludes."""
    import polars as pl

    broken = pl.col("error").is_not_null()
    for name, test in texts:
        values = frame.select(pl.col(name).unique()).collect()[name].to_list()
        selected = _is_in(pl.col(name), [value for value in values if test(value or "")])
        frame = frame.filter(selected | (broken & pl.col(name).fill_null("").eq("")))
    for name, steps in numbers:
        values = frame.select(pl.col(name).unique()).collect()[name].to_list()
        selected = _is_in(pl.col(name), [value for value in values if value in steps])
        unknown = pl.col(name).is_null()
        if name == "index":
            unknown = unknown | pl.col("io").eq("")
        frame = frame.filter(selected | (broken & unknown))
    return frame


def filtered(frame: polars.LazyFrame, rows: Sequence[polars.Expr]) -> polars.LazyFrame:
    """Return the rows for which all expressions are true.

    Raises NotSupported if the result is empty because the dump recorded no statistics: an expression uses a column of
    statistics that is null in all rows, although some tensor has elements. An empty result would look like an answer.
    """
    import polars as pl

    selected = frame.filter(*rows)
    named = {name for row in rows if isinstance(row, pl.Expr) for name in row.meta.root_names()}
    used = [name for name in Statistics._fields if name in named]
    if not used or selected.head(1).collect().height:
        return selected
    # Tensors that could have a value in these columns: a tensor without elements, or only with NaN, has none.
    countable = pl.col("error").is_null() & (pl.col("count").is_null() | (pl.col("count") > pl.col("nan").fill_null(0)))
    count, *counts = frame.select(countable.sum(), *(pl.col(name).count() for name in used)).collect().row(0)
    missing = [name for name, number in zip(used, counts) if not number]
    if count and missing:
        raise NotSupported(
            f"where() uses {', '.join(missing)}, which no record of the selection has: the dump recorded no such "
            "statistics",
            hint="record with data='full', or filter `to_frame(stats=True)`, which computes them from the tensors",
        )
    return selected


def shards_of(frame: polars.LazyFrame) -> Iterator[tuple[str, ShardUse]]:
    """Yield the path of each shard (file of tensors) that records refer to, and its use."""
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


def _is_in(column: polars.Expr, values: list[Any]) -> polars.Expr:
    present = [value for value in values if value is not None]
    condition = column.is_in(present) if present else column.is_not_null() & False
    condition = condition.fill_null(False)
    return condition | column.is_null() if len(present) < len(values) else condition
