"""The rows of `stats` for a large dump, from the columns of its catalog.

Only tensors whose statistics the columns do not have exactly are records too, since that is slow.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Optional

from ascend_dump.cli.shared.reading import Unreadable, progress
from ascend_dump.report.column_rows import ColumnRows, shape, text
from ascend_dump.report.tables import TableRows, number
from ascend_dump.statistics import COUNTS, TABLE

if TYPE_CHECKING:
    import polars

    from ascend_dump.reading import Dump, Record
    from ascend_dump.report.tables import Column

__all__ = ["are_in_columns", "candidates", "cells", "tensor_rows"]

#: Statistics that each dump has, and those that it has only if they were requested.
_ALWAYS = ("count", *(entry.name for entry in TABLE if entry.heading and not entry.is_optional))
_OPTIONAL = tuple(entry.name for entry in TABLE if entry.heading and entry.is_optional)
_NEEDED = ("op_name", "op_type", "io", "index", "argument", "attrs", "dtype", "shape", "kernel", "error")
_LEADING = ("run", "rank", "model", "step")
#: From this number on a float is written with an exponent, and an integer in full.
_EXPONENT = 999_999.5
#: Number of rows that are in memory at the same time.
_ROWS = 100_000
#: If more tensors than this share need a record, all records are read instead.
_MOST_RECORDS = 0.2


def candidates(dump: Dump, *, nonfinite: bool, sort: Optional[str], limit: int) -> tuple[Dump, int]:
    """Return the part of the dump that may be listed, and the number of records outside of this part.

    The part contains all records without recorded statistics, because their statistics have to be computed.

    nonfinite  True if only tensors with NaN or Inf are listed
    sort       the column by which tensors are sorted, or None
    limit      with `sort`: number of tensors that are listed; 0: all
    """
    import polars as pl

    frame = dump.catalog(watch=lambda parts: progress(parts, "records", len))
    unknown = pl.col("count").is_null() | pl.col("error").is_not_null()
    filters = [unknown | _is_nonfinite()] if nonfinite else []
    if sort and limit:
        value = pl.col(sort).cast(pl.Float64)
        measured = frame.filter(~unknown, value.is_not_null() & ~value.is_nan(), *filters)
        largest = measured.select(value.top_k(limit).alias("value")).collect()["value"]
        if len(largest) == limit:
            filters.append(unknown | value.is_nan() | value.ge(largest.min()))
    if not filters:
        return dump, 0
    count = pl.len()
    selected = frame.filter(*filters).select(count).collect().item()
    return dump.where(*filters), frame.select(count).collect().item() - selected


def _is_nonfinite() -> polars.Expr:
    """Return an expression that is True for records with NaN or Inf in their recorded statistics.

    It has to agree with the function `is_nonfinite` for statistics.
    """
    import polars as pl

    counts = [pl.col(name) for name in ("nan", "posinf", "neginf")]
    counted = pl.any_horizontal(count.is_not_null() for count in counts)
    computed = pl.any_horizontal(~pl.col(name).is_finite().fill_null(True) for name in ("max", "min", "mean"))
    return pl.when(counted).then(pl.any_horizontal(count.fill_null(0).ne(0) for count in counts)).otherwise(computed)


def are_in_columns(dump: Dump) -> bool:
    """Return True if the catalog of a dump is made quickly, and has the statistics of most tensors."""
    import polars as pl

    if not dump.has_fast_catalog:
        return False
    frame = dump.catalog(watch=lambda parts: progress(parts, "tensors", len))
    count, records = frame.select(pl.len(), _needs_record().sum()).collect().row(0)
    return bool(records <= _MOST_RECORDS * count)


def _needs_record() -> polars.Expr:
    """Return an expression that is True for tensors whose columns do not have all that a line says of them.

    These are unreadable records, and tensors without statistics. Columns have floats only, so large integers are among
    them too: these are written with all digits.
    """
    import polars as pl

    def may_be_integer(name: str) -> polars.Expr:
        value = pl.col(name)
        return (value.abs().ge(_EXPONENT) & value.eq(value.round(0))).fill_null(False)

    missing = [pl.col(name).is_null() for name in _ALWAYS] + [pl.col(name).eq("") for name in ("op_name", "io")]
    floats = [name for name in (*_ALWAYS, *_OPTIONAL) if name not in COUNTS]
    return pl.any_horizontal(pl.col("error").is_not_null(), *missing, *map(may_be_integer, floats))


def tensor_rows(dump: Dump, unreadable: Unreadable, are_shown: polars.Expr) -> Iterator[ColumnRows]:
    """Yield the tensors in order. unreadable: the counter to which all records are added.

    Rows with a record are those for which `_needs_record` is true and that are shown, see `Folding.are_shown`.
    """
    import polars as pl

    needs_record = _needs_record() & are_shown
    frame = dump.catalog().with_columns(needs_record.alias("needs_record"))
    frame = frame.select(*_LEADING, *_NEEDED, *_ALWAYS, *_OPTIONAL, "needs_record")
    records: Iterator[Record] = iter(())
    if frame.select(pl.col("needs_record").any()).collect().item():
        records = unreadable.watch(dump.where(needs_record))
    begin = 0
    while True:
        rows = frame.slice(begin, _ROWS).collect()
        if not rows.height:
            return
        numbers = rows["needs_record"].arg_true().to_list()
        unreadable.seen += rows.height - len(numbers)
        yield ColumnRows(rows, dict(zip(numbers, records)))
        begin += rows.height


def cells(
    rows: ColumnRows,
    lead: Sequence[Column],
    argument: Sequence[Column],
    names: Collection[str],
    of_records: Mapping[int, Sequence[str]],
) -> TableRows:
    """Return the cells of the lines. names: statistics; of_records: by row the cells of the lines with a record"""
    import polars as pl

    texts = {
        **{f"leading {column.name}": text(pl.col(column.name)) for column in lead},
        **{name: text(pl.col(name)) for name in ("op_name", "io", "index")},
        **{column.name: text(pl.col("argument")) for column in argument},
        "dtype": text(pl.col("dtype")),
        "shape": shape(pl.col("shape")),
    }
    frame = rows.frame
    columns = {name: column.to_list() for name, column in frame.select(**texts).to_dict().items()}
    if argument:
        parameters = {attrs: _parameter(attrs) for attrs in frame["attrs"].unique()}
        behind = map(parameters.__getitem__, frame["attrs"].to_list())
        columns[argument[0].name] = [name + more for name, more in zip(columns[argument[0].name], behind)]
    for name in names:
        numbers: dict[Any, str] = _CountTexts() if name in COUNTS else _FloatTexts()
        columns[name] = list(map(numbers.__getitem__, frame[name].to_list()))
    for row, line in of_records.items():
        for column, cell in zip(columns.values(), line):
            column[row] = cell
    return TableRows(list(columns.values()))


class _CountTexts(dict[Optional[int], str]):
    """The texts of distinct counts."""

    def __missing__(self, value: Optional[int]) -> str:
        self[value] = written = number(value)
        return written


class _FloatTexts(dict[Optional[float], str]):
    """The texts of distinct numbers. 0.0 and -0.0 are equal, but their texts differ, so they are not kept."""

    def __missing__(self, value: Optional[float]) -> str:
        written = "-" if value is None else f"{value:.6g}"
        if value != 0:
            self[value] = written
        return written


def _parameter(attrs: Optional[str]) -> str:
    """Return the end of the text of an argument, see `argument_text`. attrs: the column of a catalog"""
    fields: dict[str, Any] = {} if attrs is None else json.loads(attrs)
    return f" ({fields['parameter']})" if fields.get("parameter") else ""
