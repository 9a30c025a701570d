"""Find collectives that some ranks lack, or run in another order, with another size or of another kind.

All ranks of a group have to begin the same collectives in the same order. Else one rank waits for a call that another
one never begins, and the program hangs until it is stopped. So deviations are reported if a call never completed. Of
completed calls only sums of gradients are compared by name: ranks may add up the same gradients in another order.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterator, Mapping, Sequence
from pathlib import PurePath
from typing import NamedTuple, Optional

from ascend_dump.analysis.operators.operator_run import OperatorRun
from ascend_dump.analysis.ranks.collective_calls import CallBook, CallPart, operator_key
from ascend_dump.analysis.ranks.collective_results import RankFinding, content_of_record, in_words, moment_of
from ascend_dump.analysis.ranks.launches import RankRun, launches
from ascend_dump.common.units import counted
from ascend_dump.dump_format import UNWAITED
from ascend_dump.reading import Record

__all__ = ["CollectiveOrder"]

#: Collectives that return tensors on each rank of their group.
_RETURNING = ("all_reduce", "all_gather", "broadcast", "reduce_scatter", "all_to_all", "recv")
#: Collectives whose tensors have the same size and type on all ranks.
_OF_ONE_SIZE = ("all_reduce", "broadcast", "reduce")
_MESSAGES = ("send", "recv")
_GRADIENT = ".grad"

#: The calls of each rank in one group, in their order.
_Sequences = Mapping[int, Sequence[CallPart]]


class _Deviation(NamedTuple):
    """The first call of a group that ranks do not have in common.

    ranks  those that lack it, or run another one
    parts  the calls of all ranks, if each has one
    """

    finding: RankFinding
    ranks: tuple[int, ...]
    moment: tuple[int, int]
    parts: tuple[CallPart, ...] = ()


class CollectiveOrder:
    """Gathers the collectives of all ranks, in the order of the dump."""

    def __init__(self) -> None:
        self._book = CallBook()
        #: By rank and run: the first recorded step, the first record of the last operator, and whether any output was
        #: recorded.
        self._begun: dict[RankRun, int] = {}
        self._last: dict[RankRun, Record] = {}
        self._has_outputs: set[RankRun] = set()
        #: By rank and run: the first content of each parameter.
        self._parameters: dict[RankRun, dict[str, Hashable]] = {}

    def look_at(self, run: OperatorRun) -> None:
        """Add one run of an operator."""
        first = run.first
        if first.rank is None or first.error is not None:
            return
        rank = (first.rank, first.run)
        step = -1 if first.step is None else first.step
        if step < self._begun.get(rank, step + 1):
            self._begun[rank] = step
        last = self._last.get(rank)
        if last is None or moment_of(last) <= moment_of(first):
            self._last[rank] = first
        if run.outputs:
            self._has_outputs.add(rank)
        if run.is_named:
            parameters = self._parameters.setdefault(rank, {})
            for record, _, name in run.tensors:
                if name and name not in parameters and not name.endswith(_GRADIENT) and " of " not in name:
                    parameters[name] = content_of_record(record)
        if run.is_collective:
            self._book.look_at(run.records)

    def findings(self) -> Iterator[RankFinding]:
        """Yield the first deviation of each group in which a rank waits. Groups that wait for these are left out."""
        self._book.end()
        launch = launches(self._last)
        groups: dict[tuple[Hashable, str, str], dict[int, list[CallPart]]] = {}
        for parts in self._book.calls.values():
            for part in parts:
                key = (launch[part.rank, part.first.run], part.call.group, part.call.ranks)
                groups.setdefault(key, {}).setdefault(part.rank, []).append(part)
        last_of_launch: dict[Hashable, dict[int, Record]] = {}
        for (rank, run), record in self._last.items():
            last_of_launch.setdefault(launch[rank, run], {})[rank] = record
        deviations: list[_Deviation] = []
        for (number, *_), calls in groups.items():
            last = last_of_launch[number]
            members = [rank for rank in next(iter(calls.values()))[0].members if rank in last]
            # With `keep=` ranks that stopped in different steps have other first steps.
            begun = max(self._begun[rank, last[rank].run] for rank in members)
            deviations += self._deviations(
                {rank: [part for part in calls.get(rank, ()) if moment_of(part.first)[0] >= begun] for rank in members},
                last,
            )
        ends = [max(parts, key=_begin) for calls in groups.values() for parts in calls.values()]
        stuck = {part.rank for part in ends if self._is_waiting(part)}
        free = [deviation for deviation in deviations if not stuck.issuperset(deviation.ranks)]
        first = sorted(deviations, key=lambda deviation: deviation.moment)[:1]
        yield from (deviation.finding for deviation in free or first)

    def _is_waiting(self, part: CallPart) -> bool:
        """Return True if a call never completed on its rank."""
        run = (part.rank, part.first.run)
        if part.call.kind not in _RETURNING:
            is_last = operator_key(self._last[run]) == operator_key(part.first)
            return part.call.kind == "barrier" and is_last
        is_complete = any(record.attrs.get("skipped") != UNWAITED for record in part.outputs)
        return run in self._has_outputs and not is_complete

    def _deviations(self, calls: dict[int, list[CallPart]], last: Mapping[int, Record]) -> Iterator[_Deviation]:
        """Yield the first deviation of a group with records of these ranks."""
        for parts in calls.values():
            parts.sort(key=_begin)
        yield from self._unsent(calls, last)
        sequences = {rank: [part for part in parts if part.call.kind not in _MESSAGES] for rank, parts in calls.items()}
        if not any(parts and self._is_waiting(parts[-1]) for parts in sequences.values()):
            deviation = _crossed(sequences)
            if deviation is not None and self._are_copies(deviation.parts):
                yield deviation
            return
        for index in range(max(map(len, sequences.values()))):
            signatures = {
                rank: _signature(parts[index]) if index < len(parts) else None for rank, parts in sequences.items()
            }
            if len(set(signatures.values())) > 1:
                # A call that is known to wait must be this one or a later one: earlier ones only lack their results.
                if not any(len(parts) > index and self._is_waiting(parts[-1]) for parts in sequences.values()):
                    return
                ended = [rank for rank, signature in signatures.items() if signature is None]
                if ended:
                    yield self._never_begun(sequences, ended, index, last)
                else:
                    yield _other_call(sequences, signatures, index)
                return

    def _are_copies(self, parts: Sequence[CallPart]) -> bool:
        """Return True if the parameters of these gradients began equal on all ranks, so that they are one parameter."""
        names = {(part.first.parameter or "").removesuffix(_GRADIENT) for part in parts}
        for name in names:
            contents = {self._parameters.get((part.rank, part.first.run), {}).get(name) for part in parts}
            if len(contents) != 1 or None in contents:
                return False
        return True

    def _unsent(self, calls: _Sequences, last: Mapping[int, Record]) -> Iterator[_Deviation]:
        """Yield a message that a rank waits for, and that its sender did not send."""
        for rank, parts in calls.items():
            if not parts or parts[-1].call.kind != "recv" or not self._is_waiting(parts[-1]):
                continue
            part, sender = parts[-1], parts[-1].call.peer
            if sender is None or sender not in calls:
                continue
            channel = (part.call.group, part.call.tag)
            sent = [
                one
                for one in calls[sender]
                if (one.call.kind, one.call.peer) == ("send", rank) and (one.call.group, one.call.tag) == channel
            ]
            received = [one for one in parts if one.call.kind == "recv" and one.call.peer == sender]
            if len(sent) < len([one for one in received if one.call.tag == part.call.tag]):
                text = (
                    f"rank {rank} waits for a message of rank {sender} at {_location(part.first)}, which rank {sender} "
                    f"never sent: {_ended(last[sender])}"
                )
                yield _Deviation(RankFinding(part.first, text), (sender,), moment_of(part.first))

    def _never_begun(
        self, sequences: _Sequences, ended: Sequence[int], index: int, last: Mapping[int, Record]
    ) -> _Deviation:
        """Return the deviation of ranks that have no call at `index`, while others wait in one."""
        longest = max((parts for rank, parts in sequences.items() if rank not in ended), key=len)
        skipped = _skipped(longest, sequences[ended[0]])
        if skipped is not None:
            missing, instead = skipped
            text = f"{in_words(ended)} never began {_named(missing)}, and ran {_named(instead)} in its place"
            text += f"; {in_words(self._waiting(sequences))} waited at the end in {_named(longest[-1])}"
            return _Deviation(RankFinding(instead.first, text), tuple(ended), moment_of(instead.first))
        position = next((i for i in range(index, len(longest)) if self._is_waiting(longest[i])), len(longest) - 1)
        part = longest[position]
        waiting = self._waiting({rank: parts[: position + 1] for rank, parts in sequences.items() if rank not in ended})
        wait = "waits" if len(waiting) == 1 else "wait"
        ranks = in_words(ended)
        text = f"{in_words(waiting or [part.rank])} {wait} in {_named(part)}, which {ranks} never began"
        if position > index:
            text = (
                f"{in_words(waiting or [part.rank])} {wait} in {_named(part)}; the records of {ranks} end "
                f"{counted(position - index, 'completed call')} before it, so its last records were lost"
            )
        text += f": {_ended(last[ended[0]])}"
        return _Deviation(RankFinding(part.first, text), tuple(ended), moment_of(part.first))

    def _waiting(self, sequences: _Sequences) -> list[int]:
        return [rank for rank, parts in sequences.items() if parts and self._is_waiting(parts[-1])]


def _other_call(sequences: _Sequences, signatures: Mapping[int, Hashable], index: int) -> _Deviation:
    """Return the deviation of ranks that begin another call than the others at `index`."""
    groups: dict[Hashable, list[int]] = {}
    for rank, signature in sorted(signatures.items()):
        groups.setdefault(signature, []).append(rank)
    most, *others = sorted(groups.values(), key=len, reverse=True)
    ranks = others[0]
    ours, theirs = sequences[ranks[0]], sequences[most[0]]
    part, usual = ours[index], theirs[index]
    run = "runs" if len(ranks) == 1 else "run"
    text = f"{in_words(ranks)} {run} {_named(part, sized=True)} where {in_words(most)} "
    text += f"{'runs' if len(most) == 1 else 'run'} {_named(usual, sized=True)}"
    if _names(ours[index : index + 1]) == _names(theirs[index : index + 1]):
        text += ": the same line, with another tensor" if part.call.kind == usual.call.kind else ""
    elif _names(ours[index : index + 2]) == _names(theirs[index : index + 2][::-1]):
        text += ": in another order"
    elif _skipped(theirs, ours) is not None:
        text += f": {in_words(ranks)} lack{'s' * (len(ranks) == 1)} the latter"
    elif _skipped(ours, theirs) is not None:
        text += f": {in_words(most)} lack{'s' * (len(most) == 1)} the former"
    parts = tuple(of_rank[index] for of_rank in sequences.values())
    return _Deviation(RankFinding(part.first, text), tuple(ranks), moment_of(part.first), parts)


def _crossed(sequences: _Sequences) -> Optional[_Deviation]:
    """Return the first sum of gradients with different names, if all ranks add up the same gradients in a step."""
    steps: dict[Optional[int], dict[int, list[CallPart]]] = {}
    for rank, parts in sequences.items():
        for part in parts:
            if part.call.kind == "all_reduce" and (part.first.parameter or "").endswith(_GRADIENT):
                steps.setdefault(part.first.step, {}).setdefault(rank, []).append(part)
    for _, of_step in sorted(steps.items(), key=lambda item: item[0] or 0):
        names = {rank: tuple(part.first.parameter or "" for part in parts) for rank, parts in of_step.items()}
        if len(set(names.values())) < 2 or len(of_step) < len(sequences):
            continue
        if len({tuple(sorted(of_rank)) for of_rank in names.values()}) == 1:
            index = next(i for i, together in enumerate(zip(*names.values())) if len(set(together)) > 1)
            signatures = {rank: of_rank[index] for rank, of_rank in names.items()}
            return _other_call(of_step, signatures, index)
    return None


def _skipped(whole: Sequence[CallPart], shorter: Sequence[CallPart]) -> Optional[tuple[CallPart, CallPart]]:
    """Return the one call of `whole` that `shorter` lacks, and the call that it has in its place.

    Calls are recognised by their lines and parameters. None if the calls after it are not the same.
    """
    ours, theirs = _names(whole), _names(shorter)
    index = next((i for i, (one, other) in enumerate(zip(ours, theirs)) if one != other), None)
    if index is None or ours[index + 1 : len(theirs) + 1] != theirs[index:]:
        return None
    return whole[index], shorter[index]


def _names(parts: Sequence[CallPart]) -> list[Hashable]:
    return [
        (part.call.kind, part.first.parameter, part.first.source, part.first.module, part.first.shape) for part in parts
    ]


def _signature(part: CallPart) -> Hashable:
    """Return a value that has to be equal on all ranks of the call."""
    kind, first = part.call.kind, part.first
    size = (first.dtype, math.prod(first.shape or ())) if kind in _OF_ONE_SIZE else None
    return kind, part.call.root, size


def _named(part: CallPart, *, sized: bool = False) -> str:
    """`all_reduce of up.weight.grad at train.py:25 (number 3 of its kind in group 0, step 1)`."""
    first = part.first
    of = f" of {first.parameter}" if first.parameter else ""
    shape = f" ({first.dtype}{list(first.shape or ())})" if sized else ""
    number = f"number {part.call.nth} of its kind in group {part.call.group}, step {first.step}"
    return f"{part.call.kind}{of}{shape} at {_location(first)} ({number})"


def _ended(record: Record) -> str:
    return f"the last operator of rank {record.rank} is {record.op_type} at {_location(record)}, step {record.step}"


def _location(record: Record) -> str:
    """Return file name and line; the finding has the whole path."""
    return PurePath(record.source).name if record.source else record.op_name


def _begin(part: CallPart) -> int:
    return part.begin
