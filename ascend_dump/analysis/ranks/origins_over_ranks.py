"""Bring together what was found on each rank: what came over from another rank is no origin, and the rest is ordered.

A rank is compared alone, so what it gets of a collective or of a message seems to differ without a reason where another
rank put something else in. Where it is known what all ranks put in, and that is the same, the call itself is wrong and
stays an origin; where it is not known, because a rank is missing or a tensor unreadable, so is the kind of the origin.
Which origin came before which is told by vector clocks, which collectives and messages join.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple, Optional

from ascend_dump.analysis.explaining.origins import LAST, kind_order
from ascend_dump.analysis.explaining.pairs import Pairs
from ascend_dump.analysis.explaining.results import Origin, Pair
from ascend_dump.analysis.operators.names import is_view
from ascend_dump.analysis.operators.nonfinite import executions
from ascend_dump.analysis.operators.operator import storage_of
from ascend_dump.analysis.operators.properties import COLLECTIVES
from ascend_dump.analysis.ranks.collective_calls import CallBook, CallPart, point_of
from ascend_dump.analysis.ranks.collective_results import in_words
from ascend_dump.analysis.ranks.vector_clocks import Clock, Point, clocks, happens_before
from ascend_dump.reading import Record

__all__ = ["over_ranks"]

_COMPARED = ("equal", "noise", "undecided", "different", "structure")
#: DDP fills its buffers of gradients by copies that PyTorch does not report.
_BUFFER = "possibly carried on from an earlier difference, by copies that are not recorded"
_UNKNOWN = "what other ranks put in is not known"


class _Found(NamedTuple):
    """An origin with its place; part: that of its rank in the call whose tensor it is, None of all others."""

    origin: Origin
    point: Point
    part: Optional[CallPart]


def over_ranks(origins: Sequence[Origin], records: Iterable[Record], pairs: Pairs) -> tuple[list[Origin], Pairs]:
    """The origins in the order of their times, without those that other ranks explain, and the pairs with that noted.

    records  of actual, in the order of the dump

    Where the dump does not tell in which order operators ran, no rank explains what is on another one.
    """
    places = _places(origins, pairs)
    if any(_key(origin.pair.record) not in places for origin in origins):
        return [_of_unknown_kind(one, [_UNKNOWN]) if one.kind == "collective" else one for one in origins], pairs
    book, writes = CallBook(), _Writes(origins)
    for members in executions(records):
        book.look_at(members)
        writes.look_at(members)
    book.end()
    calls = _Calls(book)
    found = [_found(origin, places[_key(origin.pair.record)], calls.part_of(origin)) for origin in origins]
    givers = [giver for one in found if one.part is not None for giver in calls.givers(one.part)]
    points = [giver.point for giver in givers if giver.point is not None]
    known = clocks(book.joins(), {*(one.point for one in found), *points})
    found.sort(key=lambda one: (known[one.point].total, one.point.rank))
    differing = _Differing(pairs, givers)
    kept: list[_Found] = []
    carried: list[_Found] = []
    reasons: dict[Hashable, str] = {}
    for one in found:
        reason = _why_none(one, calls, differing, kept, known, writes)
        if reason is None:
            unknown = _what_is_unknown(one, calls, differing)
            kept.append(one._replace(origin=_of_unknown_kind(one.origin, unknown)) if unknown else one)
        else:
            carried.append(one)
            reasons[_key(one.origin.pair.record)] = reason
    kept.sort(key=lambda one: kind_order(one.origin.kind))
    return [_with_others(one, carried, known) for one in kept], _explained(pairs, reasons)


def _is_of_call(origin: Origin) -> bool:
    return origin.op_type.startswith(COLLECTIVES)


def _found(origin: Origin, point: Point, part: Optional[CallPart]) -> _Found:
    if part is not None and origin.pair.record.io != "input":
        # What waits for a call runs after its end.
        point = point._replace(position=max(point.position, part.end))
    return _Found(origin, point, part)


class _Giver(NamedTuple):
    """A rank that puts something into a call.

    point  when; None if there are no records of the rank
    given  its records; none if they are not in the dump
    """

    rank: int
    point: Optional[Point]
    given: tuple[Record, ...]


class _Writes:
    """Which of the tensors that ranks put into calls were written by recorded operators."""

    def __init__(self, origins: Sequence[Origin]) -> None:
        records = [one.pair.actual for one in origins if one.pair.actual is not None and _is_of_call(one)]
        self._steps = {(record.run, record.rank, record.step) for record in records}
        #: When each version of a memory was written first.
        self._first: dict[Hashable, Point] = {}

    def look_at(self, members: Sequence[Record]) -> None:
        """The records of one run of an operator, in the order of the dump."""
        first = members[0]
        point = point_of(first) if (first.run, first.rank, first.step) in self._steps else None
        if point is None:
            return
        whole = [record for record in members if record.error is None]
        # A view has written nothing. In inference mode versions are not known, so its memory alone does not tell it.
        read = {_version(record) for record in whole if record.io == "input"} if is_view(first.op_type) else set()
        for version in {_version(record) for record in whole if record.io == "output"} - read:
            self._first.setdefault(version, point)

    def none_before(self, record: Record, point: Point) -> bool:
        """Whether it is known that no recorded operator of the step had written a tensor at this point."""
        version = _version(record)
        first = self._first.get(version)
        return version is not None and (first is None or first.position >= point.position)


class _Calls:
    """Finds the call that a record belongs to."""

    def __init__(self, book: CallBook) -> None:
        self._book = book
        parts = [part for every in book.calls.values() for part in every]
        self._of_operator = {_operator(part.first): part for part in parts}
        #: What waits for a call has its output in the same memory.
        self._of_memory: dict[Hashable, list[CallPart]] = {}
        for part in sorted(parts, key=lambda one: one.begin):
            for record in part.got:
                self._of_memory.setdefault(_memory(record), []).append(part)
        self._of_memory.pop(None, None)

    def part_of(self, origin: Origin) -> Optional[CallPart]:
        record = origin.pair.actual
        if record is None:
            return None
        part = self._of_operator.get(_operator(record))
        if part is not None or not _is_of_call(origin):
            return part
        point = point_of(record)
        before = [one for one in self._of_memory.get(_memory(record), ()) if point and one.begin < point.position]
        return before[-1] if before else None

    def givers(self, part: CallPart) -> Iterator[_Giver]:
        parts = {one.rank: one for one in self._book.calls[part.key]}
        told = part.told
        if told.kind == "recv":
            ranks = [] if told.peer is None else [told.peer]
        elif told.kind in ("broadcast", "scatter") and told.root is not None:
            ranks = [told.root]
        else:
            ranks = [*part.members]
        for rank in ranks:
            own = parts.get(rank)
            # Of a rank that recorded nothing of the call: ranks run one program.
            point = Point(rank, (own or part).begin) if rank in self._book.ranks else None
            yield _Giver(rank, point, () if own is None else own.given)


class _Differing:
    """Whether what ranks put into calls differs from what they put in in the reference."""

    def __init__(self, pairs: Pairs, givers: Iterable[_Giver]) -> None:
        wanted = {_key(record) for giver in givers for record in giver.given}
        #: Pairs of steps that are equal are not looked at.
        self._verdicts = dict.fromkeys(wanted, "equal")
        for pair in pairs.looked_at() if wanted else ():
            if pair.actual is not None and (key := _key(pair.actual)) in wanted:
                self._verdicts[key] = pair.verdict

    def is_known(self, giver: _Giver) -> bool:
        return bool(giver.given) and all(self._verdicts[_key(record)] in _COMPARED for record in giver.given)

    def differs(self, giver: _Giver) -> bool:
        return any(self._verdicts[_key(record)] in ("different", "structure") for record in giver.given)


def _why_none(
    one: _Found,
    calls: _Calls,
    differing: _Differing,
    kept: Sequence[_Found],
    known: Mapping[Point, Clock],
    writes: _Writes,
) -> Optional[str]:
    """Why a difference is no origin, given the origins before it; None where it is one."""
    part, origin = one.part, one.origin
    if part is None:
        return None
    sure = [cause.point for cause in kept if cause.origin.kind not in LAST]

    def follows(point: Point) -> bool:
        return any(happens_before(known[cause], known[point]) for cause in sure)

    if origin.kind in ("input", "parameter"):
        is_buffer = origin.pair.actual is not None and writes.none_before(origin.pair.actual, one.point)
        return _BUFFER if is_buffer and follows(one.point) else None
    if origin.kind not in ("collective", "unknown"):
        return None
    givers = [*calls.givers(part)]
    ranks = [giver.rank for giver in givers if differing.differs(giver)]
    if ranks:
        return f"carried on from {in_words(ranks)}: {part.named}"
    ranks = [
        giver.rank
        for giver in givers
        if giver.point is not None and not differing.is_known(giver) and follows(giver.point)
    ]
    if ranks:
        return f"possibly carried on from {in_words(ranks)}: {part.named}"
    return f"carried on from the call it waits for: {part.named}" if any(one.part is part for one in kept) else None


def _what_is_unknown(one: _Found, calls: _Calls, differing: _Differing) -> list[str]:
    """What is not known of what ranks put into the call whose result an origin is, in sentences."""
    if one.origin.kind not in ("collective", "unknown") or not _is_of_call(one.origin):
        return []
    givers = [] if one.part is None else [*calls.givers(one.part)]
    if not givers:
        return [_UNKNOWN]
    absent = [giver.rank for giver in givers if giver.point is None]
    blind = [giver.rank for giver in givers if giver.point is not None and not differing.is_known(giver)]
    found = []
    if absent:
        were, they = ("was", "it") if len(absent) == 1 else ("were", "they")
        found.append(f"{in_words(absent)} {were} not compared, so what {they} put in is not known")
    if blind:
        found.append(f"what {in_words(blind)} put in could not be compared")
    return found


def _of_unknown_kind(origin: Origin, why: Sequence[str]) -> Origin:
    return replace(origin, kind="unknown", evidence=(*origin.evidence, *why), first_seen=True)


def _with_others(one: _Found, carried: Sequence[_Found], known: Mapping[Point, Clock]) -> Origin:
    """An origin with what it explains on other ranks."""
    most: dict[int, int] = {}
    for other in carried:
        rank = other.point.rank
        if rank != one.point.rank and happens_before(known[one.point], known[other.point]):
            # Differences of one rank may have the same consequences.
            most[rank] = max(most.get(rank, 0), other.origin.explains + 1)
    if not most or one.origin.kind in LAST:
        return one.origin
    evidence = (*one.origin.evidence, f"what {in_words([*most])} got of collectives or messages after it differs too")
    return replace(one.origin, evidence=evidence, explains=one.origin.explains + sum(most.values()))


def _places(origins: Sequence[Origin], pairs: Pairs) -> dict[Hashable, Point]:
    """When the operators of origins ran. What only the reference runs belongs behind what ran before it in actual."""
    points = [(one.pair, point_of(one.pair.record)) for one in origins]
    found = {_key(pair.record): point for pair, point in points if point is not None}
    alone = {_key(pair.record) for pair, _ in points if pair.actual is None}
    last: dict[Optional[int], Record] = {}
    for pair in pairs.looked_at() if alone else ():
        record = pair.record
        if pair.actual is not None:
            last[record.rank] = record
        elif _key(record) in alone and record.rank in last:
            before = point_of(last[record.rank])
            if before is not None:
                found[_key(record)] = before._replace(position=before.position + 1)
    return found


def _explained(pairs: Pairs, reasons: Mapping[Hashable, str]) -> Pairs:
    def explained(pair: Pair) -> Pair:
        reason = reasons.get(_key(pair.record))
        return pair if reason is None else replace(pair, explained=True, reason=reason)

    return pairs.replaced(explained) if reasons else pairs


def _operator(record: Record) -> Hashable:
    return (record.run, record.rank, record.step, record.execution)


def _key(record: Record) -> Hashable:
    return (_operator(record), record.io, record.index)


def _version(record: Record) -> Optional[Hashable]:
    """What tensors have in common that lie in one memory with no write in between; None if the dump does not tell."""
    storage = storage_of(record)
    return None if storage is None else (record.run, record.rank, record.step, storage)


def _memory(record: Record) -> Optional[Hashable]:
    storage = record.attrs.get("storage")
    return None if storage is None or storage < 0 else (record.run, record.rank, record.step, storage)
