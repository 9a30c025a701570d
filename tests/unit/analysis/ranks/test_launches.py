"""Runs of ranks that began in different seconds belong together."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from ascend_dump.analysis.ranks import launches


def named(second: int) -> str:
    return f"202601010101{second:02d}"


@given(st.lists(st.lists(st.integers(0, 9), min_size=3, max_size=3), min_size=1, max_size=5))
def test_ranks_that_begin_within_seconds_of_each_other(late: list[list[int]]) -> None:
    """Each rank has a run of each launch, up to nine seconds after its beginning."""
    runs = {
        (rank, named(10 * launch + seconds)): launch
        for launch, of_ranks in enumerate(late)
        for rank, seconds in enumerate(of_ranks)
    }
    found = launches(runs)
    assert len(set(found.values())) == len(late)
    assert all((found[one] == found[other]) == (runs[one] == runs[other]) for one in runs for other in runs)


def test_a_launch_that_only_one_rank_recorded() -> None:
    found = launches([(0, named(1)), (0, named(20)), (1, named(21))])
    assert found[0, named(20)] == found[1, named(21)] != found[0, named(1)]


def test_what_is_not_named_by_a_time_belongs_together_by_its_name() -> None:
    found = launches([(0, "proc1"), (1, "proc1"), (1, "proc2"), (0, None), (1, None)])
    assert found[0, "proc1"] == found[1, "proc1"] != found[1, "proc2"]
    assert found[0, None] == found[1, None]
