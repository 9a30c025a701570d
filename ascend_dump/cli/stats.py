"""`ascend-dump stats`: print statistics of every tensor."""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Collection, Iterable, Iterator
from itertools import chain, islice
from typing import TYPE_CHECKING, Any, NamedTuple, Optional

import click

from ascend_dump.cli.shared.executor import executor_options, opened_executor
from ascend_dump.cli.shared.exit import Exit
from ascend_dump.cli.shared.hide_views import Folding, all_option
from ascend_dump.cli.shared.modules import Measured, by_module, write_modules
from ascend_dump.cli.shared.reading import (
    Unreadable,
    argument_cells,
    argument_columns,
    leading_cells,
    leading_columns,
    open_selected,
    progress,
    reading_options,
    record_fields,
    report_no_match,
    shape_text,
)
from ascend_dump.common.units import counted
from ascend_dump.errors import ConfigError, NotSupported, ReadError
from ascend_dump.statistics import TABLE

if TYPE_CHECKING:
    from ascend_dump.reading import Dump, Record
    from ascend_dump.report.column_rows import ColumnRows
    from ascend_dump.report.tables import Column
    from ascend_dump.statistics import Statistics

#: Headings of the columns that are always printed, by the field of `Statistics`.
_COLUMNS: dict[str, str] = {"count": "count"}
#: Headings of the columns that are printed only if at least one of the first rows has a value.
_OPTIONAL: dict[str, str] = {}
for _entry in TABLE:
    if _entry.heading:
        (_OPTIONAL if _entry.is_optional else _COLUMNS)[_entry.name] = _entry.heading
#: Number of rows that are read to decide about the optional columns.
_SAMPLE = 1000


class _Row(NamedTuple):
    """A record with its statistics, or the error of computing them."""

    record: Record
    statistics: Optional[Statistics]
    error: Optional[ReadError]


@click.command(short_help="Print max, min, mean, norm, NaN and Inf counts.")
@reading_options
@click.option(
    "--sort", type=click.Choice(["op", *_COLUMNS, *_OPTIONAL]), help="Order by a column, largest numbers first."
)
@click.option("--nonfinite", is_flag=True, help="Only tensors with NaN or Inf.")
@click.option("--origin", is_flag=True, help="Only operators that turned finite inputs into NaN or Inf, in order.")
@click.option("--by", "by", type=click.Choice(["module"]), help="One line per module, with its worst tensor.")
@click.option("--limit", type=click.IntRange(0), default=0, help="Print at most this many lines, 0 for all.")
@executor_options
@all_option
def stats(
    path: str,
    as_json: bool,
    sort: Optional[str],
    nonfinite: bool,
    origin: bool,
    by: Optional[str],
    limit: int,
    show_all: bool,
    workers: Optional[int],
    dask: Optional[str],
    **selectors: Optional[str],
) -> Exit:
    """Print statistics of the tensors of the dump at PATH (default: dumps).

    Recorded statistics are printed; where a record has none, they are computed from its values. max and min ignore NaN.
    With --origin each operator is shown with its inputs and its first non-finite output.
    Operators that change no values, such as views, are left out unless --all, --op or --op-type selects them; --json
    lists all.
    """
    from ascend_dump.analysis.operators.nonfinite import is_nonfinite

    if by and (origin or sort):
        raise ConfigError(
            f"--by {by} was given with {'--origin' if origin else '--sort'}", hint="leave one of them out"
        )
    dump = open_selected(path, selectors)
    unreadable = Unreadable(dump)
    searched = dump
    if (nonfinite or (limit and sort not in (None, "op"))) and not origin and dump.is_large:
        from ascend_dump.cli.shared.stats_columns import candidates

        searched, unreadable.seen = candidates(dump, nonfinite=nonfinite, sort=sort, limit=limit)
    # Rows are computed while they are written, so the executor is needed until the verb ends.
    executor = click.get_current_context().with_resource(opened_executor(workers, dask))
    source: Iterable[Record] = searched
    if executor is not None:
        from ascend_dump.analysis.ranks import measured

        source = measured(searched, executor)
    records = unreadable.watch(progress(source, "tensors"))
    folding = Folding(show_all or as_json, selectors)
    if not origin and not nonfinite:
        records = folding.unfold(records)
    rows = _origins(records, unreadable) if origin else _measured_rows(records, unreadable)
    if nonfinite:
        # A record that cannot be read may contain NaN or Inf, so its row is kept.
        rows = (row for row in rows if row.error or (row.statistics is not None and is_nonfinite(row.statistics)))
        # Views are hidden after this filter, so that the note counts only those with NaN or Inf: a view may be the only
        # record of a tensor.
        rows = rows if origin else folding.unfold(rows, lambda row: row.record)
    if sort:
        rows = iter(sorted(rows, key=lambda row: _sort_key(row, sort)))
    if limit and not by:
        rows = _cut(rows, limit, rows if origin or nonfinite else _unmeasured(records, unreadable))
    shown = 0
    is_plain = not (by or origin or nonfinite or sort or limit or as_json) and executor is None
    if is_plain and dump.is_large and _are_in_columns(dump):
        shown = _write_columns(dump, unreadable, folding)
    elif by:
        modules = by_module(Measured(row.record, row.statistics) for row in rows)[: limit or None]
        write_modules(dump, path, modules, "stats", as_json=as_json)
        shown = len(modules)
    elif as_json:
        _write_json(path, rows)
    else:
        shown = _write_table(dump, rows)
    known = unreadable.seen - unreadable.without_values
    if not as_json and not shown and known and not (nonfinite and folding.count):
        _tell_no_results(known, nonfinite=nonfinite, origin=origin)
    for note in () if as_json else folding.notes("tensor", holding="NaN or Inf" if nonfinite else ""):
        print(note, file=sys.stderr)
    code = Exit.OK if unreadable.seen else report_no_match(path, selectors)
    code = unreadable.finish() or code
    if (nonfinite or origin) and unreadable.seen and not known:
        raise NotSupported(
            f"{counted(unreadable.seen, 'record')} without values or statistics: NaN and Inf cannot be found",
            hint="capture with data='stats' or data='tensor'; if you did, the index of the dump is damaged",
        )
    return code


