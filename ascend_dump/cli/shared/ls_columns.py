"""The operators of a large dump for `ls`, computed from the columns of its catalog.

Only unreadable rows are converted to records, since that is slow.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from ascend_dump.cli.shared.ls_groups import Group, Head
from ascend_dump.cli.shared.reading import Unreadable, progress

if TYPE_CHECKING:
    import polars

    from ascend_dump.reading import Dump, Record

__all__ = ["groups"]

#: The columns that all records of one run of an operator have in common, as in `Record.execution`.
_EXECUTION = ("run", "rank", "device", "model", "model_id", "step", "op_type", "op_name")
_TASK = ("task_id", "stream_id", "timestamp")
_NEEDED = (*_EXECUTION, *_TASK, "nth", "kernel", "io", "dtype", "shape", "nbytes", "error")
#: Number of rows that are in memory at the same time.
_ROWS = 500_000
_LOW = (1 << 32) - 1


def groups(dump: Dump, unreadable: Unreadable) -> Iterator[Group]:
    """Yield the operators in execution order. unreadable: the counter to which all records are added."""
    import polars as pl

    frame = dump.catalog(watch=lambda parts: progress(parts, "records", len)).select(_NEEDED)
    failed = pl.col("error").is_not_null()
    unreadable_records: Iterator[Record] = iter(())
    if frame.select(failed.any()).collect().item():
        # Read as records, because a record has its error, and the columns only say that there is an error.
        unreadable_records = unreadable.watch(dump.where(failed))
    begin, count = 0, _ROWS
    while True:
        rows = _numbered(frame.slice(begin, count).collect())
        if rows.height == count:
            # The last group may continue in the next rows, so it is left for the next round.
            rows = rows.filter(pl.col("group").ne(pl.col("group").last()))
            if not rows.height:
                count *= 2
                continue
        elif not rows.height:
            return
        unreadable.seen += rows["error"].null_count()
        yield from _groups(rows, unreadable_records)
        begin, count = begin + rows.height, _ROWS


def _numbered(rows: polars.DataFrame) -> polars.DataFrame:
    """Add the columns `row` (number of the row) and `group` (number of the operator run)."""
    import polars as pl

    task = [pl.when(pl.col("nth").is_null()).then(pl.col(name)) for name in _TASK]
    nameless = pl.col("error").is_not_null() & pl.col("op_name").eq("")
    keys = [*map(pl.col, _EXECUTION), *task, pl.col("nth"), pl.when(nameless).then(pl.col("row"))]
    begins = pl.any_horizontal(key.ne_missing(key.shift(1)) for key in keys)
    return rows.with_row_index("row").with_columns(begins.cum_sum().alias("group"))


def _groups(rows: polars.DataFrame, unreadable_records: Iterator[Record]) -> Iterator[Group]:
    import polars as pl

    failed = dict(zip(rows.filter(pl.col("error").is_not_null())["row"], unreadable_records))
    output = pl.col("io").eq("output")
    aggregated = rows.group_by("group", maintain_order=True).agg(
        pl.coalesce(pl.col("row").filter(output).first(), pl.col("row").first()).alias("first"),
        pl.col("io").eq("input").sum().alias("inputs"),
        output.sum().alias("outputs"),
        pl.col("dtype").filter(pl.col("dtype").ne("")).unique(maintain_order=True).alias("types"),
        # The upper and lower halves are summed separately, because the sum may need more than 64 bits.
        (pl.col("nbytes") // (_LOW + 1)).sum().alias("high"),
        (pl.col("nbytes") & _LOW).sum().alias("low"),
        pl.len().alias("records"),
        pl.col("error").count().alias("failed"),
    )
    names = [name for name in Head._fields if name != "error"]
    firsts = rows.select(names)[aggregated["first"]].iter_rows()
    for head, (_, first, inputs, outputs, types, high, low, records, lost) in zip(firsts, aggregated.iter_rows()):
        size = (high << 32) + low
        yield Group(failed.get(first) or Head(*head), inputs, outputs, types, size, records, lost)
