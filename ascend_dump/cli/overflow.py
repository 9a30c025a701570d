"""`ascend-dump overflow`: list the operators that overflowed, in execution order."""

from __future__ import annotations

import io
import shlex
import sys
import textwrap
from collections.abc import Iterable, Iterator
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING, Any, NamedTuple, Optional

import click

from ascend_dump.cli.shared.executor import executor_options, opened_executor
from ascend_dump.cli.shared.exit import Exit
from ascend_dump.cli.shared.reading import (
    Unreadable,
    argument_text,
    brief_option,
    ignore_option,
    json_option,
    open_selected,
    progress,
    record_fields,
    selector_options,
    shape_text,
)
from ascend_dump.common.units import named
from ascend_dump.errors import ReadError
from ascend_dump.report.findings import ANSWERS

if TYPE_CHECKING:
    from ascend_dump.analysis.overflow import Overflow, OverflowReport
    from ascend_dump.reading import Dump, Record
    from ascend_dump.statistics import Statistics

_UNKNOWN = "unknown: the directory of the overflow report has no file of the same task and stream"
#: Maximum number of harmless overflows that are listed.
_MOST_HARMLESS = 5
_SELECTORS = ("step", "rank", "device", "model", "run", "label")


class _Tensor(NamedTuple):
    """A record with its statistics, or the error of computing them."""

    record: Record
    statistics: Optional[Statistics]
    error: Optional[ReadError]


def _answers() -> str:
    lines = ['The answer is always one of these ("answer" and "kind" in the JSON document), with its exit code:']
    for name, meaning in ANSWERS.items():
        code = Exit.OK if name == "none" else Exit.UNREADABLE if name == "unchecked" else Exit.DIFFERENT
        lines += textwrap.wrap(meaning, 96, initial_indent=f"  {name:<9}  {int(code)}  ", subsequent_indent=" " * 16)
    return "\b\n" + "\n".join(lines)


@click.command(short_help="List the operators that overflowed, in their order.", epilog=_answers())
@click.argument("path", type=click.Path(), default="dumps")
@click.option("-n", "--limit", type=click.IntRange(1), help="List at most this many overflows.")
@selector_options(*_SELECTORS)
@ignore_option
@executor_options
@brief_option
@json_option
def overflow(
    path: str,
    limit: Optional[int],
    workers: Optional[int],
    dask: Optional[str],
    brief: bool,
    as_json: bool,
    ignore: tuple[str, ...],
    **selectors: Optional[str],
) -> Exit:
    """List the overflows in the dump at PATH (default: dumps) in their order.

    Each overflow is shown with the meaning of its status bits, its operator, and the shape, dtype, max, min and mean of
    the operator's tensors. The recorded values are checked for the host, and for each device that reported no overflow.
    Inf that the program writes itself, such as an attention mask, is no overflow. An overflow is harmless so far if no
    tensor has its NaN or Inf at the end of the step; this is known only if the dump has all operators of the step.
    Harmless and ignored operators are listed last. Times come from the devices' clocks, which may differ between
    machines.
    """
    from ascend_dump.analysis.overflow import find_overflows

    dump = open_selected(path, selectors)
    if dump.has_fast_catalog and workers is None and dask is None:
        dump.catalog(watch=lambda parts: progress(parts, "records", len))  # with a progress display
    with opened_executor(workers, dask) as executor:
        report = find_overflows(
            dump, watch=lambda records: progress(records, "records"), executor=executor, ignore=ignore
        )
    unreadable = Unreadable()
    for error in report.errors:
        unreadable.add(error)
    shown = report.overflows[:limit]
    if as_json:
        from ascend_dump.report.documents import write_document

        listed = (_fields(one, unreadable) for one in shown)
        counts = {"total": len(report.overflows), "operators": report.operators, "checked": report.checked}
        counts["followed"] = report.followed
        harmless = [_harmless(one) for one in report.harmless]
        fields = {"answer": report.answer, "overflows": listed, **counts, "masks": report.masks, "harmless": harmless}
        write_document(
            sys.stdout, "overflow", {"path": path, **fields, "reasons": report.reasons, "notes": report.notes}
        )
    elif brief:
        _write_brief(report, dump, path)
    else:
        for number, one in enumerate(shown, 1):
            _write_text(number, one, unreadable)
        _write_end(report, len(shown), dump)
    if not brief:
        _tell(report, path)
    unreadable.finish()
    if report.overflows:
        return Exit.DIFFERENT
    return Exit.OK if report.answer == "none" else Exit.UNREADABLE


