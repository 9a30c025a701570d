"""`ascend-dump overflow`: which operators overflowed, the first one first."""

from __future__ import annotations

import io
import shlex
import sys
import textwrap
from collections.abc import Iterable, Iterator
from datetime import datetime, timezone
from itertools import groupby
from typing import TYPE_CHECKING, Any, NamedTuple, Optional

import click

from ascend_dump._errors import CorruptDump, ReadError
from ascend_dump.cli._exit import Exit
from ascend_dump.cli._reading import Unreadable, json_option, open_selected, progress, record_fields, shape_text

if TYPE_CHECKING:
    from ascend_dump.reading import Dump, Record
    from ascend_dump.statistics._statistics import Statistics

_RECORDS = "re:(?i)^opdebug$"
_SELECTORS = ("step", "rank", "device", "model", "run")


class _Tensor(NamedTuple):
    record: Record
    found: Optional[Statistics]
    error: Optional[ReadError]


class _Overflow(NamedTuple):
    """One unit of the device that reported, or one operator of the host that made the first NaN or Inf."""

    record: Record
    unit: str
    status: list[int]
    words: list[str]
    ids: dict[str, Any]
    operator: Optional[dict[str, Any]]
    tensors: list[Record]


@click.command(short_help="List operators that overflowed, the first one first.")
@click.argument("path", type=click.Path(), default="dumps")
@click.option("-n", "--limit", type=click.IntRange(1), help="At most so many overflows.")
@click.option("--step", metavar="TEXT", help='Steps: "0|3-5|10".')
@click.option("--rank", metavar="TEXT", help="Global ranks, as --step.")
@click.option("--device", metavar="TEXT", help="Device ids, as --step.")
@click.option("--model", metavar="TEXT", help="Model names: a glob, or re:PATTERN.")
@click.option("--run", metavar="TEXT", help="Runs, by the name of their time directory, as --model.")
@json_option
def overflow(path: str, limit: Optional[int], as_json: bool, **selectors: Optional[str]) -> Exit:
    """List the overflows in the dump at PATH (default: dumps) in the order they happened.

    Each is shown with what the status bits mean, its operator, and the shape, dtype, max, min and mean of the
    operator's tensors. In a dump of the host these are the operators that made NaN or Inf of finite inputs.
    Times are the clocks of the devices: those of several machines may differ.

    Exit code 1 when there are overflows, 0 when there are none.
    """
    unreadable = Unreadable()
    dump = open_selected(path, selectors)
    found = sorted(_find(dump, unreadable), key=lambda one: one.record.timestamp or 0)
    shown = found[:limit]
    if as_json:
        from ascend_dump.report.documents import write_document

        listed = (_fields(one, unreadable) for one in shown)
        write_document(sys.stdout, "overflow", {"path": path, "overflows": listed, "total": len(found)})
    else:
        for number, one in enumerate(shown, 1):
            _write_text(number, one, unreadable)
        if len(shown) < len(found):
            print(f"and {len(found) - len(shown)} more")
    if not found and True in dump.known_values("scene_is_beside"):
        print(
            f"no overflow is recorded in {path}, but MindSpore records none with jit_level O0 and O1: if this was "
            "dumped with op_debug_mode 3, every operator in it overflowed; `ascend-dump stats --nonfinite` finds NaN "
            "and Inf",
            file=sys.stderr,
        )
    elif not found:
        print(f"no overflow is recorded in {path}; that is done with scene='overflow'", file=sys.stderr)
        print(f"`ascend-dump stats {shlex.quote(path)} --origin` looks for NaN and Inf in any dump", file=sys.stderr)
    code = unreadable.finish()
    return Exit.DIFFERENT if found else code


def _find(dump: Dump, unreadable: Unreadable) -> Iterator[_Overflow]:
    # Files whose names tell nothing, as those of the host, have to be looked into.
    look = None in dump.known_values("op_type") or True in dump.known_values("scene_is_beside")
    some = dump if look else dump.select(op_type=_RECORDS)
    for _, group in groupby(unreadable.watch(progress(some, "records")), _execution):
        records = list(group)
        if records[0].attrs.get("scene") == "overflow":
            if records[0].op_type != "Opdebug":
                yield _of_mindspore(records)
            else:
                yield from _of_device(records[0], unreadable)
        elif any(record.attrs.get("origin") for record in records):
            yield _of_host(records)


def _execution(record: Record) -> tuple[Any, ...]:
    """What the records of one run of an operator have in common."""
    seq = record.attrs.get("seq")
    place = (record.run, record.rank, record.device, record.model, record.step)
    if record.attrs.get("scene") == "overflow" and record.op_type != "Opdebug":
        return (*place, record.model_id, record.op_type, record.op_name, record.attrs.get("occurrence", 0))
    return (*place, record.path) if seq is None else (*place, seq)