def _write_json(path: str, rows: Iterable[_Row]) -> None:
    from ascend_dump.report.documents import write_document

    listed = (
        {
            **record_fields(row.record, row.error),
            "statistics": None if row.statistics is None else row.statistics._asdict(),
        }
        for row in rows
    )
    write_document(sys.stdout, "stats", {"path": path, "records": listed})


def _write_table(dump: Dump, rows: Iterable[_Row]) -> int:
    """Write the rows, and return their number."""
    from ascend_dump.report.tables import write_table

    lead, argument = leading_columns(dump), argument_columns(dump)
    rows = iter(rows)
    sample = list(islice(rows, _SAMPLE))
    optional = [name for name in _OPTIONAL if any(getattr(row.statistics, name, None) is not None for row in sample)]
    headings = {**_COLUMNS, **{name: _OPTIONAL[name] for name in optional}}
    cells = (_cells(row, lead, argument, headings) for row in chain(sample, rows))
    return write_table(_columns(lead, argument, headings.values()), cells, sys.stdout)


def _are_in_columns(dump: Dump) -> bool:
    from ascend_dump.cli.shared.stats_columns import are_in_columns

    return are_in_columns(dump)


def _write_columns(dump: Dump, unreadable: Unreadable, folding: Folding) -> int:
    """Write the rows of a large dump as `_write_table` does, from the columns of its catalog."""
    from ascend_dump.cli.shared.stats_columns import cells, tensor_rows
    from ascend_dump.report.tables import TableRows, write_columns

    lead, argument = leading_columns(dump), argument_columns(dump)

    def parts() -> Iterator[tuple[ColumnRows, dict[int, _Row]]]:
        for part in map(folding.unfold_rows, tensor_rows(dump, unreadable, folding.are_shown())):
            yield part, {at: _Row(record, *unreadable.statistics(record)) for at, record in part.records.items()}

    later = parts()
    first = []
    count = 0
    for part in later:
        first.append(part)
        count += part[0].frame.height
        if count >= _SAMPLE:
            break
    optional = [name for name in _OPTIONAL if _is_in_sample(first, name)]
    headings = {**_COLUMNS, **{name: _OPTIONAL[name] for name in optional}}

    def tables() -> Iterator[TableRows]:
        for part, rows in chain(first, later):
            of_records = {at: _cells(row, lead, argument, headings) for at, row in rows.items()}
            yield cells(part, lead, argument, headings, of_records)

    return write_columns(_columns(lead, argument, headings.values()), tables(), sys.stdout)


