"""The directory of a run: planned before the check, made by nobody else and reached by no link."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

import ascend_dump
from ascend_dump.adapter import Rank, RunDirectory

RANK = Rank(1, 4)


def test_planning_makes_nothing_and_making_makes_what_was_planned(tmp_path: Path) -> None:
    planned = RunDirectory.planned(tmp_path / "dumps", RANK)
    assert list(tmp_path.iterdir()) == []
    made = planned.make()
    assert made == planned
    assert made.path.parent == tmp_path / "dumps" / "worldsize4_global_rank1"
    assert made.path.stat().st_mode & 0o777 == made.path.parent.stat().st_mode & 0o777 == 0o700
    assert made.beside("acl.json") == made.path.parent / f"acl-{made.path.name}.json"


def test_each_run_has_one_of_its_own(tmp_path: Path) -> None:
    planned = RunDirectory.planned(tmp_path, RANK)
    both = {planned.make().path, planned.make().path}
    assert len(both) == 2
    assert RunDirectory.planned(tmp_path, RANK).path not in both


@pytest.mark.parametrize("row", [1, 2, 3, 100, 1000])
def test_of_many_runs_in_one_second_few_are_looked_at(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, row: int
) -> None:
    monkeypatch.setattr(time, "time", lambda: 1_700_000_000.5)
    first = RunDirectory.planned(tmp_path, RANK)
    names = [time.strftime("%Y%m%d%H%M%S", time.localtime(1_700_000_000 + n)) for n in range(row + 1)]
    for name in names[:-1]:
        (first.path.parent / name).mkdir(parents=True)
    looked_at: list[object] = []
    monkeypatch.setattr(os.path, "lexists", lambda path: looked_at.append(path) or os.path.exists(path))
    assert RunDirectory.planned(tmp_path, RANK).path.name == names[-1]
    assert first.make().path.name == names[-1], "they began after it was planned"
    assert len(looked_at) <= 50


def test_a_relative_path_stays_where_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    planned = RunDirectory.planned(Path("dumps"), RANK)
    monkeypatch.chdir("/")
    assert (
        planned.make().path.is_relative_to(tmp_path) if hasattr(Path, "is_relative_to") else planned.path.is_absolute()
    )


def test_a_link_for_the_rank_is_refused_and_not_followed(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / RANK.level).symlink_to(tmp_path / "elsewhere", target_is_directory=True)
    with pytest.raises(ascend_dump.WriteError, match="is a link") as raised:
        RunDirectory.planned(tmp_path, RANK).make()
    assert raised.value.code == "AD310"
    assert list((tmp_path / "elsewhere").iterdir()) == []


def test_a_link_for_the_run_is_not_followed(tmp_path: Path) -> None:
    planned = RunDirectory.planned(tmp_path, RANK)
    (tmp_path / RANK.level).mkdir()
    (tmp_path / "elsewhere").mkdir()
    planned.path.symlink_to(tmp_path / "elsewhere", target_is_directory=True)
    made = planned.make()
    assert made.path != planned.path
    assert not made.path.is_symlink()


@pytest.mark.skipif(os.name != "posix" or os.geteuid() != 0, reason="only root gives files to others")
def test_the_directory_of_another_user_is_refused(tmp_path: Path) -> None:
    (tmp_path / RANK.level).mkdir()
    os.chown(tmp_path / RANK.level, 4242, -1)
    with pytest.raises(ascend_dump.WriteError, match="belongs to user 4242") as raised:
        RunDirectory.planned(tmp_path, RANK).make()
    assert raised.value.code == "AD310"
    assert list((tmp_path / RANK.level).iterdir()) == []


def test_a_file_where_a_directory_is_needed_is_told(tmp_path: Path) -> None:
    (tmp_path / RANK.level).write_text("")
    with pytest.raises(ascend_dump.WriteError, match="is a link or a file"):
        RunDirectory.planned(tmp_path, RANK).make()
