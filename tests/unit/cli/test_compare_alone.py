"""`ascend-dump compare` says first which ranks, steps and runs one side lacks, then which operators."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from report_pages import write_training

from ascend_dump.cli import Exit, main

pytest.importorskip("rapidfuzz")


@pytest.fixture(scope="module")
def dump(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_training(tmp_path_factory.mktemp("alone") / "dump")


def printed(capsys: pytest.CaptureFixture[str], *words: object) -> list[str]:
    assert main(["compare", *map(str, words)]) == Exit.DIFFERENT
    return capsys.readouterr().out.splitlines()


def copy_without(dump: Path, to: Path, glob: str) -> Path:
    shutil.copytree(dump, to)
    for path in to.glob(glob):
        shutil.rmtree(path)
    return to


@pytest.mark.parametrize(
    ("glob", "said"),
    [("*rank1", "has the rank 1"), ("*/*/*/*/*/0", "has the step 0"), ("*/*/*/*/*/[01]", "has the steps 0-1")],
)
def test_a_rank_or_a_step_of_one_side(
    glob: str, said: str, dump: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    less = copy_without(dump, tmp_path / "less", glob)
    *_, first, last = printed(capsys, less, dump)
    assert first == f"only REFERENCE {said}"
    assert "have no partner: " in last
    assert f"only ACTUAL {said}" in printed(capsys, dump, less)


def test_nothing_is_said_of_ranks_that_both_have(
    dump: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    less = copy_without(dump, tmp_path / "less", "*rank1/*/*/*/*/0")
    lines = printed(capsys, less, dump)
    assert "have no partner: " in lines[-1]
    assert not any(line.startswith("only") for line in lines)


def test_two_runs_in_one_directory(dump: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    two = tmp_path / "two"
    shutil.copytree(dump, two)
    for rank in two.iterdir():
        shutil.copytree(rank / "20260101010101", rank / "20260101020202")
    *_, first, last = printed(capsys, dump, two)
    assert first.startswith(
        "rank 0, step 0: REFERENCE has 2 runs of the program (20260101010101, 20260101020202), ACTUAL 1; "
        f"give the directory of one run, such as {two}/"
    )
    assert "have no partner: " in last
    one = first.partition("such as ")[2].partition(",")[0]
    assert main(["compare", str(dump), one, "--rank", "0"]) == Exit.OK
