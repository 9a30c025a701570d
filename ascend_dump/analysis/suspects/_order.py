"""Order the suspects of several ranks by their collectives."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from ascend_dump.analysis.ranks import CallBook, Clock, clocks, happens_before
from ascend_dump.analysis.suspects._table import Suspect

__all__ = ["in_order_of_ranks"]

#: Maximum number of suspects that are considered as predecessors of others.
_MOST = 256


def in_order_of_ranks(suspects: Iterable[Suspect], book: CallBook, tier: Callable[[str], int]) -> list[Suspect]:
    """Return the suspects sorted by tier, step and vector clock, each with a sentence about its predecessors.

    suspects  their order is kept if the dump has no collectives, or does not record the order of operators
    book      after its `end` was called
    tier      returns the tier of a rule; smaller ones are more certain
    """
    in_dump_order = list(suspects)
    points = [book.point(suspect.record) for suspect in in_dump_order]
    joins = list(book.joins())
    if not joins or any(point is None for point in points):
        return in_dump_order
    clock_of = clocks(joins, (point for point in points if point is not None))
    timed = [(suspect, clock_of[point]) for suspect, point in zip(in_dump_order, points) if point is not None]
    timed.sort(key=lambda pair: (tier(pair[0].rule), pair[0].step or 0, pair[1].total))
    return [suspect._replace(order=_words(suspect, clock, timed[:_MOST])) for suspect, clock in timed]


def _words(suspect: Suspect, clock: Clock, timed_suspects: Sequence[tuple[Suspect, Clock]]) -> str:
    before = [
        earlier
        for earlier, earlier_clock in timed_suspects
        if earlier is not suspect and happens_before(earlier_clock, clock)
    ]
    if not before:
        return "none of the others comes before it on any rank"
    first = min(
        before,
        key=lambda earlier: next(earlier_clock.total for timed, earlier_clock in timed_suspects if timed is earlier),
    )
    name = first.op_name or first.op_type
    and_others = f", and of {len(before) - 1} others" if len(before) > 1 else ""
    return f"comes after {name} of rank {first.rank}, step {first.step}{and_others}"
