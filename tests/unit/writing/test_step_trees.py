"""Step directories of frameworks: found by their layout, removed at once, and nothing besides."""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path

import pytest

from ascend_dump.native.cann.names import STEP_DIRECTORY as OF_CANN
from ascend_dump.native.mindspore.names import STEP_DIRECTORY as OF_MINDSPORE
from ascend_dump.reading import open_dump
from ascend_dump.writing.step_trees import find_steps, remove_step


def place(root: Path, *paths: str) -> None:
    for path in paths:
        (root / path).mkdir(parents=True)
        (root / path / "file").write_text("x")


@pytest.mark.parametrize(
    ("layout", "steps", "others"),
    [
        (
            OF_CANN,
            [
                "20260101010101/0/net/1/0",
                "20260101010101/0/net/1/10",
                "worldsize2_global_rank1/20260101010101/7/g/11/3",
            ],
            ["20260101010101/0", "20260101010102/0/net/1", "2026/0/net/1/0", "20260101010101/0/net/1/0x", "0/1/2/3/4"],
        ),
        (
            OF_MINDSPORE,
            ["rank_0/Net/0/0", "rank_12/Net/3/104"],
            ["rank_0/graphs", "rank_0/Net/0/constants", "rank_0/execution_order", "rank_x/Net/0/0", "rank_0/Net/x/0"],
        ),
    ],
    ids=["cann", "mindspore"],
)
def test_only_what_the_layout_names_is_a_step(
    tmp_path: Path, layout: re.Pattern[str], steps: list[str], others: list[str]
) -> None:
    place(tmp_path, *steps)
    for path in others:
        (tmp_path / path).mkdir(parents=True, exist_ok=True)
    found = find_steps(tmp_path, layout)
    assert {os.fspath(step.path.relative_to(tmp_path)) for step in found} == set(steps)
    assert all(int(step.path.name) == step.number for step in found)


def test_steps_of_a_stream_come_by_number(tmp_path: Path) -> None:
    place(tmp_path, *(f"rank_0/{net}/0/{step}" for net in "ab" for step in (10, 9, 100)))
    found = [(step.stream, step.number) for step in find_steps(tmp_path, OF_MINDSPORE)]
    assert found == [(f"rank_0/{net}/0", step) for net in "ab" for step in (9, 10, 100)]


def test_links_are_no_steps_and_not_followed(tmp_path: Path) -> None:
    outside, root = tmp_path / "outside", tmp_path / "root"
    place(outside, "1", "Net/0/5")
    place(root, "rank_0/Net/0/0")
    (root / "rank_0" / "Net" / "0" / "7").symlink_to(outside / "1")
    (root / "rank_1").symlink_to(outside)
    (step,) = find_steps(root, OF_MINDSPORE)
    (step.path / "inside").symlink_to(outside)
    remove_step(step)
    assert not step.path.exists()
    assert (outside / "1" / "file").read_text() == (outside / "Net" / "0" / "5" / "file").read_text() == "x"


def test_a_step_that_is_gone_already_is_no_matter(tmp_path: Path) -> None:
    place(tmp_path, "rank_0/Net/0/0", "rank_0/Net/0/1")
    first, second = find_steps(tmp_path, OF_MINDSPORE)
    shutil.rmtree(first.path)
    remove_step(first)
    assert find_steps(tmp_path, OF_MINDSPORE) == [second]


def test_what_a_killed_removal_leaves_is_no_part_of_a_dump_and_goes_with_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for step in ("0", "1"):
        place(tmp_path, f"20260101010101/0/net/1/{step}")
        (tmp_path / f"20260101010101/0/net/1/{step}/Add.a.1.2.1700000000000000").write_bytes(b"x")
    first, _ = find_steps(tmp_path, OF_CANN)
    with monkeypatch.context() as patch:
        patch.setattr("ascend_dump.writing.step_trees.remove_tree", lambda _: None)
        with pytest.raises(OSError, match="cannot be removed"):
            remove_step(first)
    assert open_dump(tmp_path).known_values("step") == {1}
    assert [step.number for step in find_steps(tmp_path, OF_CANN)] == [1]
    (tmp_path / "20260101010101/0/net/1/0").mkdir()
    remove_step(first)
    assert sorted(path.name for path in first.path.parent.iterdir()) == ["1"]
