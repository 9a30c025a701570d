"""The operator at which a program is wrong for certain, and the one that this comes from.

Healthy programs make Inf too: masks, and logarithms of 0 that are selected away behind them. So the first operator
with NaN or +Inf that no rule excuses is looked for, and then the one before it that made, of finite numbers, what it
was given.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable
from typing import NamedTuple, Optional

from ascend_dump.analysis.numerics.valueless import is_no_value
from ascend_dump.analysis.operators.nonfinite import executions
from ascend_dump.analysis.operators.properties import COLLECTIVES
from ascend_dump.analysis.suspects import Suspect, Writers
from ascend_dump.errors import AscendDumpError
from ascend_dump.reading import Dump, Record
from ascend_dump.statistics.nonfinite import Judge, Slot

__all__ = ["WrongOperator", "cause_of_wrong", "first_wrong"]


class WrongOperator(NamedTuple):
    """An operator with NaN or Inf that no rule excuses.

    record   the tensor that holds it
    what     "NaN", "Inf" or "-Inf"
    before   the operators that ran before it in its step: of each the names of those that made its inputs
    """

    record: Record
    what: str
    before: dict[str, tuple[str, ...]]


def first_wrong(records: Iterable[Record]) -> tuple[Optional[WrongOperator], int]:
    """The first such operator of one rank, None where there is none; and how many tensors could not be looked at."""
    judge, writers = Judge(), Writers()
    unknown = 0
    step: object = None
    before: dict[str, tuple[str, ...]] = {}
    for members in executions(records):
        if members[0].step != step:
            step, before = members[0].step, {}
        before[members[0].op_name] = writers.look_at(members)
        sides: dict[str, list[Record]] = {"input": [], "output": []}
        for one in members:
            sides.get(one.io, []).append(one)
        inputs, outputs = ([_slot(one) for one in side] for side in sides.values())
        unknown += sum(one is None for one in (*inputs, *outputs))
        slots = [[one or Slot(None) for one in side] for side in (inputs, outputs)]
        wrong = judge.look_at(members[0].op_type or "", *slots)
        if wrong is not None:
            return WrongOperator((sides["output"] or sides["input"])[wrong.output], wrong.what, before), unknown
    return None, unknown


def _slot(record: Record) -> Optional[Slot]:
    """What is known of a tensor; None where nobody can tell."""
    if is_no_value(record):
        return Slot(None)
    try:
        return Slot(record.statistics(), record.content)
    except AscendDumpError:
        return None


def cause_of_wrong(dump: Dump, suspects: Collection[Suspect]) -> Optional[Suspect]:
    """Of suspects with NaN and Inf the one that made a program wrong; None where nothing is wrong for certain."""
    found = [first_wrong(_of_rank(dump, rank))[0] for rank in sorted(dump.known_values("rank"), key=str)]
    there = [one for one in found if one is not None]
    if not there:
        return None
    wrong = min(there, key=_moment)
    record = wrong.record
    known = {one.op_name: one for one in suspects if (one.rank, one.step) == (record.rank, record.step)}
    # Backwards, the nearest first.
    left, seen = deque([record.op_name]), {record.op_name}
    while left:
        name = left.popleft()
        if name in known:
            return known[name]
        fresh = [one for one in wrong.before.get(name, ()) if one not in seen]
        seen.update(fresh)
        left += fresh
    return Suspect("non-finite", record, f"{record.label}: {wrong.what}")


def _of_rank(dump: Dump, rank: Optional[int]) -> Dump:
    return dump if rank is None else dump.select(rank=rank)


def _moment(wrong: WrongOperator) -> tuple[float, ...]:
    """Ranks are joined by collectives, which bring what another rank has made."""
    record = wrong.record
    step = -1 if record.step is None else record.step
    return step, record.op_type.startswith(COLLECTIVES), record.timestamp or 0
