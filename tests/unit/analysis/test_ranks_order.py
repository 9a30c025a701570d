"""Vector clocks against what can be reached in the graph of events."""

from __future__ import annotations

from itertools import product

from hypothesis import given
from hypothesis import strategies as st

from ascend_dump.analysis.ranks import Join, Point, clocks, happens_before

RANKS = 4


@st.composite
def runs(draw: st.DrawFn) -> tuple[list[Join], dict[Point, set[Point]]]:
    """The joins of a run that may have happened, and of each event those that come directly before it.

    Positions are even; what a call brings is there at the odd position behind its end.
    """
    now = [0] * RANKS
    last: list[Point] = [Point(rank, 0) for rank in range(RANKS)]
    edges: dict[Point, set[Point]] = {point: set() for point in last}
    joins: list[Join] = []

    def event(rank: int, position: int) -> Point:
        point = Point(rank, position)
        edges.setdefault(point, set()).add(last[rank])
        last[rank] = point
        return point

    for number in range(draw(st.integers(0, 12))):
        for rank in range(RANKS):
            for _ in range(draw(st.integers(0, 1))):
                now[rank] += 2
                event(rank, now[rank])
        members = draw(st.lists(st.sampled_from(range(RANKS)), min_size=2, max_size=RANKS, unique=True))
        root = draw(st.sampled_from([None, *members]))
        gathers = draw(st.booleans())
        begins, ends = {}, {}
        for rank in members:
            now[rank] += 2
            begins[rank] = event(rank, now[rank])
        for rank in members:
            for _ in range(draw(st.integers(0, 2))):  # operators that run while the call does
                now[rank] += 2
                event(rank, now[rank])
            ends[rank] = event(rank, now[rank] + 1)
        for rank in members:
            gives = root is None or gathers or rank == root
            takes = root is None or not gathers or rank == root
            joins.append(Join(number, rank, begins[rank].position, now[rank] + 1, gives, takes))
        for one, other in product(members, members):
            gives = root is None or gathers or one == root
            takes = root is None or not gathers or other == root
            if gives and takes:
                edges[ends[other]].add(begins[one])
    return joins, edges


@given(runs())
def test_clocks_say_what_can_be_reached(run: tuple[list[Join], dict[Point, set[Point]]]) -> None:
    joins, edges = run
    reached: dict[Point, set[Point]] = {}

    def before(point: Point) -> set[Point]:
        if point not in reached:
            reached[point] = set()
            for one in edges[point] - {point}:
                reached[point] |= {one} | before(one)
        return reached[point]

    found = clocks(joins, edges)
    assert found.keys() == edges.keys()
    for one, other in product(edges, edges):
        assert happens_before(found[one], found[other]) == (one in before(other)), (one, other)
        if one in before(other):
            assert found[one].total < found[other].total


def test_a_missing_part_holds_nobody_up() -> None:
    joins = [Join("sum", 0, 2, 3), Join("gather", 0, 4, 5), Join("sum", 1, 2, 3)]
    found = clocks(joins, [Point(0, 8), Point(1, 1), Point(1, 8)])
    assert happens_before(found[Point(1, 1)], found[Point(0, 8)])
    assert not happens_before(found[Point(0, 8)], found[Point(1, 8)])


def test_a_circle_of_waits_ends() -> None:
    """A damaged dump: each rank has the result of what the other one began later."""
    joins = [Join("a", 0, 4, 5), Join("b", 0, 6, 3), Join("b", 1, 4, 5), Join("a", 1, 6, 3)]
    assert clocks(joins, [Point(0, 9), Point(1, 9)]).keys() == {Point(0, 9), Point(1, 9)}
