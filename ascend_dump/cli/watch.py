"""`ascend-dump watch`: find operators that overwrote the output of another operator."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Optional

import click

from ascend_dump.cli.shared.exit import Exit
from ascend_dump.cli.shared.reading import (
    Unreadable,
    json_option,
    leading_cells,
    leading_columns,
    open_selected,
    progress,
    selector_options,
    shape_text,
)
from ascend_dump.errors import ReadError

if TYPE_CHECKING:
    from ascend_dump.analysis.overwritten_outputs import Sighting
    from ascend_dump.report.tables import Column

_PLACE = ("step", "rank", "device", "model", "model_id", "run", "timestamp", "op_type", "index", "dtype", "shape")


@click.command(short_help="Find the operator that overwrote the output of another.")
@click.argument("path", type=click.Path(), default="dumps")
@selector_options("step", "rank", "device", "model", "run", "label")
@json_option
def watch(path: str, as_json: bool, **selectors: Optional[str]) -> Exit:
    """Find overwritten outputs in the dump at PATH (default: dumps) of a capture with scene='watch'.

    Such a dump contains the output of each watched operator several times: right after that operator, and again after
    each suspect (files SUSPECT_To_WATCHED). If the output has changed in between, it was overwritten by the suspect, or
    by an operator that ran after the previous snapshot. The change is shown with the first differing element and the
    number of bytes.

    Exit code 1 if an output was overwritten, 0 if none was, 3 if nothing could be compared.
    """
    from ascend_dump.analysis.overwritten_outputs import watch_outputs

    dump = open_selected(path, selectors)
    unreadable = Unreadable()
    sightings = list(_judged(watch_outputs(unreadable.watch(progress(dump, "records"))), unreadable))
    overwritten = [sighting for sighting in sightings if sighting.trample is not None]
    if as_json:
        from ascend_dump.report.documents import write_document

        counts = {"compared": sum(_compared(sighting) for sighting in sightings), "pairs": len(sightings)}
        write_document(sys.stdout, "watch", {"path": path, **counts, "tramples": map(_fields, overwritten)})
    elif overwritten:
        from ascend_dump.report.tables import write_table

        lead = leading_columns(dump)
        write_table(_columns(lead), (_cells(sighting, lead) for sighting in overwritten), sys.stdout)
    _tell(path, sightings, overwritten)
    code = unreadable.finish()
    if overwritten:
        return Exit.DIFFERENT
    return code if any(map(_compared, sightings)) else Exit.UNREADABLE


def _judged(sightings: Iterator[Sighting], unreadable: Unreadable) -> Iterator[Sighting]:
    for sighting in sightings:
        if isinstance(sighting.error, ReadError):
            # Records with an error were counted before, when they were read.
            if sighting.record.error is None and (sighting.base is None or sighting.base.error is None):
                unreadable.add(sighting.error)
        elif sighting.error is not None:
            unreadable.without_values += 1
        yield sighting


def _compared(sighting: Sighting) -> bool:
    return sighting.base is not None and sighting.error is None


def _tell(path: str, sightings: list[Sighting], overwritten: list[Sighting]) -> None:
    """Print on stderr how many outputs were compared, and how many could not be."""
    from ascend_dump.report.tables import counted, escape

    compared = sum(_compared(sighting) for sighting in sightings)
    early = sum(sighting.base is None for sighting in sightings)
    if not sightings:
        print(
            f"nothing was compared: no file SUSPECT_To_WATCHED in {escape(path)}; they are recorded with "
            "scene='watch', after each run of the suspects (layers=), which must run after the watched operators",
            file=sys.stderr,
        )
    elif not overwritten and compared:
        print(f"no watched output was overwritten; {counted(compared, 'snapshot')} compared", file=sys.stderr)
    if early:
        reason = "no earlier output of the watched operator is in the dump to compare with"
        print(f"{counted(early, 'snapshot')} left out: {reason}", file=sys.stderr)


def _fields(sighting: Sighting) -> dict[str, Any]:
    assert sighting.trample is not None
    assert sighting.base is not None
    return {
        "layer": sighting.layer,
        "watched": sighting.watched,
        **sighting.trample._asdict(),
        **{name: getattr(sighting.record, name) for name in _PLACE},
        "nbytes": sighting.record.nbytes,
        "path": sighting.record.path,
        "base": sighting.base.path,
    }


def _columns(lead: list[Column]) -> list[Column]:
    from ascend_dump.report.tables import Column

    names = [Column("overwritten by", elastic=True), Column("output of", elastic=True), Column("index", right=True)]
    counts = [Column("elements", right=True), Column("bytes", right=True)]
    values = [Column(name) for name in ("dtype", "shape", "first", "before", "after")]
    return [*lead, *names, *values, *counts, Column("intact")]


def _cells(sighting: Sighting, lead: list[Column]) -> list[str]:
    change, record = sighting.trample, sighting.record
    assert change is not None
    intact = f"after {change.since or sighting.watched}"
    element = str(list(change.first)).replace(" ", "")
    values = [element, str(change.before), str(change.after), str(change.elements), str(change.changed_bytes), intact]
    kind = [str(record.index), record.dtype or "-", shape_text(record)]
    return [*leading_cells(record, lead), sighting.layer, sighting.watched, *kind, *values]
