"""Find the operator at which a program is certainly wrong, and the earlier operator that caused it.

Healthy programs make Inf too: masks, and logarithms of 0 that are discarded later. So the search is for the first
operator with NaN or +Inf that no rule excuses. From there the search goes back to the earlier operator that made the
NaN or Inf of its inputs.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable, Sequence
from typing import NamedTuple, Optional

from ascend_dump.analysis.numerics.valueless import is_no_value
from ascend_dump.analysis.operators.names import name_in_rules
from ascend_dump.analysis.operators.nonfinite import CONSTANTS, executions, find_nonfinite
from ascend_dump.analysis.operators.operator_run import OperatorRun
from ascend_dump.analysis.operators.properties import COLLECTIVES
from ascend_dump.analysis.suspects import Suspect, Writers
from ascend_dump.common.ignored import IgnoredOperators
from ascend_dump.errors import AscendDumpError
from ascend_dump.reading import Dump, Record
from ascend_dump.statistics.nonfinite import Judge, Slot, is_nonfinite
from ascend_dump.statistics.nonfinite.masks import FILLING

__all__ = ["WrongOperator", "cause_of_wrong", "first_wrong"]


class WrongOperator(NamedTuple):
    """An operator with NaN or Inf that no rule excuses.

    record   the tensor with NaN or Inf
    what     "NaN", "Inf" or "-Inf"
    before   the earlier operators of its step by name, with the producers of their inputs
    """

    record: Record
    what: str
    before: dict[str, tuple[str, ...]]


def first_wrong(
    records: Iterable[Record], ignored: Optional[IgnoredOperators] = None
) -> tuple[Optional[WrongOperator], int]:
    """Return the first operator of one rank with NaN or Inf that no rule excuses, or None.

    Returns also the number of tensors that could not be checked.

    ignored: operators that do not count. An operator that reads NaN or Inf does not count either if the contents of its
    inputs show that all their NaN and Inf comes from ignored operators.
    """
    contents: set[object] = set()
    judge, writers = Judge(), Writers()
    unknown = 0
    step: object = None
    before: dict[str, tuple[str, ...]] = {}
    #: For dumps that do not record memory. By the content of a tensor with NaN or Inf: the operator of this step that
    #: made it last.
    makers: dict[object, str] = {}
    for members in executions(records):
        if members[0].step != step:
            step, before, makers = members[0].step, {}, {}
        producers = writers.look_at(OperatorRun(members))
        sides: dict[str, list[Record]] = {"input": [], "output": []}
        for record in members:
            sides.get(record.io, []).append(record)
        inputs, outputs = ([_slot(record) for record in side] for side in sides.values())
        unknown += sum(slot is None for slot in (*inputs, *outputs))
        found = [makers[content] for content in _nonfinite_contents(inputs) if content in makers]
        before[members[0].op_name] = producers or tuple(dict.fromkeys(found))
        makers.update(dict.fromkeys(_nonfinite_contents(outputs) - {None}, members[0].op_name))
        slots = [[slot or Slot(None) for slot in side] for side in (inputs, outputs)]
        wrong = judge.look_at(members[0].op_type or "", *slots)
        if wrong is not None and ignored and _is_ignored(members, inputs, outputs, ignored, contents):
            continue
        if wrong is not None:
            return WrongOperator((sides["output"] or sides["input"])[wrong.output], wrong.what, before), unknown
    return None, unknown


def _is_ignored(
    members: Sequence[Record],
    inputs: Iterable[Optional[Slot]],
    outputs: Iterable[Optional[Slot]],
    ignored: IgnoredOperators,
    contents: set[object],
) -> bool:
    """Return True if an operator is ignored, or if all NaN and Inf of its inputs comes from ignored operators.

    contents: the contents of tensors with such NaN or Inf. If the operator is ignored, the contents of its results are
    added
    """
    first = members[0]
    carried = _nonfinite_contents(inputs)
    selected = ignored.selects(op_name=first.op_name, op_type=first.op_type, module=first.module, source=first.source)
    is_ignored = selected or (bool(carried) and None not in carried and contents.issuperset(carried))
    if is_ignored:
        contents.update(_nonfinite_contents(outputs))
    return is_ignored


def _nonfinite_contents(slots: Iterable[Optional[Slot]]) -> set[object]:
    return {
        slot.content
        for slot in slots
        if slot is not None and slot.statistics is not None and is_nonfinite(slot.statistics)
    }


def _slot(record: Record) -> Optional[Slot]:
    """Return the facts about a tensor, or None if it cannot be read."""
    if is_no_value(record):
        return Slot(None)
    try:
        return Slot(record.statistics(), record.content)
    except AscendDumpError:
        return None


def cause_of_wrong(
    dump: Dump, suspects: Collection[Suspect], ignored: Optional[IgnoredOperators] = None
) -> Optional[Suspect]:
    """Return the suspect with NaN or Inf that made the program wrong; None if nothing is certainly wrong."""
    by_rank = [first_wrong(_of_rank(dump, rank), ignored)[0] for rank in sorted(dump.known_values("rank"), key=str)]
    wrong_operators = [operator for operator in by_rank if operator is not None]
    if not wrong_operators:
        return None
    wrong = min(wrong_operators, key=_moment)
    record = wrong.record
    suspect_of = {
        suspect.op_name: suspect for suspect in suspects if (suspect.rank, suspect.step) == (record.rank, record.step)
    }
    # Search backwards, the nearest producers first.
    queue, visited = deque([record.op_name]), {record.op_name}
    while queue:
        name = queue.popleft()
        if name in suspect_of:
            return suspect_of[name]
        fresh = [producer for producer in wrong.before.get(name, ()) if producer not in visited]
        visited.update(fresh)
        queue += fresh
    computed = _computed_mask(_of_rank(dump, record.rank), record, visited)
    if computed is not None:
        return computed
    return Suspect("non-finite", record, f"{record.label}: {wrong.what}")


def _computed_mask(dump: Dump, wrong: Record, producers: Collection[str]) -> Optional[Suspect]:
    """Return the producer that computed zeros and -Inf from finite inputs, which is a mask in healthy programs."""
    records = (record for record in dump.select(step=wrong.step) if record.op_name in producers)
    for finding in find_nonfinite(records):
        record = finding.record
        if finding.kind == "mask" and name_in_rules(record.op_type or record.op_name) not in FILLING | CONSTANTS:
            return Suspect("non-finite", record, f"{record.label}: Inf of finite inputs")
    return None


def _of_rank(dump: Dump, rank: Optional[int]) -> Dump:
    return dump if rank is None else dump.select(rank=rank)


def _moment(wrong: WrongOperator) -> tuple[float, ...]:
    """Return the sort key: collectives come last, because they bring results of other ranks."""
    record = wrong.record
    step = -1 if record.step is None else record.step
    return step, record.op_type.startswith(COLLECTIVES), record.timestamp or 0
