"""Order the events of several ranks in time by vector clocks (Lamport 1978, Mattern 1989).

Events of one rank are ordered by their positions. The input of a rank to a call (its part of an all_reduce, the message
of a send) comes before the outputs of all ranks of the call.
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
    """A moment in the run of a rank: positions increase from event to event."""

    rank: int
    position: int


class Join(NamedTuple):
    """The part of one rank in a call of several ranks.

    key         the same for all parts of one call
    begin, end  positions of the rank: it sends at `begin`, and has received from the other ranks at `end`
    gives       the rank sends
    takes       the rank receives
    """

    key: Hashable
    rank: int
    begin: int
    end: int
    gives: bool = True
    takes: bool = True


class Clock(NamedTuple):
    """A point, and in `seen` the last position of each rank that certainly comes before it; -1 if there is none.

    columns: the index in `seen`, by rank
    """

    point: Point
    seen: np.ndarray
    columns: dict[int, int]

    @property
    def total(self) -> int:
        """A number that is larger for later events: a sort key."""
        return sum(self.seen.tolist())


class _Waiting(NamedTuple):
    """An event of a rank. At the same position, ends of calls come after beginnings."""

    position: int
    kind: int  # 0 sends, 1 receives, 2 a point of the result
    join: Join


def clocks(joins: Iterable[Join], points: Iterable[Point]) -> dict[Point, Clock]:
    """Return the clocks of points on ranks that exchange data in calls.

    If the part of a rank in a call is missing, the call joins the other ranks. If parts wait for each other in a
    circle, which is impossible in a run, the part with the smallest position continues.

    >>> joins = [Join("sum", 0, begin=4, end=5), Join("sum", 1, begin=8, end=9)]
    >>> known = clocks(joins, [Point(0, 3), Point(1, 20)])
    >>> happens_before(known[Point(0, 3)], known[Point(1, 20)])
    True
    """
    import numpy as np

    events: dict[int, list[_Waiting]] = defaultdict(list)
    pending_senders: dict[Hashable, int] = defaultdict(int)
    pending_takers: dict[Hashable, int] = defaultdict(int)
    for join in joins:
        if join.gives:
            pending_senders[join.key] += 1
            events[join.rank].append(_Waiting(join.begin, 0, join))
        if join.takes:
            pending_takers[join.key] += 1
            events[join.rank].append(_Waiting(join.end, 1, join))
    unique = set(points)
    for point in unique:
        events[point.rank].append(_Waiting(point.position, 2, Join(None, point.rank, point.position, point.position)))
    columns = {rank: column for column, rank in enumerate(sorted(events))}
    for queue in events.values():
        queue.sort(key=lambda event: (event.position, event.kind), reverse=True)
    current = {rank: np.full(len(columns), -1, dtype=np.int64) for rank in columns}
    sent: dict[Hashable, np.ndarray] = {}
    waiting: dict[Hashable, list[int]] = defaultdict(list)
    result: dict[Point, Clock] = {}

    def run(rank: int, *, forced: bool = False) -> None:
        """Continue with a rank until it waits for others."""
        clock, column, queue = current[rank], columns[rank], events[rank]
        while queue:
            position, kind, join = queue[-1]
            if kind == 1 and pending_senders[join.key] > 0 and not forced:
                waiting[join.key].append(rank)
                return
            forced = False
            queue.pop()
            if kind == 1:
                pending_takers[join.key] -= 1
                # The clock of a call is dropped after its last part, to save memory: there are many calls, and clocks
                # are as long as there are ranks.
                is_open = pending_takers[join.key] or pending_senders[join.key]
                received = sent.get(join.key) if is_open else sent.pop(join.key, None)
                if received is not None:
                    np.maximum(clock, received, out=clock)
            clock[column] = max(clock[column], position)
            if kind == 2:
                result[Point(rank, position)] = Clock(Point(rank, position), clock.copy(), columns)
            elif kind == 0:
                received = sent.get(join.key)
                sent[join.key] = clock.copy() if received is None else np.maximum(received, clock)
                pending_senders[join.key] -= 1
                if not pending_senders[join.key]:
                    ready.extend(waiting.pop(join.key, ()))

    ready = list(columns)
    while True:
        while ready:
            run(ready.pop())
        stuck = [(events[rank][-1].position, rank) for rank in columns if events[rank]]
        if not stuck:
            return result
        _, rank = heapq.nsmallest(1, stuck)[0]
        waiting[events[rank][-1].join.key].remove(rank)
        run(rank, forced=True)


def happens_before(first: Clock, second: Clock) -> bool:
    """Return True if the first event comes before the second in every possible order of the run."""
    if first.point.rank == second.point.rank:
        return first.point.position < second.point.position
    return bool(second.seen[second.columns[first.point.rank]] >= first.point.position)
