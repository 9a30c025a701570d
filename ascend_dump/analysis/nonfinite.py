"""Find the operators that produce NaN or Inf, and the one that did it first."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import groupby
from typing import NamedTuple, Optional

from ascend_dump._errors import NotSupported, ReadError
from ascend_dump.analysis.statistics import Statistics
from ascend_dump.reading import Record

__all__ = ["Finding", "find_nonfinite", "first_nonfinite"]


class Finding(NamedTuple):
    """One operator with NaN or Inf in an output.

    origin   its inputs are recorded and all of them are finite: it made the value itself
    record   the first output that is not finite, statistics its statistics
    inputs   the operator's input records
    """

    origin: bool
    record: Record
    statistics: Statistics
    inputs: list[Record]


def find_nonfinite(records: Iterable[Record]) -> Iterator[Finding]:
    """Yield the operators of a dump with a non-finite output, in the order they ran.

    Records that hold neither values nor statistics are passed over.
    """
    for _, group in groupby(records, key=_operator):
        members = list(group)
        for record in members:
            found = _measure(record) if record.io == "output" else None
            if found is not None and is_nonfinite(found):
                inputs = [one for one in members if one.io == "input"]
                measured = [_measure(one) for one in inputs]
                origin = bool(inputs) and not any(one is not None and is_nonfinite(one) for one in measured)
                yield Finding(origin, record, found, inputs)
                break


def first_nonfinite(records: Iterable[Record]) -> Optional[Finding]:
    """The first operator that turned finite inputs into NaN or Inf.

    Where no operator's inputs are all finite and known, the first one with such an output.
    """
    first = None
    for finding in find_nonfinite(records):
        if finding.origin:
            return finding
        first = first or finding
    return first


def is_nonfinite(statistics: Statistics) -> bool:
    return bool(statistics.nan or statistics.posinf or statistics.neginf)


def _operator(record: Record) -> tuple[object, ...]:
    place = (record.run, record.rank, record.device, record.model, record.model_id, record.step)
    return (*place, record.op_name, record.attrs.get("seq"), record.task_id, record.stream_id, record.timestamp)


def _measure(record: Record) -> Optional[Statistics]:
    try:
        return record.statistics()
    except (NotSupported, ReadError):
        return None
