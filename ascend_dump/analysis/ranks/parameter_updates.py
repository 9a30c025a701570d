"""Tell which of two ranks has the wrong value of a parameter, by the operators that wrote it.

Two different values alone do not tell which one is wrong, but the updates may. If the last update on a rank wrote
another value than the rank has, something that is not recorded has changed the parameter. If only one rank runs an
update, or runs it with other arguments, that update is the first difference. And if both ranks update the same inputs,
the update can be computed again.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any, NamedTuple, Optional

from ascend_dump.analysis.judging.verdict import Rules
from ascend_dump.analysis.operators.arguments import differing_arguments
from ascend_dump.analysis.operators.operator import Operator, operators
from ascend_dump.analysis.pairing.matches import Match
from ascend_dump.analysis.ranks.collective_results import content_of_record
from ascend_dump.analysis.ranks.launches import RankRun
from ascend_dump.errors import AscendDumpError
from ascend_dump.reading import Record

__all__ = ["ParameterUpdates", "WrongRank"]

#: Number of updates of one parameter that are kept: the last ones.
_MOST_UPDATES = 32


class WrongRank(NamedTuple):
    """The result of `ParameterUpdates.compared`.

    record    the first record that is known to differ; None if no record before the compared value is known to
    evidence  the reason in words
    rank      the rank that is wrong; None if that cannot be told
    """

    record: Optional[Record]
    evidence: str
    rank: Optional[int]


class _ParameterUpdate(NamedTuple):
    """An operator that wrote a parameter. record: its output with the new value; members: all its records."""

    call: Hashable
    record: Record
    members: tuple[Record, ...]

    @property
    def operator(self) -> Optional[Operator]:
        return next(iter(operators(self.members)), None)


class ParameterUpdates:
    """Gathers the operators that write parameters, in the order of the dump."""

    def __init__(self) -> None:
        self._updates: dict[tuple[RankRun, str], list[_ParameterUpdate]] = {}

    def add(self, record: Record, call: Hashable, members: Sequence[Record]) -> None:
        """Add an output with the new value of a parameter. call: a key of the call that is the same on all ranks."""
        if record.rank is not None and record.parameter is not None:
            updates = self._updates.setdefault(((record.rank, record.run), record.parameter), [])
            updates.append(_ParameterUpdate(call, record, tuple(members)))
            del updates[:-_MOST_UPDATES]

    def compared(self, parameter: str, right: Record, wrong: Record) -> Optional[WrongRank]:
        """Return how two ranks got different values of a parameter; None if their updates do not tell.

        right, wrong  records with the two values; which of them is wrong is only an assumption
        """
        sides = [self._before(parameter, record) for record in (right, wrong)]
        if not all(sides):
            return None
        changed = [
            content_of_record(side[-1].record) != content_of_record(record)
            for side, record in zip(sides, (right, wrong))
        ]
        if changed[0] != changed[1]:
            rank, other = (right.rank, wrong.rank) if changed[0] else (wrong.rank, right.rank)
            text = f"on rank {rank} it is not what the last update wrote, on rank {other} it is: rank {rank} is wrong"
            return WrongRank(right if changed[0] else None, text, rank)
        if all(changed):
            return None
        return self._of_updates(*sides)

    def _before(self, parameter: str, record: Record) -> list[_ParameterUpdate]:
        """Return the updates before a record, of the last step that has any.

        If the record is an output, the update that wrote it is included.
        """
        moment = _moment(record)
        key = ((record.rank or 0, record.run), parameter)
        # An input has the value of the update before its own operator, even if that operator updates it next.
        is_result = record.io == "output"
        updates = [
            update
            for update in self._updates.get(key, ())
            if _moment(update.record) < moment or (is_result and _moment(update.record) == moment)
        ]
        return [update for update in updates if update.record.step == updates[-1].record.step]

    def _of_updates(self, right: Sequence[_ParameterUpdate], wrong: Sequence[_ParameterUpdate]) -> Optional[WrongRank]:
        calls = [[update.call for update in side] for side in (right, wrong)]
        for index, (side, others) in enumerate(((wrong, calls[0]), (right, calls[1]))):
            for update in side:
                if update.call not in others:
                    record, other = update.record, (right, wrong)[index][0].record
                    text = (
                        f"rank {record.rank} runs {record.op_type} on it at {record.source}, rank {other.rank} does not"
                    )
                    return WrongRank(record if index == 0 else None, text, None)
        if calls[0] != calls[1]:
            return None
        for a, b in zip(right, wrong):
            if content_of_record(a.record) != content_of_record(b.record):
                return _differing_update(a, b)
        return None


def _differing_update(right: _ParameterUpdate, wrong: _ParameterUpdate) -> Optional[WrongRank]:
    sides = right.operator, wrong.operator
    if sides[0] is None or sides[1] is None:
        return None
    ranks = wrong.record.rank, right.record.rank
    arguments = differing_arguments(sides[1], sides[0])
    if arguments:
        texts = [
            f"{one.name} is {one.actual} on rank {ranks[0]}, {one.reference} on rank {ranks[1]}" for one in arguments
        ]
        return WrongRank(wrong.record, f"{wrong.record.op_type} at {wrong.record.source}: {'; '.join(texts)}", None)
    for theirs, ours in zip(sides[0].inputs, sides[1].inputs):
        if content_of_record(theirs) != content_of_record(ours):
            name = ours.parameter or f"input {ours.index}"
            return WrongRank(wrong.record, f"{wrong.record.op_type} reads another {name} on rank {ranks[0]}", None)
    return _computed_again(sides, (right.record, wrong.record))


def _computed_again(
    sides: tuple[Optional[Operator], Optional[Operator]], outputs: tuple[Record, Record]
) -> Optional[WrongRank]:
    """Run the update again, and return the rank whose output is wrong; the inputs of both ranks are the same.

    None without PyTorch, or if neither or both are wrong. None also for operators whose kernels may not check their
    arguments, because the files of a dump are not trusted.
    """
    from ascend_dump.analysis.replay.checked_operators import is_checked
    from ascend_dump.analysis.replay.rerun import Rerun

    right, wrong = sides
    assert right is not None
    assert wrong is not None
    if not (is_checked(right.op_type) and is_checked(wrong.op_type)):
        return None
    try:
        lines = Rerun(Rules()).evidence(Match(right, wrong, "order", 1.0), *outputs)
    except AscendDumpError:
        return None
    are_right = ["is right for its inputs" in line for line in lines]
    if are_right[0] == are_right[1]:
        return None
    record = outputs[1] if are_right[0] else outputs[0]
    text = f"{record.op_type} read the same inputs on both ranks; run again, it does not give the output of "
    text += f"rank {record.rank}"
    return WrongRank(record, text, record.rank)


def _moment(record: Record) -> tuple[int, Any]:
    return (-1 if record.step is None else record.step, record.attrs.get("seq", 0))
