"""The operators of a large dump for `ls`, computed from the columns of its catalog.

Cells and totals are computed column by column. Only unreadable rows are converted to records, since that is slow.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Optional

from ascend_dump.cli.shared.ls_groups import RunLabels
from ascend_dump.cli.shared.reading import Unreadable, progress
from ascend_dump.report.column_rows import ColumnRows, shape, text
from ascend_dump.report.tables import TableRows

if TYPE_CHECKING:
    import polars

    from ascend_dump.reading import Dump, Record
    from ascend_dump.report.tables import Column

__all__ = ["cells", "nbytes_of", "operator_rows"]

#: The columns that all records of one run of an operator have in common, as in `Record.execution`.
_STEP = ("run", "rank", "device", "model", "model_id", "step")
_EXECUTION = (*_STEP, "op_type", "op_name")
_TASK = ("task_id", "stream_id", "timestamp")
_NEEDED = (*_EXECUTION, *_TASK, "nth", "kernel", "io", "dtype", "shape", "nbytes", "error")
#: Number of rows that are in memory at the same time.
_ROWS = 250_000
#: Average number of rows from which on steps are compared with each other.
_LARGE_STEP = 500
_LOW = (1 << 32) - 1
#: The columns of the first output of an operator, or of its first record, that a line shows.
_OF_FIRST = ("op_name", "op_type", "step", "run", "rank", "model", "shape", "kernel")


def cells(rows: ColumnRows, lead: Sequence[Column], labels: RunLabels) -> TableRows:
    """Return the cells of the lines: those of `labels` and `lead`, then name, type, counts, types, shape, bytes."""
    import polars as pl

    texts = {
        **{column.name: text(pl.col(column.name)) for column in lead},
        "op_name": text(pl.col("op_name")),
        "op_type": text(pl.col("op_type")),
        "inputs": text(pl.col("inputs")),
        "outputs": text(pl.col("outputs")),
        "types": text(pl.col("types").list.join(",")),
        "shape": shape(pl.col("shape")),
    }
    columns = {name: column.to_list() for name, column in rows.frame.select(**texts).to_dict().items()}
    sizes = zip(rows.frame["high"].to_list(), rows.frame["low"].to_list())
    columns["bytes"] = [str((high << 32) + low) for high, low in sizes]
    for row, record in rows.records.items():
        assert record.error is not None, "only records that cannot be read are among them"
        columns["op_name"][row] = record.op_name or record.path.name
        columns["op_type"][row] = f"unreadable [{record.error.code}]"
    label = [labels.of_runs(rows.frame["run"].to_list())] if labels.paths else []
    steps = ["-" if step is None else str(step) for step in rows.steps]
    return TableRows([*label, *columns.values()], steps, len(label) + list(columns).index("step"))


def nbytes_of(rows: ColumnRows) -> int:
    """Return the bytes of all tensors of the operators."""
    high, low = rows.frame["high"].sum(), rows.frame["low"].sum()
    return (int(high) << 32) + int(low)


def operator_rows(dump: Dump, unreadable: Unreadable) -> Iterator[ColumnRows]:
    """Yield the operators in execution order. unreadable: the counter to which all records are added.

    A row per run of an operator has the columns of its first output, or of its first record if it has no output. After
    them come `inputs` and `outputs`, `types` (the different dtypes), `records` and `failed` (unreadable records), and
    the bytes of its tensors, divided by 2**32 as `high` and the remainder as `low`, because a sum may need more than 64
    bits. Rows with a record are those whose first output or first record cannot be read.
    """
    import polars as pl

    frame = dump.catalog(watch=lambda parts: progress(parts, "records", len)).select(_NEEDED)
    failed = pl.col("error").is_not_null()
    unreadable_records: Iterator[Record] = iter(())
    if frame.select(failed.any()).collect().item():
        # Read as records, because a record has its error, and the columns only say that there is an error.
        unreadable_records = unreadable.watch(dump.where(failed))
    begin, count = 0, _ROWS
    while True:
        part = frame.slice(begin, count).collect()
        repeated = _repeated(part, is_last=part.height < count)
        if repeated:
            for rows, steps in repeated:
                unreadable.seen += rows.height * len(steps)
                begin += rows.height * len(steps)
                yield _grouped(_numbered(rows), unreadable_records)._replace(steps=steps)
            continue
        rows = _numbered(part)
        if rows.height == count:
            # The last group may continue in the next rows, so it is left for the next round.
            rows = rows.filter(pl.col("group").ne(pl.col("group").last()))
            if not rows.height:
                count *= 2
                continue
        elif not rows.height:
            return
        unreadable.seen += rows["error"].null_count()
        yield _grouped(rows, unreadable_records)
        begin, count = begin + rows.height, _ROWS


def _repeated(rows: polars.DataFrame, *, is_last: bool) -> list[tuple[polars.DataFrame, list[Optional[int]]]]:
    """Divide rows by their steps, and return the rows of each step that differ from those of the step before.

    Each item has these rows, and the steps that have them. Empty if a row cannot be read, if operators are not
    numbered, and for steps of a few rows. is_last: True if no rows follow; otherwise the last step, whose rows may not
    be complete, is left out.
    """
    import polars as pl

    begins = rows.select(pl.any_horizontal(pl.col(name).ne_missing(pl.col(name).shift(1)) for name in _STEP))
    # Without a row above, the first one differs from null, unless it has null in all of these columns.
    firsts = [0, *(first for first in begins.to_series().arg_true().to_list() if first)]
    ends = [*firsts[1:], rows.height] if is_last else firsts[1:]
    is_simple = not rows["error"].count() and not rows["nth"].null_count()
    if not ends or not rows.height or not is_simple or ends[-1] < _LARGE_STEP * len(ends):
        return []
    items: list[tuple[polars.DataFrame, list[Optional[int]]]] = []
    above: Optional[polars.DataFrame] = None
    for first, end in zip(firsts, ends):
        of_step = rows.slice(first, end - first)
        # With `nth`, tasks and times do not matter.
        others = of_step.drop("step", *_TASK)
        if above is not None and others.equals(above):
            items[-1][1].append(of_step["step"][0])
        else:
            items.append((of_step, [of_step["step"][0]]))
            above = others
    return items


def _numbered(rows: polars.DataFrame) -> polars.DataFrame:
    """Add the columns `row` (number of the row) and `group` (number of the operator run)."""
    import polars as pl

    task = [pl.when(pl.col("nth").is_null()).then(pl.col(name)) for name in _TASK]
    nameless = pl.col("error").is_not_null() & pl.col("op_name").eq("")
    keys = [*map(pl.col, _EXECUTION), *task, pl.col("nth"), pl.when(nameless).then(pl.col("row"))]
    begins = pl.any_horizontal(key.ne_missing(key.shift(1)) for key in keys)
    return rows.with_row_index("row").with_columns(begins.cum_sum().alias("group"))


def _grouped(rows: polars.DataFrame, unreadable_records: Iterator[Record]) -> ColumnRows:
    import polars as pl

    failed = dict(zip(rows.filter(pl.col("error").is_not_null())["row"], unreadable_records))
    output = pl.col("io").eq("output")
    aggregated = rows.group_by("group", maintain_order=True).agg(
        pl.coalesce(pl.col("row").filter(output).first(), pl.col("row").first()).alias("first"),
        pl.col("io").eq("input").sum().alias("inputs"),
        output.sum().alias("outputs"),
        pl.col("dtype").filter(pl.col("dtype").ne("")).unique(maintain_order=True).alias("types"),
        (pl.col("nbytes") // (_LOW + 1)).sum().alias("high"),
        (pl.col("nbytes") & _LOW).sum().alias("low"),
        pl.len().alias("records"),
        pl.col("error").count().alias("failed"),
    )
    frame = pl.concat([rows.select(_OF_FIRST)[aggregated["first"]], aggregated], how="horizontal")
    firsts = enumerate(aggregated["first"].to_list()) if failed else ()
    return ColumnRows(frame, {row: failed[first] for row, first in firsts if first in failed})