def _write_end(report: OverflowReport, shown: int, dump: Dump) -> None:
    from ascend_dump.analysis.overflow import watched
    from ascend_dump.report.tables import counted, escape

    if shown < len(report.overflows):
        print(f"and {len(report.overflows) - shown} more")
    elif report.answer == "none":
        masks = f"; {counted(report.masks, 'operator')} filled in Inf as a mask" if report.masks else ""
        checked = f"{counted(report.operators, 'operator')} checked{masks}"
        print(f"no overflow: {checked if report.operators else watched(dump) or checked}")
    elif report.answer == "unchecked":
        checked = f"no overflow in the {counted(report.checked, 'operator')} that could be read"
        some = f"{checked}; not everything could be checked:"
        print(some if report.checked else "not checked, so nothing is known:")
        for reason in report.reasons:
            print(f"   - {escape(reason)}")


def _write_brief(report: OverflowReport, dump: Dump, path: str) -> None:
    from ascend_dump.analysis.explaining.page_facts import command, operator_command
    from ascend_dump.report.findings import brief_text, rank_text
    from ascend_dump.report.tables import counted

    finding, notes = None, list(report.notes)
    next_steps = [] if report.answer == "none" else [command("ascend-dump", "ls", path)]
    if report.overflows:
        first = report.overflows[0]
        op_type, op_name = _operator_names(first) or ("", _UNKNOWN)
        several = len(dump.known_values("rank")) > 1
        finding = replace(first.finding(), op_name=op_name, op_type=op_type, step=first.record.step)
        finding = replace(finding, rank=rank_text(first.record.rank, several))
        if first.tensors:
            next_steps = [operator_command("show", dump.root, first.tensors[0])]
        later = {"more overflow": len(report.overflows) - 1, "later operator that passed it on": report.followed}
        notes += [counted(count, what) for what, count in later.items() if count]
    notes += [f"harmless so far: {_harmless(one)}" for one in report.harmless[:_MOST_HARMLESS]]
    answer = f"{report.answer}: {ANSWERS[report.answer]}; {report.checked} of {report.operators} operators checked"
    print(brief_text(answer, finding, next_steps=next_steps, not_checked=report.reasons, notes=notes))


def _harmless(overflow: Overflow) -> str:
    """Return operator, step and source line of a harmless overflow."""
    record = overflow.record
    step = "" if record.step is None else f", step {record.step}"
    return f"{named(record.op_name, record.op_type)}{step}{f', {record.source}' if record.source else ''}"


def _operator_names(overflow: Overflow) -> Optional[tuple[str, str]]:
    """Return type and name of the operator; None if the dump does not contain the operator."""
    if overflow.operator is None:
        return None
    name = overflow.tensors[0].op_name if overflow.tensors else overflow.operator["op_name"]
    return overflow.operator["op_type"], name


def _tell(report: OverflowReport, path: str) -> None:
    """Print on stderr the facts that the list lacks: later operators, harmless overflows, notes, unchecked parts."""
    from ascend_dump.report.tables import counted, escape

    if report.followed:
        print(f"{counted(report.followed, 'later operator')} only passed it on", file=sys.stderr)
    for text in [_harmless(one) for one in report.harmless[:_MOST_HARMLESS]]:
        print(f"harmless so far: {escape(text)}", file=sys.stderr)
    if len(report.harmless) > _MOST_HARMLESS:
        print(f"and {len(report.harmless) - _MOST_HARMLESS} more of these", file=sys.stderr)
    for note in report.notes:
        print(escape(note), file=sys.stderr)
    if report.overflows and report.reasons:
        print("not everything was checked:", *map(escape, report.reasons), sep="\n  ", file=sys.stderr)
    if report.answer == "unchecked" and not report.operators:
        print(f"`ascend-dump ls {escape(shlex.quote(path))}` lists what is there", file=sys.stderr)


