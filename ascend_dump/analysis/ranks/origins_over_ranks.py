"""Combine the origins of all ranks: drop those received from other ranks, and sort the others.

Each rank is compared by itself. So if another rank has sent a different tensor, the output of a collective or message
differs without a reason on this rank. If the inputs of all ranks are known and equal, the call itself is wrong and
stays an origin. If they are not known, because a rank is missing or a tensor unreadable, the origin gets the kind
"unknown". Vector clocks over collectives and messages put the origins in the order of time.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple, Optional

from ascend_dump.analysis.explaining.origins import LAST, importance
from ascend_dump.analysis.explaining.pairs import Pairs
from ascend_dump.analysis.explaining.results import Origin, Pair
from ascend_dump.analysis.operators.names import is_view
from ascend_dump.analysis.operators.nonfinite import executions
from ascend_dump.analysis.operators.operator import storage_of
from ascend_dump.analysis.operators.properties import COLLECTIVES
from ascend_dump.analysis.ranks.collective_calls import CallBook, CallPart, operator_key, point_of, record_key
from ascend_dump.analysis.ranks.collective_results import in_words
from ascend_dump.analysis.ranks.vector_clocks import Clock, Point, clocks, happens_before
from ascend_dump.reading import Record

__all__ = ["over_ranks"]

_COMPARED = ("equal", "noise", "undecided", "different", "structure")
#: The reason for an input that no recorded operator wrote: DDP copies gradients into its buffers, which PyTorch does
#: not report.
_BUFFER = "may follow from an earlier difference, through copies that are not recorded"
_UNKNOWN = "the inputs of other ranks are not known"


class _TimedOrigin(NamedTuple):
    """An origin with its time, and with the part of its rank in a call if the origin is at a tensor of a call."""

    origin: Origin
    point: Point
    part: Optional[CallPart]


def over_ranks(origins: Sequence[Origin], records: Iterable[Record], pairs: Pairs) -> tuple[list[Origin], Pairs]:
    """Return the origins without those received from other ranks, and the pairs with the reasons of dropped origins.

    The origins are sorted by `importance`, then by time.

    records  the records of actual, in the order of the dump

    If the dump does not record the order of operators, no origin is dropped. Origins at collectives get the kind
    "unknown".
    """
    points = _points_of(origins, pairs)
    if any(record_key(origin.pair.record) not in points for origin in origins):
        without_order = (
            _of_unknown_kind(origin, [_UNKNOWN]) if origin.kind == "collective" else origin for origin in origins
        )
        return list(without_order), pairs
    book, writes = CallBook(), _Writes(origins)
    for members in executions(records):
        book.look_at(members)
        writes.look_at(members)
    book.end()
    calls = _Calls(book)
    candidates = [_timed(origin, points[record_key(origin.pair.record)], calls.part_of(origin)) for origin in origins]
    senders = [sender for timed in candidates for sender in calls.senders_to(timed)]
    sender_points = [sender.point for sender in senders if sender.point is not None]
    times = clocks(book.joins(), {*(timed.point for timed in candidates), *sender_points})
    verdicts = _InputVerdicts(pairs, senders)
    remaining: list[_TimedOrigin] = []
    received: list[_TimedOrigin] = []
    reasons: dict[Hashable, str] = {}
    for timed in sorted(candidates, key=lambda timed: (times[timed.point].total, timed.point.rank)):
        reason = _why_received(timed, calls, verdicts, remaining, times, writes)
        if reason is None:
            unknown = _unknown_inputs(timed, calls, verdicts)
            remaining.append(timed._replace(origin=_of_unknown_kind(timed.origin, unknown)) if unknown else timed)
        else:
            received.append(timed)
            reasons[record_key(timed.origin.pair.record)] = reason
    order = importance(timed.origin for timed in remaining)
    remaining.sort(key=lambda timed: order(timed.origin))
    return [_with_effects(timed, received, times) for timed in remaining], _explained(pairs, reasons)


def _is_of_call(origin: Origin) -> bool:
    return origin.op_type.startswith(COLLECTIVES)


def _timed(origin: Origin, point: Point, part: Optional[CallPart]) -> _TimedOrigin:
    is_inside = part is not None and not _is_of_call(origin)
    if part is not None and (is_inside or origin.pair.record.io != "input"):
        # Outputs exist from the end of the call on, also for the operator that waits for them.
        point = point._replace(position=max(point.position, part.end))
    return _TimedOrigin(origin, point, part)


class _Sender(NamedTuple):
    """A rank that sends tensors into a call.

    point   the time at which it sends; None if the dump has no records of the rank
    inputs  the records of the sent tensors; empty if they are not in the dump
    """

    rank: int
    point: Optional[Point]
    inputs: tuple[Record, ...]


class _Writes:
    """The first writes of recorded operators to each tensor, on the ranks and in the steps with an origin at a call."""

    def __init__(self, origins: Sequence[Origin]) -> None:
        records = [origin.pair.actual for origin in origins if origin.pair.actual is not None and _is_of_call(origin)]
        self._steps = {(record.run, record.rank, record.step) for record in records}
        #: By `_version`: the time of the first write.
        self._first: dict[Hashable, Point] = {}

    def look_at(self, members: Sequence[Record]) -> None:
        """Add the records of one run of an operator, in the order of the dump."""
        first = members[0]
        point = point_of(first) if (first.run, first.rank, first.step) in self._steps else None
        if point is None:
            return
        readable = [record for record in members if record.error is None]
        # A view writes nothing. Inference mode has no versions, so the output of a view would look like a write to its
        # memory.
        read = {_version(record) for record in readable if record.io == "input"} if is_view(first.op_type) else set()
        for version in {_version(record) for record in readable if record.io == "output"} - read:
            self._first.setdefault(version, point)

    def none_before(self, record: Record, point: Point) -> bool:
        """Return True if certainly no recorded operator of the step wrote a tensor before this point."""
        version = _version(record)
        first = self._first.get(version)
        return version is not None and (first is None or first.position >= point.position)


class _Calls:
    """Finds the call of a record, and the ranks that send tensors into the call."""

    def __init__(self, book: CallBook) -> None:
        self._book = book
        parts = [part for parts_of_call in book.calls.values() for part in parts_of_call]
        self._of_operator = {operator_key(part.first): part for part in parts}
        #: By memory: the parts with an output there. An operator that waits for a call returns the same memory.
        self._of_memory: dict[Hashable, list[CallPart]] = {}
        for part in sorted(parts, key=lambda part: part.begin):
            for record in part.outputs:
                self._of_memory.setdefault(_memory(record), []).append(part)
        self._of_memory.pop(None, None)
        #: By rank and step.
        self._of_step: dict[Hashable, list[CallPart]] = {}
        for part in parts:
            self._of_step.setdefault((part.rank, part.first.step), []).append(part)
        #: By content: messages of which no receiver is recorded, because recording began later there.
        self._messages = {
            record.content: part
            for parts_of_call in book.calls.values()
            if len(parts_of_call) == 1
            for part in parts_of_call
            if part.call.kind == "send"
            for record in part.inputs
            if record.content is not None
        }

    def senders_to(self, timed: _TimedOrigin) -> Iterator[_Sender]:
        """Yield the ranks that send a tensor into the call of an origin, or the message that an operator reads."""
        if timed.part is not None:
            yield from self.senders(timed.part)
            return
        record = timed.origin.pair.actual
        if record is None or record.io != "input" or record.content is None:
            return
        message = self._messages.get(record.content)
        if message is not None and message.rank != record.rank:
            yield _Sender(message.rank, Point(message.rank, message.begin), message.inputs)

    def part_of(self, origin: Origin) -> Optional[CallPart]:
        record = origin.pair.actual
        if record is None:
            return None
        part = self._of_operator.get(operator_key(record))
        point = point_of(record)
        if part is not None or point is None:
            return part
        if not _is_of_call(origin):
            return self._around(record, point) if origin.kind in ("input", "parameter") else None
        parts = reversed(self._of_memory.get(_memory(record), []))
        return next((part for part in parts if part.begin < point.position), None)

    def _around(self, record: Record, point: Point) -> Optional[CallPart]:
        """Return the call that runs an operator itself, such as the copy at the end of a reduce_scatter of gloo."""
        parts = self._of_step.get((point.rank, record.step), ())
        inside = (part for part in parts if part.begin < point.position < part.end)
        return next((part for part in inside if part.first.source == record.source), None)

    def senders(self, part: CallPart) -> Iterator[_Sender]:
        parts = {member.rank: member for member in self._book.calls[part.key]}
        call = part.call
        if call.kind == "recv":
            ranks = [] if call.peer is None else [call.peer]
        elif call.kind in ("broadcast", "scatter") and call.root is not None:
            ranks = [call.root]
        else:
            ranks = [*part.members]
        for rank in ranks:
            own_part = parts.get(rank)
            # A rank without records of this call is assumed to send at the same position: all ranks run one program.
            point = Point(rank, (own_part or part).begin) if rank in self._book.ranks else None
            yield _Sender(rank, point, () if own_part is None else own_part.inputs)


class _InputVerdicts:
    """The verdicts on the inputs of ranks to calls."""

    def __init__(self, pairs: Pairs, senders: Iterable[_Sender]) -> None:
        keys = {record_key(record) for sender in senders for record in sender.inputs}
        #: "equal" unless a pair says otherwise: `looked_at` leaves out the pairs of equal steps.
        self._verdicts = dict.fromkeys(keys, "equal")
        for pair in pairs.looked_at() if keys else ():
            if pair.actual is not None and (key := record_key(pair.actual)) in keys:
                self._verdicts[key] = pair.verdict

    def is_known(self, sender: _Sender) -> bool:
        return bool(sender.inputs) and all(self._verdicts[record_key(record)] in _COMPARED for record in sender.inputs)

    def differs(self, sender: _Sender) -> bool:
        return any(self._verdicts[record_key(record)] in ("different", "structure") for record in sender.inputs)


def _why_received(
    candidate: _TimedOrigin,
    calls: _Calls,
    verdicts: _InputVerdicts,
    remaining: Sequence[_TimedOrigin],
    times: Mapping[Point, Clock],
    writes: _Writes,
) -> Optional[str]:
    """Return the reason why a difference is taken as received from another rank; None if it stays an origin.

    remaining: the earlier origins that stay
    """
    part, origin = candidate.part, candidate.origin
    if part is None:
        ranks = [sender.rank for sender in calls.senders_to(candidate) if verdicts.differs(sender)]
        return f"follows from {in_words(ranks)}: a message received before the recording began" if ranks else None
    certain = [cause.point for cause in remaining if cause.origin.kind not in LAST]

    def follows(point: Point) -> bool:
        return any(happens_before(times[cause], times[point]) for cause in certain)

    is_inside = not _is_of_call(origin)
    if origin.kind in ("input", "parameter") and not is_inside:
        is_buffer = origin.pair.actual is not None and writes.none_before(origin.pair.actual, candidate.point)
        return _BUFFER if is_buffer and follows(candidate.point) else None
    if origin.kind not in ("collective", "unknown") and not is_inside:
        return None
    senders = [*calls.senders(part)]
    ranks = [sender.rank for sender in senders if verdicts.differs(sender)]
    if ranks:
        return f"follows from {in_words(ranks)}: {part.named}"
    ranks = [
        sender.rank
        for sender in senders
        if sender.point is not None and not verdicts.is_known(sender) and follows(sender.point)
    ]
    if ranks:
        return f"may follow from {in_words(ranks)}: {part.named}"
    is_reported = any(timed.part is part for timed in remaining)
    return f"follows from the call it waits for: {part.named}" if is_reported else None


def _unknown_inputs(timed: _TimedOrigin, calls: _Calls, verdicts: _InputVerdicts) -> list[str]:
    """Return sentences about the unknown inputs of the call of an origin."""
    if timed.origin.kind not in ("collective", "unknown") or not _is_of_call(timed.origin):
        return []
    senders = [] if timed.part is None else [*calls.senders(timed.part)]
    if not senders:
        return [_UNKNOWN]
    absent = [sender.rank for sender in senders if sender.point is None]
    blind = [sender.rank for sender in senders if sender.point is not None and not verdicts.is_known(sender)]
    lines = []
    if absent:
        were, their = ("was", "its") if len(absent) == 1 else ("were", "their")
        lines.append(f"{in_words(absent)} {were} not compared, so {their} inputs are not known")
    if blind:
        lines.append(f"the inputs of {in_words(blind)} could not be compared")
    return lines


def _of_unknown_kind(origin: Origin, why: Sequence[str]) -> Origin:
    return replace(origin, kind="unknown", evidence=(*origin.evidence, *why), first_seen=True)


def _with_effects(timed: _TimedOrigin, received: Sequence[_TimedOrigin], times: Mapping[Point, Clock]) -> Origin:
    """Return the origin, with a line of evidence and a higher count if it explains differences on other ranks."""
    effects: dict[int, int] = {}
    for effect in received:
        rank = effect.point.rank
        if rank != timed.point.rank and happens_before(times[timed.point], times[effect.point]):
            # Received differences of one rank may have the same consequences, so only the largest count is used.
            effects[rank] = max(effects.get(rank, 0), effect.origin.explains + 1)
    if not effects or timed.origin.kind in LAST:
        return timed.origin
    text = f"later outputs of collectives or messages on {in_words([*effects])} differ too"
    evidence = (*timed.origin.evidence, text)
    return replace(timed.origin, evidence=evidence, explains=timed.origin.explains + sum(effects.values()))


def _points_of(origins: Sequence[Origin], pairs: Pairs) -> dict[Hashable, Point]:
    """Return the times of the operators of origins.

    An operator that only the reference runs has no time in actual. It gets the time right after the last operator
    before it that actual ran on this rank.
    """
    recorded = [(origin.pair, point_of(origin.pair.record)) for origin in origins]
    points = {record_key(pair.record): point for pair, point in recorded if point is not None}
    one_sided = {record_key(pair.record) for pair, _ in recorded if pair.actual is None}
    last: dict[Optional[int], Record] = {}
    for pair in pairs.looked_at() if one_sided else ():
        record = pair.record
        if pair.actual is not None:
            last[record.rank] = record
        elif record_key(record) in one_sided and record.rank in last:
            previous = point_of(last[record.rank])
            if previous is not None:
                points[record_key(record)] = previous._replace(position=previous.position + 1)
    return points


def _explained(pairs: Pairs, reasons: Mapping[Hashable, str]) -> Pairs:
    def explained(pair: Pair) -> Pair:
        reason = reasons.get(record_key(pair.record))
        return pair if reason is None else replace(pair, explained=True, reason=reason)

    return pairs.replaced(explained) if reasons else pairs


def _version(record: Record) -> Optional[Hashable]:
    """Return a key of the memory of a tensor that changes with each write; None if the dump does not record it."""
    storage = storage_of(record)
    return None if storage is None else (record.run, record.rank, record.step, storage)


def _memory(record: Record) -> Optional[Hashable]:
    storage = record.attrs.get("storage")
    return None if storage is None or storage < 0 else (record.run, record.rank, record.step, storage)
