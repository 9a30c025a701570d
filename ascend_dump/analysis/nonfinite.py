"""Find the operators that produce NaN or Inf, and the one that did it first."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from itertools import groupby
from typing import Callable, NamedTuple, Optional

from ascend_dump._errors import NotSupported, ReadError
from ascend_dump.reading import Record
from ascend_dump.statistics._statistics import Statistics

__all__ = ["Finding", "find_nonfinite", "first_nonfinite"]


_Measure = Callable[[Record], Optional[Statistics]]


class Finding(NamedTuple):
    """One operator with NaN or Inf in an output.

    origin   its inputs are recorded and all of them are finite: it made the value itself
    record   the first output that is not finite, statistics its statistics
    inputs   the operator's input records, input_statistics theirs; None for one without values
    """

    origin: bool
    record: Record
    statistics: Statistics
    inputs: list[Record]
    input_statistics: list[Optional[Statistics]]


def find_nonfinite(records: Iterable[Record], measure: Optional[_Measure] = None) -> Iterator[Finding]:
    """Yield the operators of a dump with a non-finite output, in the order they ran.

    measure: gives the statistics of a record, None for one to pass over; by default that is one that holds neither
             values nor statistics, or cannot be read.
    """
    measure = measure or _measure
    for _, group in groupby(records, key=_operator):
        members = list(group)
        for record in members:
            found = measure(record) if record.io == "output" else None
            if found is not None and is_nonfinite(found):
                inputs = [one for one in members if one.io == "input"]
                measured = [measure(one) for one in inputs]
                origin = bool(inputs) and not any(one is not None and is_nonfinite(one) for one in measured)
                yield Finding(origin, record, found, inputs, measured)
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
    """Whether these are of a tensor with NaN or Inf in it, as far as they tell."""
    counts = (statistics.nan, statistics.posinf, statistics.neginf)
    if any(count is not None for count in counts):
        return any(counts)
    # A dump that did not count them still shows them in what it did compute.
    computed = (statistics.max, statistics.min, statistics.mean)
    return any(value is not None and not math.isfinite(value) for value in computed)


def _operator(record: Record) -> tuple[object, ...]:
    place = (record.run, record.rank, record.device, record.model, record.model_id, record.step)
    return (*place, record.op_name, record.attrs.get("seq"), record.task_id, record.stream_id, record.timestamp)


def _measure(record: Record) -> Optional[Statistics]:
    try:
        return record.statistics()
    except (NotSupported, ReadError):
        return None