def _is_in_sample(parts: Iterable[tuple[ColumnRows, dict[int, _Row]]], name: str) -> bool:
    """Return True if one of the first rows has this statistic."""
    left = _SAMPLE
    for part, rows in parts:
        has_value = part.frame[name].head(left).is_not_null().to_list()
        for at, row in rows.items():
            if at < left:
                has_value[at] = getattr(row.statistics, name, None) is not None
        if any(has_value):
            return True
        left = max(left - part.frame.height, 0)
    return False


def _tell_no_results(count: int, *, nonfinite: bool, origin: bool) -> None:
    """Print a line on stderr about a search without results."""
    if origin:
        print(
            f"no operator in {counted(count, 'record')} made NaN or Inf of recorded finite inputs; "
            "--nonfinite lists all tensors with NaN or Inf",
            file=sys.stderr,
        )
    elif nonfinite:
        print(f"no NaN or Inf in {counted(count, 'tensor')}", file=sys.stderr)


def _origins(records: Iterator[Record], unreadable: Unreadable) -> Iterator[_Row]:
    from ascend_dump.analysis.operators.nonfinite import find_nonfinite

    for finding in find_nonfinite(records, lambda record: unreadable.statistics(record)[0]):
        if finding.origin:
            yield from (_Row(*tensor, None) for tensor in zip(finding.inputs, finding.input_statistics))
            yield _Row(finding.record, finding.statistics, None)


def _cut(rows: Iterable[_Row], limit: int, remaining: Iterable[_Row]) -> Iterator[_Row]:
    """Yield the first rows, then iterate over the remaining rows too, because notes are about all records."""
    yield from islice(rows, limit)
    deque(remaining, maxlen=0)


def _unmeasured(records: Iterable[Record], unreadable: Unreadable) -> Iterator[_Row]:
    """Yield the rows of records that are counted but not printed. No tensor is read for them."""
    for record in records:
        yield _Row(record, *unreadable.statistics(record, recorded=record.loader is not None))


def _measured_rows(records: Iterator[Record], unreadable: Unreadable) -> Iterator[_Row]:
    return (_Row(record, *unreadable.statistics(record)) for record in records)


def _sort_key(row: _Row, sort: str) -> tuple[Any, ...]:
    if sort == "op":
        return (row.record.op_name,)
    value = getattr(row.statistics, sort, None)
    if value is None:
        return (2, 0)
    # NaN has no order; rows with NaN come first, because users search for them.
    return (0, 0) if value != value else (1, -value)


def _columns(lead: list[Column], argument: list[Column], headings: Iterable[str]) -> list[Column]:
    from ascend_dump.report.tables import Column

    named = [Column("op_name", elastic=True), Column("io"), Column("index", right=True), *argument]
    spare = {"zero": 6, "count": 5, "l2norm": 4, "dtype": 3, "mean": 2, "shape": 1}
    kind = [Column(name, spare=spare[name]) for name in ("dtype", "shape")]
    numbers = (Column(name, right=True, spare=spare.get(name, 0)) for name in headings)
    return [*lead, *named, *kind, *numbers]


def _cells(row: _Row, lead: list[Column], argument: list[Column], names: Collection[str]) -> list[str]:
    from ascend_dump.report.tables import number

    record = row.record
    kind = [*argument_cells(record, argument), record.dtype or "-", shape_text(record)]
    named = [record.op_name or record.path.name, record.io or "-", str(record.index), *kind]
    if row.error is not None:
        numbers = [f"unreadable [{row.error.code}]"]
    else:
        statistics = row.statistics
        numbers = ["-" if statistics is None else number(getattr(statistics, name)) for name in names]
    return [*leading_cells(record, lead), *named, *numbers, *[""] * (len(names) - len(numbers))]
