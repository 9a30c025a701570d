"""The operators of a large dump, for `ls`, from the columns of its catalog: only unreadable rows become records."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from ascend_dump.cli.shared.ls_groups import Group, Head
from ascend_dump.cli.shared.reading import Unreadable, progress

if TYPE_CHECKING:
    import polars

    from ascend_dump.reading import Dump, Record

__all__ = ["groups"]

#: The common fields of the records of one run of an operator: `Record.execution`.
_PLACE = ("run", "rank", "device", "model", "model_id", "step", "op_type", "op_name")
_TASK = ("task_id", "stream_id", "timestamp")
_NEEDED = (*_PLACE, *_TASK, "nth", "kernel", "io", "dtype", "shape", "nbytes", "error")
#: Rows in memory at once.
_ROWS = 500_000
_LOW = (1 << 32) - 1


def groups(dump: Dump, unreadable: Unreadable) -> Iterator[Group]:
    """Yield the operators in the order of execution. unreadable: counts all records, and unreadable records."""
    import polars as pl

    frame = dump.catalog(watch=lambda parts: progress(parts, "records", len)).select(_NEEDED)
    failed = pl.col("error").is_not_null()
    broken: Iterator[Record] = iter(())
    if frame.select(failed.any()).collect().item():
        # An unreadable record contains more than its columns.
        broken = unreadable.watch(dump.where(failed))
    begin, count = 0, _ROWS
    while True:
        rows = _numbered(frame.slice(begin, count).collect())
        if rows.height == count:
            # The last group may go on.
            rows = rows.filter(pl.col("group").ne(pl.col("group").last()))
            if not rows.height:
                count *= 2
                continue
        elif not rows.height:
            return
        unreadable.seen += rows["error"].null_count()
        yield from _groups(rows, broken)
        begin, count = begin + rows.height, _ROWS


def _numbered(rows: polars.DataFrame) -> polars.DataFrame:
    """Return the rows with the columns `row` and `group`."""
    import polars as pl

    task = [pl.when(pl.col("nth").is_null()).then(pl.col(name)) for name in _TASK]
    nameless = pl.col("error").is_not_null() & pl.col("op_name").eq("")
    keys = [*map(pl.col, _PLACE), *task, pl.col("nth"), pl.when(nameless).then(pl.col("row"))]
    begins = pl.any_horizontal(key.ne_missing(key.shift(1)) for key in keys)
    return rows.with_row_index("row").with_columns(begins.cum_sum().alias("group"))


def _groups(rows: polars.DataFrame, broken: Iterator[Record]) -> Iterator[Group]:
    import polars as pl

    failed = dict(zip(rows.filter(pl.col("error").is_not_null())["row"], broken))
    output = pl.col("io").eq("output")
    aggregated = rows.group_by("group", maintain_order=True).agg(
        pl.coalesce(pl.col("row").filter(output).first(), pl.col("row").first()).alias("first"),
        pl.col("io").eq("input").sum().alias("inputs"),
        output.sum().alias("outputs"),
        pl.col("dtype").filter(pl.col("dtype").ne("")).unique(maintain_order=True).alias("types"),
        # In halves: the sum may need more than 64 bits.
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
