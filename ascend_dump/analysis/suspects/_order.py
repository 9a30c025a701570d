"""Suspects of several ranks in the order that their collectives give them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from ascend_dump.analysis.ranks import CallBook, Clock, clocks, happens_before
from ascend_dump.analysis.suspects._table import Suspect

__all__ = ["in_order_of_ranks"]

#: Suspects of which it is said what came before them.
_MOST = 256


def in_order_of_ranks(suspects: Iterable[Suspect], book: CallBook, tier: Callable[[str], int]) -> list[Suspect]:
    """Suspects sorted by their tier, then by vector clocks; each told which of the others came before it.

    book: ended
    suspects: in the order that holds where the dump does not tell of collectives, or when an operator ran
    """
    every = list(suspects)
    places = [book.point(one.record) for one in every]
    joins = list(book.joins())
    if not joins or any(place is None for place in places):
        return every
    known = clocks(joins, (place for place in places if place is not None))
    timed = [(one, known[place]) for one, place in zip(every, places) if place is not None]
    timed.sort(key=lambda pair: (tier(pair[0].rule), pair[0].step or 0, pair[1].total))
    return [one._replace(order=_words(one, clock, timed[:_MOST])) for one, clock in timed]


def _words(suspect: Suspect, clock: Clock, others: Sequence[tuple[Suspect, Clock]]) -> str:
    before = [one for one, other in others if one is not suspect and happens_before(other, clock)]
    if not before:
        return "none of the others comes before it on any rank"
    first = min(before, key=lambda one: next(other.total for found, other in others if found is one))
    name = first.op_name or first.op_type
    more = f", and of {len(before) - 1} others" if len(before) > 1 else ""
    return f"comes after {name} of rank {first.rank}, step {first.step}{more}"
