"""Disk space of a recording that sets no bound, and the message before the disk is full."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

import ascend_dump

torch = pytest.importorskip("torch")

MIB = 1 << 20
#: What the writer leaves to others on a disk of this size.
RESERVE = 128 * MIB


class Disk:
    """A file system of which so many bytes are free, whatever is written."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.free = 1000 * MIB
        self._real = os.statvfs
        monkeypatch.setattr(os, "statvfs", self._look)

    def _look(self, path: Any) -> Any:
        found = list(self._real(path))
        found[0:5] = [4096, 4096, 1200 * MIB // 4096, self.free // 4096, self.free // 4096]
        return os.statvfs_result(found)


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Disk:
    return Disk(monkeypatch)


def record(path: Path, number_of_steps: int, mib: int, **settings: Any) -> Any:
    """Record steps of so many MiB, of which nothing comes twice."""
    with ascend_dump.capture(path=path, mode="output", **settings) as cap:
        for number in range(number_of_steps):
            if number:
                cap.step()
            torch.full((mib, MIB // 4), float(number))
    return cap


def warnings(caplog: pytest.LogCaptureFixture, start: str) -> list[str]:
    return [text for text in (one.getMessage() for one in caplog.records) if text.startswith(start)]


def test_without_a_bound_a_tenth_of_the_free_space_is_one(
    disk: Disk, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    disk.free = 200 * MIB
    cap = record(tmp_path, 12, 4)
    assert {one.step for one in cap.dump()} == {0, 1, 2, 3, 4}
    [warning] = warnings(caplog, "the default limit of 21.0 MB would be exceeded")
    assert "give max_bytes" in warning
    [summary] = warnings(caplog, "dumped ")
    assert "default size limit 21.0 MB (10 % of the free space), because neither a last step, keep= nor" in summary


@pytest.mark.parametrize("settings", [{"steps": "0-9"}, {"keep": 8}, {"max_bytes": "100MB"}], ids=str)
def test_a_bound_of_the_user_is_the_only_one(
    settings: Any, disk: Disk, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    disk.free = 200 * MIB
    cap = record(tmp_path, 8, 4, **settings)
    assert len({one.step for one in cap.dump()}) == 8
    assert not warnings(caplog, "the default limit")
    assert "limit without" not in warnings(caplog, "dumped ")[0]


def test_the_ranks_of_a_host_share_it(
    disk: Disk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    disk.free = 400 * MIB
    for name, value in {"RANK": "0", "WORLD_SIZE": "8", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "4"}.items():
        monkeypatch.setenv(name, value)
    record(tmp_path, 1, 1)
    assert "default size limit 10.5 MB (10 % of the free space)" in warnings(caplog, "rank 0 dumped ")[0]


def test_what_will_not_fit_is_told_after_the_first_step(
    disk: Disk, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    disk.free = RESERVE + 50 * MIB
    record(tmp_path, 3, 10, steps="0-499")
    [warning] = warnings(caplog, "a step is ")
    assert warning.startswith(
        "a step is 10.5 MB, 500 steps were asked for, 186.6 MB are free: the capture stops after about 5"
    )


def test_max_bytes_counts_in_the_estimate(disk: Disk, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    record(tmp_path, 2, 2, steps="0-99", max_bytes="20MB")
    assert "20.0 MB may be used (max_bytes): the capture stops after about 9 steps" in warnings(caplog, "a step is ")[0]


def test_an_estimate_without_steps_counts_the_default(
    disk: Disk, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    record(tmp_path, 2, 10)
    [warning] = warnings(caplog, "a step is ")
    assert (
        "all steps were asked for, 104.9 MB may be used (10 % of the free space): the capture stops after about 9"
        in warning
    )


@pytest.mark.parametrize(
    ("steps", "settings"),
    [(3, {"steps": "0-2"}), (3, {"keep": 2}), (3, {"max_bytes": "900MB"}), (1, {}), (3, {"steps": "0-99", "keep": 2})],
    ids=str,
)
def test_nothing_is_said_where_all_fits(
    steps: int, settings: Any, disk: Disk, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    record(tmp_path, steps, 10, **settings)
    assert not warnings(caplog, "a step is ")