def _of_device(record: Record, unreadable: Unreadable) -> Iterator[_Overflow]:
    if record.error is not None:
        return
    if "overflow" not in record.attrs:
        reason = "; ".join(record.attrs.get("problems", ())) or "no overflow record in it"
        unreadable.add(CorruptDump(reason, path=record.path))
        return
    if not any(any(unit["status"]) for unit in record.attrs["units"]):
        print(f"{record.path}: every status is 0, nothing overflowed", file=sys.stderr)
    for unit in record.attrs["units"]:
        if any(unit["status"]):
            ids = {name: unit[name] for name in ("model_id", "stream_id", "task_id", "context_id", "thread_id")}
            tensors = _tensors_of(unit["operator"])
            yield _Overflow(record, unit["name"], unit["status"], unit["words"], ids, unit["operator"], tensors)


def _tensors_of(operator: Optional[dict[str, Any]]) -> list[Record]:
    if operator is None:
        return []
    from ascend_dump.reading import open_dump

    try:
        return [record for path in operator.get("paths", [operator["path"]]) for record in open_dump(path)]
    except ReadError:  # it was there when the directory was listed: someone else tidies up
        return []


def _of_mindspore(records: list[Record]) -> _Overflow:
    """An operator in a tree of O0 or O1: it is there because it overflowed, and nothing says how."""
    first = records[0]
    operator = {"op_type": first.op_type, "op_name": first.op_name, "path": str(first.path)}
    return _Overflow(first, "MindSpore", [], ["dumped because it overflowed"], {}, operator, records)


def _of_host(records: list[Record]) -> _Overflow:
    first = next(record for record in records if record.attrs.get("origin"))
    operator = {"op_type": first.op_type, "op_name": first.op_name, "path": str(first.path)}
    return _Overflow(first, "host", [], ["NaN or Inf of finite inputs"], {}, operator, records)


def _measured(records: Iterable[Record], unreadable: Unreadable) -> Iterator[_Tensor]:
    for record in records:
        if record.error is not None:
            unreadable.add(record.error)
        yield _Tensor(record, *unreadable.statistics(record))


def _fields(one: _Overflow, unreadable: Unreadable) -> dict[str, Any]:
    record = one.record
    place = ("timestamp", "step", "rank", "device", "model", "model_id", "run", "path")
    operator = None
    if one.operator is not None:
        name = one.tensors[0].op_name if one.tensors else one.operator["op_name"]
        tensors = [
            {**record_fields(tensor, error), "statistics": None if found is None else found._asdict()}
            for tensor, found, error in _measured(one.tensors, unreadable)
        ]
        operator = {**one.operator, "op_name": name, "tensors": tensors}
    return {
        "unit": one.unit,
        "status": one.status,
        "words": one.words,
        **one.ids,
        "record": {name: getattr(record, name) for name in place},
        "operator": operator,
        "document": record.attrs.get("overflow"),
        "problems": record.attrs.get("problems", []),
    }


def _write_text(number: int, one: _Overflow, unreadable: Unreadable) -> None:
    from ascend_dump.report.tables import Column, escape, write_table
    from ascend_dump.report.tables import number as text_of

    record = one.record
    name = "operator unknown: no file of its task and stream beside the record"
    if one.operator is not None:
        op_name = one.tensors[0].op_name if one.tensors else one.operator["op_name"]
        name = escape(f"{one.operator['op_type']} {op_name}")
    print(f"{number}. {name}{'  (first)' if number == 1 else ''}")
    place = [f"{field} {getattr(record, field)}" for field in _SELECTORS if getattr(record, field) is not None]
    ids = [f"{field[:-3]} {value}" for field, value in one.ids.items() if value is not None]
    print(escape("   " + " · ".join([one.unit, *ids, *place, _time(record.timestamp)])))
    if one.status:
        print(f"   status {', '.join(f'{word} ({word:#x})' for word in one.status)}")
    for word in (*one.words, *record.attrs.get("problems", ())):
        print(f"   - {escape(word)}")
    rows = []
    for tensor, found, error in _measured(one.tensors, unreadable):
        values = [text_of(getattr(found, field, None)) for field in ("max", "min", "mean", "nan", "posinf", "neginf")]
        if error is not None:
            values = [f"unreadable [{error.code}]", *[""] * 5]
        kind = [tensor.dtype or "-", shape_text(tensor), tensor.format or "-"]
        rows.append([tensor.io or "-", str(tensor.index), *kind, *values])
    headings = ["io", "index", "dtype", "shape", "format", "max", "min", "mean", "nan", "+inf", "-inf"]
    table = io.StringIO()
    write_table([Column(heading, right=at in (1, *range(5, 11))) for at, heading in enumerate(headings)], rows, table)
    print(textwrap.indent(table.getvalue(), "   "))


def _time(stamp: Optional[int]) -> str:
    """Microseconds as UTC; the number alone where no date can be made of it."""
    if stamp is None:
        return "time unknown"
    try:
        return f"{datetime.fromtimestamp(stamp // 10**6, timezone.utc):%Y-%m-%d %H:%M:%S}.{stamp % 10**6:06d} UTC"
    except (OverflowError, OSError, ValueError):
        return str(stamp)
