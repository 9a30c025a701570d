"""`ascend-dump ls`: list the operators and records of a dump."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Optional

import click

from ascend_dump.cli.shared.exit import Exit
from ascend_dump.cli.shared.hide_views import Folding, all_option
from ascend_dump.cli.shared.ls_groups import Group, RunLabels, groups_of, operator_of
from ascend_dump.cli.shared.reading import (
    Unreadable,
    argument_cells,
    argument_columns,
    leading_cells,
    leading_columns,
    lost_fields,
    open_selected,
    progress,
    reading_options,
    record_fields,
    report_no_match,
    shape_text,
)
from ascend_dump.errors import ConfigError

if TYPE_CHECKING:
    from ascend_dump.reading import Dump, Record, Run
    from ascend_dump.report.column_rows import ColumnRows
    from ascend_dump.report.tables import Column

_LONG = ("device", "format", "phase", "module", "source", "model_id", "stream_id", "task_id", "timestamp", "path")


@click.command(short_help="List the operators of a dump.")
@reading_options
@all_option
@click.option("--records", is_flag=True, help="One line per tensor instead of one per operator.")
@click.option("--long", is_flag=True, help="Like --records, with every field.")
@click.option("--kernels", is_flag=True, help="Also the kernels of API calls (eager dumps of NPUs).")
@click.option("--by", "by", type=click.Choice(["module"]), help="One line per module, with its worst tensor.")
def ls(
    path: str,
    as_json: bool,
    show_all: bool,
    records: bool,
    long: bool,
    kernels: bool,
    by: Optional[str],
    **selectors: Optional[str],
) -> Exit:
    """List the operators of the dump at PATH (default: dumps), followed by totals.

    PATH is any directory or file of a dump. No tensor is read. Operators that change no values, such as views, are
    counted but not listed, unless --all, --op or --op-type selects them. Of an eager dump of an NPU the API calls are
    listed (aclnnAdd); --kernels adds the kernels that ran for them. With --json every record is listed with all its
    fields. With --by module the worst tensor of each module is named if the dump has statistics; `stats --by
    module` computes them.
    """
    if by and (records or long):
        raise ConfigError(
            f"--by {by} was given with {'--records' if records else '--long'}", hint="leave one of them out"
        )
    dump = open_selected(path, selectors)
    labels = RunLabels(dump.runs())
    totals = _Totals()
    unreadable = Unreadable(dump)
    folding = Folding(show_all, selectors, hides_kernels=not kernels and True in dump.known_values("is_api_call"))
    if by:
        return _list_modules(dump, path, selectors, Folding(show_all or as_json, selectors), as_json)
    if as_json:
        from ascend_dump.report.documents import write_document

        watched = totals.count(unreadable.watch(progress(dump, "records")))
        listed = ({**record_fields(record), **labels.fields(record)} for record in watched)

        fields = {"path": path, "records": listed, "totals": totals.fields}
        unended = (run._asdict() for run in _unended(dump))
        fields["labels"] = labels.paths
        write_document(sys.stdout, "ls", {**fields, "unended": unended, "notes": _notes(dump, unreadable)})
    else:
        if records or long:
            watched = totals.count(unreadable.watch(progress(dump, "records")))
            _write_records(dump, labels, folding.unfold(watched), long=long)
        else:
            _write_operators(dump, labels, unreadable, totals, folding)
        from ascend_dump.report.tables import counted, escape

        incomplete = _unended(dump)
        if totals.records:
            print(f"\n{totals}{' · incomplete' if incomplete or unreadable.lost else ''}")
        for note in folding.notes("record" if records or long else "operator"):
            print(note)
        for label, runs in labels.paths.items():
            further = f" and {counted(len(runs) - 1, 'more run')}" if runs[1:] else ""
            print(f"label {escape(label)}: {escape(runs[0])}{further}")
        for run in dump.runs():
            for note in run.notes:
                print(f"{escape(str(run.path))}: {escape(note)}")
        for run in incomplete:
            first, *details = run.reason.splitlines()
            print(f"incomplete: {escape(str(run.path))}: {escape(first)}", file=sys.stderr)
            for line in details:
                print(f"  {escape(line)}", file=sys.stderr)
    code = Exit.OK if totals.records else report_no_match(path, selectors)
    return unreadable.finish() or code


def _list_modules(dump: Dump, path: str, selectors: dict[str, Optional[str]], folding: Folding, as_json: bool) -> Exit:
    """List modules as `stats --by module` does, but only with statistics that the dump contains."""
    from ascend_dump.cli.shared.modules import Measured, by_module, write_modules

    unreadable = Unreadable(dump)
    records = folding.unfold(unreadable.watch(progress(dump, "records")))
    modules = by_module(Measured(record, unreadable.statistics(record, recorded=True)[0]) for record in records)
    has_statistics = any(module.worst is not None for module in modules)
    write_modules(dump, path, modules, "ls", as_json=as_json, measured=has_statistics)
    if not as_json:
        for note in folding.notes("tensor"):
            print(note, file=sys.stderr)
        if modules and not has_statistics:
            print("the dump has no statistics; `ascend-dump stats --by module` computes them", file=sys.stderr)
    code = Exit.OK if unreadable.seen else report_no_match(path, selectors)
    return unreadable.finish() or code


def _notes(dump: Dump, unreadable: Unreadable) -> Iterator[dict[str, Any]]:
    """Yield the notes of a JSON document. To be iterated after all records were counted."""
    for run in dump.runs():
        for note in run.notes:
            yield {"path": run.path, "note": note}
    yield from lost_fields(unreadable.lost)


def _unended(dump: Dump) -> list[Run]:
    from ascend_dump.reading import RunState

    return [run for run in dump.runs() if run.state is not RunState.COMPLETE]


def _write_records(dump: Dump, labels: RunLabels, records: Iterator[Record], *, long: bool) -> None:
    from ascend_dump.report.tables import Column, write_table

    lead = leading_columns(dump)
    fields = [Column(name) for name in _LONG] if long else []
    named = argument_columns(dump)
    columns = [*labels.columns(), *lead, *_columns("io", "index", extra=named), *fields]
    names = [column.name for column in fields]
    rows = ([*labels.cells(record), *_record_row(record, lead, named, names)] for record in records)
    write_table(columns, rows, sys.stdout, fit=not long)  # --long asks for all columns


def _write_operators(dump: Dump, labels: RunLabels, unreadable: Unreadable, totals: _Totals, folding: Folding) -> None:
    from ascend_dump.report.tables import write_columns, write_table

    lead = leading_columns(dump)
    columns = [*labels.columns(), *lead, *_columns("in", "out")]
    if dump.is_large:
        from ascend_dump.cli.shared.ls_columns import cells, operator_rows

        parts = map(folding.unfold_rows, totals.count_rows(operator_rows(dump, unreadable)))
        write_columns(columns, (cells(part, lead, labels) for part in parts), sys.stdout)
    else:
        groups = totals.count_groups(groups_of(unreadable.watch(progress(dump, "records"))))
        shown = folding.unfold(groups, lambda group: group.first)
        rows = ([*labels.cells(group.first), *_operator_row(group, lead)] for group in shown)
        write_table(columns, rows, sys.stdout)


def _columns(*counts: str, extra: Sequence[Column] = ()) -> list[Column]:
    from ascend_dump.report.tables import Column

    names = [Column("op_name", elastic=True), Column("op_type", elastic=True, spare=2)]
    numbers = [Column(name, right=name != "io", spare=3 if name in ("in", "out") else 0) for name in counts]
    return [*names, *numbers, *extra, Column("dtype", spare=1), Column("shape"), Column("bytes", right=True, spare=4)]


def _operator_row(group: Group, lead: list[Column]) -> list[str]:
    first = group.first
    return [
        *leading_cells(first, lead),
        *_names(first),
        str(group.inputs),
        str(group.outputs),
        ",".join(group.types) or "-",
        shape_text(first),
        str(group.bytes),
    ]


def _record_row(record: Record, lead: list[Column], named: list[Column], fields: Iterable[str]) -> list[str]:
    values = (getattr(record, name) for name in fields)
    return [
        *leading_cells(record, lead),
        *_names(record),
        record.io or "-",
        str(record.index),
        *argument_cells(record, named),
        record.dtype or "-",
        shape_text(record),
        "-" if record.nbytes is None else str(record.nbytes),
        *("-" if value is None else str(value) for value in values),
    ]


def _names(record: Record) -> list[str]:
    if record.error is not None:
        return [record.op_name or record.path.name, f"unreadable [{record.error.code}]"]
    return [record.op_name or "-", record.op_type or "-"]


class _Totals:
    """Totals over the listed records."""

    def __init__(self) -> None:
        self.records = self.operators = self.kernels = self.bytes = self.unreadable = 0
        self._steps: set[Optional[int]] = set()
        self._ranks: set[Optional[int]] = set()

    def count(self, records: Iterable[Record]) -> Iterator[Record]:
        last: Optional[tuple[Any, ...]] = None
        for record in records:
            self.records += 1
            if record.error is not None:
                self.unreadable += 1
            key = operator_of(record)
            if key != last:
                last = key
                self._count_run(record)
            self.bytes += record.nbytes or 0
            self._steps.add(record.step)
            self._ranks.add(record.rank)
            yield record

    def count_groups(self, groups: Iterable[Group]) -> Iterator[Group]:
        for group in groups:
            self.records += group.records
            self._count_run(group.first)
            self.unreadable += group.unreadable
            self.bytes += group.bytes
            self._steps.add(group.first.step)
            self._ranks.add(group.first.rank)
            yield group

    def count_rows(self, parts: Iterable[ColumnRows]) -> Iterator[ColumnRows]:
        from ascend_dump.cli.shared.ls_columns import nbytes_of

        for part in parts:
            rows = part.frame
            kernels = int(rows["kernel"].fill_null("").ne("").sum())
            self.kernels += kernels * part.times
            self.operators += (rows.height - kernels) * part.times
            self.records += int(rows["records"].sum()) * part.times
            self.unreadable += int(rows["failed"].sum())
            self.bytes += nbytes_of(part) * part.times
            self._steps.update(part.steps or rows["step"].unique())
            self._ranks.update(rows["rank"].unique())
            yield part

    def _count_run(self, first: Record) -> None:
        if first.kernel:
            self.kernels += 1
        else:
            self.operators += 1

    def fields(self) -> dict[str, int]:
        return {
            "records": self.records,
            "operators": self.operators,
            "kernels": self.kernels,
            "bytes": self.bytes,
            "steps": len(self._steps - {None}),
            "ranks": len(self._ranks - {None}),
            "unreadable": self.unreadable,
        }

    def __str__(self) -> str:
        from ascend_dump.report.tables import counted, size

        kernels = [counted(self.kernels, "kernel")] if self.kernels else []
        parts = [
            counted(self.operators, "operator"),
            *kernels,
            counted(self.records, "record"),
            f"{size(self.bytes)} of tensors",
        ]
        for noun, numbers in (("step", self._steps), ("rank", self._ranks)):
            if len(numbers - {None}) > 1:
                parts.append(counted(len(numbers - {None}), noun))
        if self.unreadable:
            parts.append(f"{self.unreadable} unreadable")
        return " · ".join(parts)
