"""Find collectives with wrong results, when several ranks are compared with one.

Collectives run only on the side with several ranks, so the other side has no reference for them. Their inputs are one:
a sum is computed again, and moved data must arrive unchanged. A call that is wrong by that is an origin. Differences in
what the ranks hold together afterwards, and in operators that only they run, follow from it; operators that the single
rank runs too are judged by their own inputs and stay origins.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple, Optional

from ascend_dump.analysis.alignment.shards import is_over_ranks
from ascend_dump.analysis.explaining.results import Origin, Pair
from ascend_dump.analysis.operators.nonfinite import executions
from ascend_dump.analysis.operators.properties import COLLECTIVES
from ascend_dump.analysis.ranks.collective_calls import CallBook, point_of
from ascend_dump.analysis.ranks.collective_results import RankFinding, check_call
from ascend_dump.analysis.ranks.vector_clocks import Clock, Point, clocks, happens_before
from ascend_dump.reading import Record

__all__ = ["of_one_rank", "with_wrong_calls"]


class _WrongCall(NamedTuple):
    """operators: the operators of all ranks that make up the call."""

    finding: RankFinding
    point: Point
    operators: frozenset[Hashable]


def with_wrong_calls(origins: Sequence[Origin], records: Iterable[Record], pairs: Iterable[Pair]) -> list[Origin]:
    """Add wrong collective calls to the origins, and remove those origins that follow from them.

    records  of the side with several ranks, in the order of the dump
    pairs    all pairs; those of the calls are looked up in them
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
        if place is not None and is_over_ranks(origin.pair.transformation)
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


def of_one_rank(origins: Sequence[Origin]) -> Sequence[Origin]:
    """The origins in the order of steps, without combined ones that an origin on a single rank explains.

    Combined origins concern what several ranks hold together, such as a sum. They are dropped if an origin of the same
    or an earlier step names the rank that is wrong.
    """
    steps: dict[int, list[Origin]] = {}
    for one in origins:
        steps.setdefault(-1 if one.pair.record.step is None else one.pair.record.step, []).append(one)
    found: list[Origin] = []
    known = False
    for _, every in sorted(steps.items()):
        own = [
            one
            for one in every
            if not one.op_type.startswith(COLLECTIVES) and not is_over_ranks(one.pair.transformation)
        ]
        known = known or bool(own)
        found += own if known else every
    return found


def _may_follow(origin: Origin) -> bool:
    """Whether the origin concerns several ranks together, or an operator that only they run."""
    alone = origin.pair.actual is None or origin.pair.reference is None
    return (origin.kind == "structure" and alone) or is_over_ranks(origin.pair.transformation)


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
    """The first wrong call per operator type and rank, with the number of such calls."""
    found: dict[Hashable, list[_WrongCall]] = {}
    for one in sorted(wrong, key=lambda one: known[one.point].total):
        record = one.finding.record
        found.setdefault((record.rank, record.op_type), []).append(one)
    return [(several[0], len(several)) for several in found.values()]


def _is_before(one: _WrongCall, origin: Origin, place: Point, known: dict[Point, Clock]) -> bool:
    if _operator(origin.pair.record) in one.operators:
        return True
    last = place._replace(rank=one.point.rank) if is_over_ranks(origin.pair.transformation) else place
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
