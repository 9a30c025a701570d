"""Which event of a run with several ranks came before which: vector clocks, joined where ranks wait for each other.

Lamport 1978, Mattern 1989. Events of one rank are ordered by their positions. What a rank gives into a call (its part
of an all_reduce, the message of a send) comes before what any rank has of it.
"""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Hashable, Iterable
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    import numpy as np

__all__ = ["Clock", "Join", "Point", "clocks", "happens_before"]


class Point(NamedTuple):
    """A moment of a rank: positions grow from one event of the rank to the next."""

    rank: int
    position: int


class Join(NamedTuple):
    """What one rank has to do with a call that several make together.

    key         what the parts of one call have in common
    begin, end  positions of the rank: it gives from `begin` on, and has what the others gave after `end`
    """

    key: Hashable
    rank: int
    begin: int
    end: int
    gives: bool = True
    takes: bool = True


class Clock(NamedTuple):
    """What had happened at a point: of each rank the last position that is known to come before, -1 for none.

    places: of the ranks in `seen`.
    """

    point: Point
    seen: np.ndarray
    places: dict[int, int]

    @property
    def total(self) -> int:
        """Grows from each event to those that it comes before, so that it sorts them."""
        return sum(self.seen.tolist())


class _Waiting(NamedTuple):
    """The next event of a rank: the ends of calls come after what begins at their position."""

    position: int
    kind: int  # 0 gives, 1 takes, 2 a point that is asked for
    join: Join


def clocks(joins: Iterable[Join], points: Iterable[Point]) -> dict[Point, Clock]:
    """The clocks of some points, given what joins the ranks.

    Calls of which a rank misses its part join the others. Where parts wait for each other in a circle, which no run
    does, the one with the smallest position goes on.

    >>> joins = [Join("sum", 0, begin=4, end=5), Join("sum", 1, begin=8, end=9)]
    >>> found = clocks(joins, [Point(0, 3), Point(1, 20)])
    >>> happens_before(found[Point(0, 3)], found[Point(1, 20)])
    True
    """
    import numpy as np

    events: dict[int, list[_Waiting]] = defaultdict(list)
    open_parts: dict[Hashable, int] = defaultdict(int)
    takers: dict[Hashable, int] = defaultdict(int)
    for join in joins:
        if join.gives:
            open_parts[join.key] += 1
            events[join.rank].append(_Waiting(join.begin, 0, join))
        if join.takes:
            takers[join.key] += 1
            events[join.rank].append(_Waiting(join.end, 1, join))
    wanted = set(points)
    for point in wanted:
        events[point.rank].append(_Waiting(point.position, 2, Join(None, point.rank, point.position, point.position)))
    places = {rank: place for place, rank in enumerate(sorted(events))}
    for row in events.values():
        row.sort(key=lambda one: (one.position, one.kind), reverse=True)
    now = {rank: np.full(len(places), -1, dtype=np.int64) for rank in places}
    given: dict[Hashable, np.ndarray] = {}
    waiting: dict[Hashable, list[int]] = defaultdict(list)
    found: dict[Point, Clock] = {}

    def run(rank: int, *, forced: bool = False) -> None:
        """Let a rank go on until it waits for others."""
        clock, place, row = now[rank], places[rank], events[rank]
        while row:
            position, kind, join = row[-1]
            if kind == 1 and open_parts[join.key] > 0 and not forced:
                waiting[join.key].append(rank)
                return
            forced = False
            row.pop()
            if kind == 1:
                takers[join.key] -= 1
                # Of many ranks there are many calls, and a clock is as long as there are ranks.
                known = given.get(join.key) if takers[join.key] or open_parts[join.key] else given.pop(join.key, None)
                if known is not None:
                    np.maximum(clock, known, out=clock)
            clock[place] = max(clock[place], position)
            if kind == 2:
                found[Point(rank, position)] = Clock(Point(rank, position), clock.copy(), places)
            elif kind == 0:
                known = given.get(join.key)
                given[join.key] = clock.copy() if known is None else np.maximum(known, clock)
                open_parts[join.key] -= 1
                if not open_parts[join.key]:
                    ready.extend(waiting.pop(join.key, ()))

    ready = list(places)
    while True:
        while ready:
            run(ready.pop())
        stuck = [(events[rank][-1].position, rank) for rank in places if events[rank]]
        if not stuck:
            return found
        _, rank = heapq.nsmallest(1, stuck)[0]
        waiting[events[rank][-1].join.key].remove(rank)
        run(rank, forced=True)


def happens_before(one: Clock, other: Clock) -> bool:
    """Whether an event comes before another one in every order that the run may have had."""
    if one.point.rank == other.point.rank:
        return one.point.position < other.point.position
    return bool(other.seen[other.places[one.point.rank]] >= one.point.position)
