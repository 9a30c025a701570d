"""What the verbs say of a dump whose records were lost after they were written, or that never had any."""

from __future__ import annotations

import os
import shutil
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
    return path, f"only 0 of the {count} written records are left: files are missing or cut off"


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


@pytest.mark.parametrize("how", ["cut", "missing"])
@pytest.mark.parametrize("kept", [False, True])
def test_a_shard_that_is_missing_or_cut_off_is_told(
    how: str,
    kept: bool,
    whole: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """All hashes are equal, so that a comparison reads no tensor."""
    if kept:
        pytest.importorskip("polars")
        monkeypatch.setattr("ascend_dump.reading._catalog_cache._WORTH_KEEPING", 0)
    shutil.copytree(whole, tmp_path / "lost")
    [shard] = (tmp_path / "lost").rglob("*.safetensors")
    dump = ascend_dump.open(tmp_path / "lost")
    stored = [record for record in dump if record.path == shard]
    gone = sum(record.numpy().nbytes > 0 for record in stored)
    assert dump.lost_records() == []
    size = shard.stat().st_size
    if how == "missing":
        shard.unlink()
        said = f"is missing; the tensors of {gone} records are lost"
    else:
        os.truncate(shard, size - 1)
        gone = sum(not is_whole(record) for record in stored)
        assert 0 < gone < len(stored)
        said = f"is cut off: it has {size - 1} of at least {size} bytes; the tensors of {gone} record"
    if kept:
        ascend_dump.open(tmp_path / "lost").catalog().collect()
    # Equal hashes are proof for a comparison.
    for code, words in ((3, ["ls"]), (0, ["compare", str(whole)]), (3, ["stats"])):
        capsys.readouterr()
        assert main([words[0], str(tmp_path / "lost"), *words[1:]]) == code, words
        told = capsys.readouterr().err
        assert f"incomplete: {stored[0].path.parents[4]}: " in told, words
        assert f"/0/{shard.name} {said}" in told, words


def is_whole(record: ascend_dump.Record) -> bool:
    try:
        record.numpy()
    except ascend_dump.CorruptDump:
        return False
    return True


def test_dumps_without_tensors_have_lost_none(tmp_path: Path) -> None:
    with ascend_dump.capture(path=tmp_path, data="stats", quiet=True) as cap:
        torch.ones(2) + 1
    assert cap.dump().lost_records() == []


def test_a_limit_that_ends_the_reading_looks_for_no_lost_records(
    whole: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    [index] = whole.rglob("index.jsonl")
    lines = index.read_bytes().splitlines(keepends=True)
    index.write_bytes(b"".join(lines[:-2]))
    left = len(lines) - 2
    for limit, code in ((1, Exit.OK), (left, Exit.UNREADABLE), (0, Exit.UNREADABLE)):
        assert main(["show", str(whole), "--limit", str(limit)]) == code
        assert (f"{left} of the {len(lines)} written records" in capsys.readouterr().err) is (code is not Exit.OK)
