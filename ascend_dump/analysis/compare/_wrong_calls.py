"""Several ranks against one: collectives run on the several ranks only, so nothing of the other side says whether what
they left is right. What the ranks put in says it: a sum is added again, and what is moved has to arrive.

A call that is wrong by that is an origin. What the ranks have together after it, and operators that they alone run,
differ because of it; operators that the one rank runs too are judged by their own inputs and stay origins.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple, Optional

from ascend_dump.analysis.compare._result import Origin, Pair
from ascend_dump.analysis.compare._shards import is_together
from ascend_dump.analysis.nonfinite import executions
from ascend_dump.analysis.ranks._calls import CallBook, point_of
from ascend_dump.analysis.ranks._check import RankFinding, check_call
from ascend_dump.analysis.ranks._order import Clock, Point, clocks, happens_before
from ascend_dump.reading import Record

__all__ = ["with_wrong_calls"]


class _WrongCall(NamedTuple):
    """operators: that the ranks made the call by."""

    finding: RankFinding
    point: Point
    operators: frozenset[Hashable]


def with_wrong_calls(origins: Sequence[Origin], records: Iterable[Record], pairs: Iterable[Pair]) -> list[Origin]:
    """The origins, with wrong calls of collectives in place of what comes after them and of them.

    records  of the side that has several ranks, in the order of the dump
    pairs    among which those of the calls are
    """
    if not origins:
        return []
    book, wrong = _checked(records)
    if not wrong:
        return list(origins)
    places = [point_of(one.pair.record) if _may_follow(one) else None for one in origins]
    # What ranks have together has the terms of all of them, which run the same program.
    together = {
        Point(one.point.rank, place.position)
        for one in wrong
        for origin, place in zip(origins, places)
        if place is not None and is_together(origin)
    }
    alone = {place for place in places if place is not None}
    known = clocks(book.joins(), {*(one.point for one in wrong), *together, *alone})
    first = _first_of_each(wrong, known)
    own: dict[Hashable, list[Origin]] = {_key(one.finding.record): [] for one, _ in first}
    kept: list[Origin] = []
    for origin, place in zip(origins, places):
        before = [one for one, _ in first if place is not None and _is_before(one, origin, place, known)]
        if before:
            own[_key(before[0].finding.record)].append(origin)
        else:
            kept.append(origin)
    of_record = {_key(pair.record): pair for pair in pairs if _key(pair.record) in own}
    made = [
        _origin(one, again, own[key], of_record[key])
        for one, again in first
        if (key := _key(one.finding.record)) in of_record
    ]
    return sorted([*made, *kept], key=lambda one: -1 if one.step is None else one.step)


def _may_follow(origin: Origin) -> bool:
    """Whether it says of the ranks together, or of operators that they alone run, that something is wrong."""
    alone = origin.pair.actual is None or origin.pair.reference is None
    return (origin.kind == "structure" and alone) or is_together(origin)


def _checked(records: Iterable[Record]) -> tuple[CallBook, list[_WrongCall]]:
    book = CallBook()
    for members in executions(records):
        book.look_at(members)
    book.end()
    wrong = []
    for parts in book.calls.values():
        for finding in check_call(parts)[0] if len(parts) > 1 else ():
            # Where its rank gave its part: that comes before what any rank has of the call.
            point = point_of(finding.record)
            if point is not None:
                wrong.append(_WrongCall(finding, point, frozenset(_operator(part.first) for part in parts)))
    return book, wrong


def _first_of_each(wrong: Sequence[_WrongCall], known: dict[Point, Clock]) -> list[tuple[_WrongCall, int]]:
    """The first wrong call of each kind of operator on each rank, and how many there are."""
    found: dict[Hashable, list[_WrongCall]] = {}
    for one in sorted(wrong, key=lambda one: known[one.point].total):
        record = one.finding.record
        found.setdefault((record.rank, record.op_type), []).append(one)
    return [(several[0], len(several)) for several in found.values()]


def _is_before(one: _WrongCall, origin: Origin, place: Point, known: dict[Point, Clock]) -> bool:
    if _operator(origin.pair.record) in one.operators:
        return True
    last = place._replace(rank=one.point.rank) if is_together(origin) else place
    return happens_before(known[one.point], known[last])


def _origin(one: _WrongCall, count: int, follow: Sequence[Origin], pair: Pair) -> Origin:
    record = one.finding.record
    evidence: Iterator[Optional[str]] = iter(
        (
            one.finding.reason,
            f"{count - 1} later calls on rank {record.rank} are wrong too" if count > 1 else None,
            f"{len(follow)} differences come after it, of what only several ranks have" if follow else None,
        )
    )
    settings = {"layers": record.op_name, "data": "tensor", "steps": str(record.step), "ranks": str(record.rank)}
    return Origin(
        "collective",
        replace(pair, reason=one.finding.reason),
        tuple(text for text in evidence if text is not None),
        max((origin.explains for origin in follow), default=0),
        next=settings,
    )


def _operator(record: Record) -> Hashable:
    return (record.run, record.rank, record.step, record.execution)


def _key(record: Record) -> Hashable:
    return (_operator(record), record.io, record.index)
