"""`options={"spread": True}`: few steps, at equal distances, of a run of any length."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import ascend_dump

torch = pytest.importorskip("torch")

STATISTICS = {"data": "stats", "level": "module", "strict": True, "quiet": True}


def train(path: Path, calls: int, **options: Any) -> Any:
    """Return the dump of calls of a layer."""
    model = torch.nn.Linear(2, 2)
    with ascend_dump.capture(model, path=path, **{**STATISTICS, **options}) as cap:
        for _ in range(calls):
            model(torch.ones(1, 2))
    return cap.dump()


@settings(max_examples=25, deadline=None)
@given(keep=st.integers(2, 9), stride=st.integers(1, 4), first=st.integers(0, 3), calls=st.integers(1, 90))
def test_at_most_that_many_steps_stay_and_they_cover_the_run(
    tmp_path_factory: pytest.TempPathFactory, keep: int, stride: int, first: int, calls: int
) -> None:
    path = tmp_path_factory.mktemp("spread")
    selected = range(first, calls, stride)
    if not selected:
        return
    steps = train(path, calls, steps=f"{first}-:{stride}", keep=keep, options={"spread": True}).steps
    [distance] = {later - step for step, later in zip(steps, steps[1:])} or {stride}
    assert steps == [*range(first, steps[-1] + 1, distance)]
    assert steps[-1] >= calls - 2 * distance, "the end is covered"
    assert distance == stride or len(selected) > keep, "nothing is removed before there are that many"
    assert keep // 2 <= len(steps) <= keep or len(selected) <= keep


def test_curves_of_the_steps_that_stay_are_those_of_a_complete_recording(dumps: Path) -> None:
    torch.manual_seed(0)
    spread = train(dumps / "spread", 20, keep=4, options={"spread": True})
    torch.manual_seed(0)
    complete = train(dumps / "complete", 20)
    assert spread.steps == [0, 8, 16]
    few, all_curves = ascend_dump.trends(spread), ascend_dump.trends(complete)
    assert few.curves
    for curve in few.curves:
        [same] = [one for one in all_curves.curves if (one.name, one.quantity) == (curve.name, curve.quantity)]
        values = dict(zip(same.steps, same.values))
        assert list(curve.values) == [values[step] for step in curve.steps]


def test_a_listing_says_that_steps_were_removed(dumps: Path) -> None:
    [run] = train(dumps, 20, keep=4, options={"spread": True}).runs()
    assert "6 steps were removed (keep=4)" in run.notes


@pytest.mark.parametrize(
    ("wrong", "expected"),
    [
        ({"keep": None}, "keep= says how many steps stay, 2 or more"),
        ({"keep": 1}, "keep= says how many steps stay, 2 or more"),
        ({"data": "full"}, "tensors can be kept only of the last steps"),
        ({"options": {"spread": "yes"}}, "give True or False"),
    ],
)
def test_settings_with_which_nothing_can_be_spread_are_refused(
    dumps: Path, wrong: dict[str, Any], expected: str
) -> None:
    with pytest.raises(ascend_dump.AscendDumpError) as refused:
        train(dumps, 1, **{"keep": 4, "options": {"spread": True}, **wrong})
    assert expected in str(refused.value)
    assert "AD210" in str(refused.value)
