"""Nothing that somebody put into the directory of a run is written through, truncated or given other permissions."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Callable

import pytest
from host_dumps import item, model_directory, noise, write_step

from ascend_dump.adapter import Rank, RunDirectory
from ascend_dump.writing import HostRun, HostWriter

LINKS: list[Callable[[Path, Path], None]] = [os.symlink, os.link]


@pytest.fixture
def victim(tmp_path: Path) -> Path:
    path = tmp_path / "victim"
    path.write_text("precious")
    path.chmod(0o644)
    return path


def is_untouched(victim: Path) -> bool:
    return victim.read_text() == "precious" and victim.stat().st_mode & 0o777 == 0o644


@pytest.mark.parametrize("name", ["index.jsonl", "statistic.csv"])
@pytest.mark.parametrize("link", LINKS, ids=["symbolic", "hard"])
def test_a_link_in_the_place_of_a_file(
    tmp_path: Path, victim: Path, name: str, link: Callable[[Path, Path], None]
) -> None:
    directory = model_directory(tmp_path)
    (directory / "0").mkdir()
    link(victim, directory / "0" / name)
    writer = HostWriter(directory, metadata={}, stats=("max",))
    write_step(writer, 0, item("op", noise(0, 10)))
    writer.close()
    assert writer.failure is not None
    assert writer.failure.code == "AD510"
    assert is_untouched(victim)


def test_a_pipe_in_the_place_of_a_file_is_not_waited_for(tmp_path: Path) -> None:
    directory = model_directory(tmp_path)
    (directory / "0").mkdir()
    os.mkfifo(directory / "0" / "index.jsonl")
    writer = HostWriter(directory, metadata={})
    write_step(writer, 0, item("op", noise(0, 10)))
    writer.close()
    assert writer.failure is not None
    assert writer.failure.code == "AD510"


def test_a_link_in_the_place_of_a_step(tmp_path: Path) -> None:
    directory = model_directory(tmp_path)
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir(mode=0o755)
    (directory / "0").symlink_to(elsewhere)
    writer = HostWriter(directory, metadata={})
    write_step(writer, 0, item("op", noise(0, 10)))
    writer.close()
    assert writer.failure is not None
    assert writer.failure.code == "AD510"
    assert list(elsewhere.iterdir()) == []


def test_a_shard_stays_in_the_directory_that_was_opened(tmp_path: Path) -> None:
    directory = model_directory(tmp_path)
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    writer = HostWriter(directory, metadata={})
    writer.begin_step(0)
    writer.put([item("first", noise(0, 10))], 40)
    writer.flush()
    (directory / "0").rename(directory / "moved")
    (directory / "0").symlink_to(elsewhere)
    writer.put([item("second", noise(1, 10))], 40)
    writer.close()
    assert list(elsewhere.iterdir()) == []
    assert len((directory / "moved" / "index.jsonl").read_text().splitlines()) == 2


def test_the_manifest_is_written_beside_links(tmp_path: Path, victim: Path) -> None:
    run = HostRun(RunDirectory.planned(tmp_path / "dumps", Rank(0, 1)).make(), request={}, versions={})
    (run.root / f".manifest.json.{os.getpid()}").symlink_to(victim)
    (run.root / "manifest.json").unlink()
    (run.root / "manifest.json").symlink_to(victim)
    run.write_manifest(state="complete")
    assert is_untouched(victim)
    assert not (run.root / "manifest.json").is_symlink()
    assert '"complete"' in (run.root / "manifest.json").read_text()
