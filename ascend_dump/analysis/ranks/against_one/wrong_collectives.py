"""Find collectives with wrong results, when several ranks are compared with one.

Collectives run only on the side with several ranks, so the other side is no reference for them. Their results are
judged by their inputs: a sum is computed again, and moved data must arrive unchanged. A wrong call is an origin. Later
differences of tensors over several ranks, and of operators that only these ranks run, follow from it. Operators that
the single rank runs too are judged by their own inputs and stay origins. A difference first seen at an input follows
from an earlier wrong call too.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import replace
from typing import NamedTuple

from ascend_dump.analysis.alignment.shards import is_over_ranks
from ascend_dump.analysis.explaining.results import Origin, Pair
from ascend_dump.analysis.operators.nonfinite import executions
from ascend_dump.analysis.operators.properties import COLLECTIVES
from ascend_dump.analysis.ranks.collective_calls import CallBook, operator_key, point_of, record_key
from ascend_dump.analysis.ranks.collective_results import RankFinding, check_call, in_words
from ascend_dump.analysis.ranks.vector_clocks import Clock, Point, clocks, happens_before
from ascend_dump.common.units import counted
from ascend_dump.reading import Record

__all__ = ["of_one_rank", "once_for_ranks", "with_wrong_calls"]


class _WrongCall(NamedTuple):
    """A wrong call, with the operators of all its ranks."""

    finding: RankFinding
    point: Point
    operators: frozenset[Hashable]


def with_wrong_calls(origins: Sequence[Origin], records: Iterable[Record], pairs: Iterable[Pair]) -> list[Origin]:
    """Add wrong collective calls to the origins, and remove the origins that follow from these calls.

    Without any origin, the calls are not checked.

    records  the records of the side with several ranks, in the order of the dump
    pairs    all pairs, including the pairs of the calls
    """
    if not origins:
        return []
    book, wrong = _checked(records)
    if not wrong:
        return list(origins)
    points = [point_of(origin.pair.record) if _may_follow(origin) else None for origin in origins]
    # A sum over ranks may be wrong because of a term of the rank of the wrong call, so its time is compared on that
    # rank. All ranks run one program: the tensor is assumed to be at the same position there.
    over_ranks = {
        Point(call.point.rank, point.position)
        for call in wrong
        for origin, point in zip(origins, points)
        if point is not None and is_over_ranks(origin.pair.transformation)
    }
    single = {point for point in points if point is not None}
    times = clocks(book.joins(), {*(call.point for call in wrong), *over_ranks, *single})
    first = _first_of_each(wrong, times)
    explained: dict[Hashable, list[Origin]] = {record_key(call.finding.record): [] for call, _ in first}
    remaining: list[Origin] = []
    for origin, point in zip(origins, points):
        earlier = [call for call, _ in first if point is not None and _is_before(call, origin, point, times)]
        if earlier:
            explained[record_key(earlier[0].finding.record)].append(origin)
        else:
            remaining.append(origin)
    of_record = {record_key(pair.record): pair for pair in pairs if record_key(pair.record) in explained}
    of_calls = [
        _origin(call, count, explained[key], of_record[key])
        for call, count in first
        if (key := record_key(call.finding.record)) in of_record
    ]
    return sorted([*of_calls, *remaining], key=lambda origin: -1 if origin.step is None else origin.step)


def once_for_ranks(origins: Sequence[Origin]) -> list[Origin]:
    """Merge origins at the same operator of several ranks, which run one program. The evidence names the ranks."""
    groups: dict[Hashable, list[Origin]] = {}
    for origin in origins:
        is_of_actual = origin.pair.actual is not None, origin.pair.reference is not None
        groups.setdefault((origin.kind, origin.op_name, origin.step, is_of_actual), []).append(origin)
    combined = []
    for first, *others in groups.values():
        ranks = sorted({origin.rank for origin in others if origin.rank is not None} - {first.rank})
        explains = max(origin.explains for origin in (first, *others))
        evidence = (*first.evidence, f"the same on {in_words(ranks)}") if ranks else first.evidence
        combined.append(replace(first, evidence=evidence, explains=explains))
    return combined


def of_one_rank(origins: Sequence[Origin]) -> Sequence[Origin]:
    """Return the origins in the order of steps, without combined ones that an origin on a single rank explains.

    Combined origins are those at collectives, and at tensors over several ranks, such as a sum. They are dropped if the
    same or an earlier step has an origin on a single rank: that one shows which rank is at fault.
    """
    steps: dict[int, list[Origin]] = {}
    for origin in origins:
        steps.setdefault(-1 if origin.pair.record.step is None else origin.pair.record.step, []).append(origin)
    reported: list[Origin] = []
    has_single = False
    for _, of_step in sorted(steps.items()):
        single = [
            origin
            for origin in of_step
            if not origin.op_type.startswith(COLLECTIVES) and not is_over_ranks(origin.pair.transformation)
        ]
        has_single = has_single or bool(single)
        reported += single if has_single else of_step
    return reported


def _may_follow(origin: Origin) -> bool:
    """Return True if the origin concerns a tensor over several ranks, an operator that only they run, or an input."""
    is_one_sided = origin.pair.actual is None or origin.pair.reference is None
    if origin.pair.record.io == "input":
        return True
    return (origin.kind == "structure" and is_one_sided) or is_over_ranks(origin.pair.transformation)


def _checked(records: Iterable[Record]) -> tuple[CallBook, list[_WrongCall]]:
    book = CallBook()
    for members in executions(records):
        book.look_at(members)
    book.end()
    wrong = []
    for parts in book.calls.values():
        for finding in check_call(parts)[0] if len(parts) > 1 else ():
            # The time at which the rank sends its input, which is before the outputs of all ranks.
            point = point_of(finding.record)
            if point is not None:
                wrong.append(_WrongCall(finding, point, frozenset(operator_key(part.first) for part in parts)))
    return book, wrong


def _first_of_each(wrong: Sequence[_WrongCall], times: dict[Point, Clock]) -> list[tuple[_WrongCall, int]]:
    """Return the first wrong call per operator type and rank, with the number of such calls.

    A call with several wrong outputs counts once.
    """
    groups: dict[Hashable, dict[Hashable, _WrongCall]] = {}
    for call in sorted(wrong, key=lambda call: times[call.point].total):
        record = call.finding.record
        groups.setdefault((record.rank, record.op_type), {}).setdefault(operator_key(record), call)
    return [(next(iter(group.values())), len(group)) for group in groups.values()]


def _is_before(call: _WrongCall, origin: Origin, point: Point, times: dict[Point, Clock]) -> bool:
    if operator_key(origin.pair.record) in call.operators:
        return True
    last = point._replace(rank=call.point.rank) if is_over_ranks(origin.pair.transformation) else point
    return happens_before(times[call.point], times[last])


def _origin(call: _WrongCall, count: int, follow: Sequence[Origin], pair: Pair) -> Origin:
    record = call.finding.record
    evidence = [call.finding.reason]
    if count > 1:
        later = counted(count - 1, "later call")
        evidence.append(f"{later} of this type on rank {record.rank} also gave wrong results")
    if follow:
        evidence.append(f"{counted(len(follow), 'other difference')} may follow from it")
    settings = {"layers": record.op_name, "data": "tensor", "steps": str(record.step), "ranks": str(record.rank)}
    return Origin(
        "collective",
        replace(pair, reason=call.finding.reason),
        tuple(evidence),
        max((origin.explains for origin in follow), default=0),
        next=settings,
    )
