"""What the verbs say of a dump whose records were lost after they were written, or that never had any."""

from __future__ import annotations

from pathlib import Path

import pytest

import ascend_dump
from ascend_dump.cli import Exit, main

torch = pytest.importorskip("torch")


def recorded(path: Path) -> int:
    """Record one step there; the number of its records."""
    model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.ReLU())
    with ascend_dump.capture(model, path=path, quiet=True) as cap:
        model(torch.ones(2, 3)).sum().backward()
    return len(cap.dump())


@pytest.fixture
def whole(tmp_path: Path) -> Path:
    recorded(tmp_path / "whole")
    return tmp_path / "whole"


@pytest.fixture
def emptied(tmp_path: Path) -> tuple[Path, str]:
    """A dump without any of its indexes and shards, and what is to be said of it."""
    count = recorded(path := tmp_path / "emptied")
    for pattern in ("index.jsonl", "*.safetensors"):
        for file in path.rglob(pattern):
            file.unlink()
    return path, f"0 of the {count} records that were written are there: files are missing or cut off"


@pytest.mark.parametrize("verb", ["ls", "show", "stats", "replay"])
def test_listings_tell_that_all_were_lost(
    verb: str, emptied: tuple[Path, str], capsys: pytest.CaptureFixture[str]
) -> None:
    path, reason = emptied
    assert main([verb, str(path)]) == Exit.UNREADABLE
    told = capsys.readouterr().err
    assert reason in told
    assert f"{path} holds no records\n" in told
    assert "no record matches" not in told


def test_a_comparison_tells_that_all_were_lost(
    emptied: tuple[Path, str], whole: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, reason = emptied
    for words, side in (((path, whole), "actual"), ((whole, path), "the reference")):
        assert main(["compare", *map(str, words)]) == Exit.UNREADABLE
        told = capsys.readouterr().err
        assert f"{side} holds no records; " in told
        assert reason in told
        assert "selection" not in told


def test_a_limit_that_ends_the_reading_looks_for_no_lost_records(
    whole: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    [index] = whole.rglob("index.jsonl")
    lines = index.read_bytes().splitlines(keepends=True)
    index.write_bytes(b"".join(lines[:-2]))
    left = len(lines) - 2
    for limit, code in ((1, Exit.OK), (left, Exit.UNREADABLE), (0, Exit.UNREADABLE)):
        assert main(["show", str(whole), "--limit", str(limit)]) == code
        assert (f"{left} of the {len(lines)} records" in capsys.readouterr().err) is (code is not Exit.OK)