def _measured(records: Iterable[Record], unreadable: Unreadable) -> Iterator[_Tensor]:
    for record in records:
        if record.error is not None:
            unreadable.add(record.error)
        yield _Tensor(record, *unreadable.statistics(record))


def _fields(overflow: Overflow, unreadable: Unreadable) -> dict[str, Any]:
    record = overflow.record
    path_fields = ("timestamp", "step", "rank", "device", "model", "model_id", "run", "path")
    operator = None
    if overflow.operator is not None:
        name = overflow.tensors[0].op_name if overflow.tensors else overflow.operator["op_name"]
        tensors = [
            {**record_fields(tensor, error), "statistics": None if statistics is None else statistics._asdict()}
            for tensor, statistics, error in _measured(overflow.tensors, unreadable)
        ]
        operator = {**overflow.operator, "op_name": name, "tensors": tensors}
    return {
        "kind": overflow.kind,
        "source": overflow.source,
        "unit": overflow.unit,
        "status": overflow.status,
        "words": overflow.words,
        **(overflow.ids or {}),
        "record": {name: getattr(record, name) for name in path_fields},
        "operator": operator,
        "document": record.attrs.get("overflow"),
        "problems": record.attrs.get("problems", []),
    }


def _write_text(number: int, overflow: Overflow, unreadable: Unreadable) -> None:
    from ascend_dump.report.findings import LABELS
    from ascend_dump.report.tables import PIPE_WIDTH, Column, escape, write_table
    from ascend_dump.report.tables import number as text_of

    record = overflow.record
    name = " ".join(_operator_names(overflow) or ("operator", _UNKNOWN))
    print(f"{number}. {escape(name)}{'  (first)' if number == 1 else ''}")
    selectors = [f"{field} {getattr(record, field)}" for field in _SELECTORS if getattr(record, field) is not None]
    ids = [f"{field[:-3]} {value}" for field, value in (overflow.ids or {}).items() if value is not None]
    _print_folded(" · ".join([overflow.unit, *ids, *selectors, _time(record.timestamp)]))
    if overflow.status:
        print(f"   status {', '.join(f'{word} ({word:#x})' for word in overflow.status)}")
    for label, text in overflow.finding().lines():
        _print_folded(f"{'-' if label == LABELS['evidence'] else label} {text}")
    named = [Column("argument", elastic=True)] if any(tensor.parameter for tensor in overflow.tensors) else []
    # Formats other than ND occur on NPUs only, and names of arguments in dumps of the host only.
    has_formats = not named or any(tensor.format not in (None, "ND") for tensor in overflow.tensors)
    formats = [Column("format")] if has_formats else []
    rows = []
    for tensor, statistics, error in _measured(overflow.tensors, unreadable):
        values = [
            text_of(getattr(statistics, field, None)) for field in ("max", "min", "mean", "nan", "posinf", "neginf")
        ]
        if error is not None:
            values = [f"unreadable [{error.code}]", *[""] * 5]
        kind = [tensor.dtype or "-", shape_text(tensor), *[tensor.format or "-"] * len(formats)]
        names = [argument_text(tensor)] * len(named)
        rows.append([tensor.io or "-", str(tensor.index), *names, *kind, *values])
    columns = [Column("io"), Column("index", right=True), *named, Column("dtype"), Column("shape"), *formats]
    columns += [Column(heading, right=True) for heading in ("max", "min", "mean", "nan", "+inf", "-inf")]
    table = io.StringIO()
    write_table(columns, rows, table, pipe_width=PIPE_WIDTH - 3)
    print(textwrap.indent(table.getvalue(), "   "))


def _print_folded(text: str) -> None:
    """Print an indented line below an overflow, folded if it is long."""
    from ascend_dump.report.tables import escape, folded

    print("\n".join(folded(f"   {escape(text)}", sys.stdout, 5)))


def _time(stamp: Optional[int]) -> str:
    """Return a time in microseconds as a date in UTC, or as the number itself if it is no possible date."""
    if stamp is None:
        return "time unknown"
    try:
        moment = datetime(1970, 1, 1, tzinfo=timezone.utc) + timedelta(microseconds=stamp)
        return f"{moment:%Y-%m-%d %H:%M:%S}.{moment.microsecond:06d} UTC"
    except (OverflowError, ValueError):
        return str(stamp)
