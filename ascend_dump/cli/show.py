"""`ascend-dump show`: print tensors with their fields, statistics and values."""

from __future__ import annotations

import shlex
import sys
from itertools import chain, islice
from typing import TYPE_CHECKING, Any, Optional

import click

from ascend_dump.cli.shared.exit import Exit
from ascend_dump.cli.shared.reading import (
    Unreadable,
    open_selected,
    reading_options,
    record_fields,
    report_no_match,
)
from ascend_dump.errors import NotSupported, ReadError

if TYPE_CHECKING:
    import numpy as np

    from ascend_dump.dump_format import Arguments
    from ascend_dump.reading import Record

#: Tensors of up to _SMALL elements are written to a JSON document completely, of larger tensors the first and the last
#: _ENDS values.
_SMALL = 1024
_ENDS = 8
#: Width of the column with the names of fields.
_LABELS = 20


@click.command(short_help="Print tensors and their facts.")
@reading_options
@click.option("--full", is_flag=True, help="Print all values, also with --json.")
@click.option("--plot", is_flag=True, help="Draw a histogram of the values instead of printing them.")
@click.option(
    "--limit", type=click.IntRange(0), default=4, show_default=True, help="Number of records to show, 0 for all."
)
def show(path: str, as_json: bool, full: bool, plot: bool, limit: int, **selectors: Optional[str]) -> Exit:
    """Print the tensors of the dump at PATH (default: dumps) that the selectors choose.

    Each tensor is printed with its fields, its statistics, and its values in the format of numpy. With --json, only the
    first and last values of a tensor with more than 1024 elements are given, unless --full is set.
    """
    dump = open_selected(path, selectors)
    records = iter(dump)
    unreadable = Unreadable(dump)
    chosen = unreadable.watch(islice(records, limit or None))
    first = next(chosen, None)
    if first is not None:
        chosen = chain([first], chosen)
    if as_json:
        from ascend_dump.report.documents import write_document

        listed = (_fields(record, unreadable, full) for record in chosen)
        write_document(sys.stdout, "show", {"path": path, "records": listed})
    else:
        for record in chosen:
            if record is not first:
                print()
            _print(record, unreadable, full, plot)
    code = Exit.OK if first is not None else report_no_match(path, selectors)
    has_more = next(records, None) is not None
    if has_more:
        from ascend_dump.report.tables import escape

        command = escape(f"ascend-dump ls {shlex.quote(path)}")
        print(f"more records match; --limit 0 shows all, `{command}` lists them", file=sys.stderr)
    # Lost records are known only if all indexes were read, which is not the case with a limit.
    return unreadable.finish(is_whole=not has_more) or code


def _print(record: Record, unreadable: Unreadable, full: bool, plot: bool) -> None:
    from ascend_dump.reading import FIELDS
    from ascend_dump.report.tables import escape, number, text_width

    print(escape(str(record.label)))
    fields = ((name, getattr(record, name)) for name in ("op_type", *FIELDS[4:]))
    argument = record.argument if "argument" not in record.attrs else None
    if argument is not None:
        print(f"  {'argument':<{_LABELS}} {escape(argument)}")
    special = ((f"attrs.{name}", value) for name, value in record.attrs.items())
    for name, value in (*fields, *special):
        if value is not None and value != "":
            text = list(value) if isinstance(value, tuple) else value
            print(f"  {escape(name):<{_LABELS}} {escape(str(text))}")
    call = _arguments(record, unreadable)
    if call is not None:
        print(f"  {'arguments':<{_LABELS}} {escape(str(call))}")
        if call.generator is not None:
            state = (f"{name} {value}" for name, value in call.generator._asdict().items() if value not in (None, ""))
            print(f"  {'generator':<{_LABELS}} {escape('  '.join(state))}")
    for position, line in enumerate(() if "stack" in record.attrs else _stack(record)):
        print(f"  {'' if position else 'stack':<{_LABELS}} {escape(line)}")
    array, error = _read(record, unreadable)
    statistics, _ = (None, error) if error is not None else unreadable.statistics(record)
    if statistics is not None:
        pairs = (f"{name} {number(value)}" for name, value in statistics._asdict().items() if value is not None)
        print(f"  {'statistics':<{_LABELS}} {'  '.join(pairs)}")
    if error is not None:
        print(f"  unreadable: {escape(error.message)} [{error.code}]")
    if array is None:
        return
    if plot:
        from ascend_dump.report.plots import histogram

        print("\n".join(histogram(array)))
        return
    import numpy as np

    with np.printoptions(linewidth=text_width(sys.stdout), threshold=sys.maxsize if full else 1000):
        print(array)


def _fields(record: Record, unreadable: Unreadable, full: bool) -> dict[str, Any]:
    array, error = _read(record, unreadable)
    fields = record_fields(record, error)
    statistics, _ = (None, error) if error is not None else unreadable.statistics(record)
    call = _arguments(record, unreadable)
    if call is not None:
        fields["arguments"] = call.to_dict()
    stack = _stack(record)
    if stack:
        fields["stack"] = list(stack)
    fields["statistics"] = None if statistics is None else statistics._asdict()
    if array is None:
        fields["values"] = None
    elif full or array.size <= _SMALL:
        fields["values"] = array
    else:
        flat = array.reshape(-1)
        fields.update(values=None, first_values=flat[:_ENDS], last_values=flat[-_ENDS:])
    return fields


def _arguments(record: Record, unreadable: Unreadable) -> Optional[Arguments]:
    try:
        return record.arguments
    except ReadError as error:
        unreadable.add(error)
        return None


def _stack(record: Record) -> tuple[str, ...]:
    try:
        return record.stack
    except ReadError:  # already reported by `_arguments`, which reads the same text
        return ()


def _read(record: Record, unreadable: Unreadable) -> tuple[Optional[np.ndarray], Optional[ReadError]]:
    if record.error is not None:  # was counted before
        return None, record.error
    try:
        return record.numpy(), None
    except NotSupported:
        return None, None
    except ReadError as error:
        unreadable.add(error)
        return None, error
