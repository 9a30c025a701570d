"""Put an operator that only some ranks run before the differences that follow from it.

If several ranks are compared with one, the result of such an operator has no partner. So a difference is first seen
where a later operator reads it, or in the parameters of the next step. The ranks themselves show the operator: the
others pass the same tensor on without it. The single rank shows that a result is wrong.

All ranks run one program, so the positions of operators of different ranks are compared with each other.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Optional

from ascend_dump.analysis.explaining.results import Origin, Pair
from ascend_dump.analysis.operators.nonfinite import executions
from ascend_dump.analysis.operators.operator_run import OperatorRun
from ascend_dump.analysis.ranks.collective_calls import point_of
from ascend_dump.analysis.ranks.extra_operators import ExtraOperators, LineOfRanks
from ascend_dump.common.units import counted
from ascend_dump.reading import Record

__all__ = ["FIRST_SEEN", "is_after", "time_of", "with_lines_of_some_ranks"]

#: As in the rule "extra-operator" of `triage`.
_MOST_OF_CALLS = 0.5
#: Kinds of origins that are first seen where an operator reads them.
FIRST_SEEN = ("input", "parameter", "unknown")


def with_lines_of_some_ranks(origins: Sequence[Origin], records: Iterable[Record]) -> list[Origin]:
    """Add operators that only some ranks run to the origins, and remove the differences first seen after them.

    An operator that no origin follows, or that is an origin already, is not added.

    records: the records of actual, which has several ranks, in the order of the dump
    """
    remaining = list(origins)
    if not remaining:
        return remaining
    operators = ExtraOperators(_MOST_OF_CALLS)
    for members in executions(records):
        operators.look_at(OperatorRun(members))
    timed = [(time, line) for line in operators.lines() if (time := time_of(line.finding.record)) is not None]
    for time, line in sorted(timed, key=lambda item: item[0]):
        later = [origin for origin in remaining if is_after(origin, time)]
        follow = [origin for origin in later if origin.kind in FIRST_SEEN]
        if later and not any(_is_of_line(origin, line) for origin in remaining):
            number = next(number for number, origin in enumerate(remaining) if origin is later[0])
            remaining.insert(number, _origin(line, follow))
            remaining = [origin for origin in remaining if not any(origin is later_origin for later_origin in follow)]
    return remaining


def time_of(record: Record) -> Optional[tuple[int, int]]:
    """Return the step of a record, and its position in the program; None if the dump does not record the order."""
    point = point_of(record)
    return None if point is None else (-1 if record.step is None else record.step, point.position)


def is_after(origin: Origin, time: tuple[int, int]) -> bool:
    """Return True if an origin may follow from an operator. time: its step and position"""
    pair = origin.pair
    origin_time = time_of(pair.record)
    # A result of one rank without a counterpart is an origin because a tensor of a later step differs.
    is_local = pair.verdict == "unmatched" and pair.actual is not None and pair.reference is not None
    return origin_time is not None and (origin_time[0] >= time[0] if is_local else origin_time >= time)


def _is_of_line(origin: Origin, line: LineOfRanks) -> bool:
    record = line.operator
    return (origin.op_type, origin.source, origin.step) == (record.op_type, record.source, record.step)


def _origin(line: LineOfRanks, follow: Sequence[Origin]) -> Origin:
    record, reason = line.operator, line.finding.reason
    more = [f"{counted(len(follow), 'difference')} first seen later may follow from it"] if follow else []
    layer = {} if record.module is None else {"layers": record.module}
    return Origin(
        "structure",
        Pair(record, None, "", 0.0, "unmatched", reason),
        (reason, *more),
        max((origin.explains for origin in follow), default=0),
        next={**layer, "data": "tensor", "steps": str(record.step), "ranks": str(line.finding.record.rank)},
    )
