"""A table of each rank, made on an executor and kept until all are there."""

from __future__ import annotations

import os
import pickle
import signal
import stat
from concurrent.futures import Executor, ProcessPoolExecutor, ThreadPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import pytest

import ascend_dump

polars = pytest.importorskip("polars")

from ascend_dump.analysis.ranks import RankTask, RankWorkers, map_ranks  # noqa: E402  (needs polars)


def squares(rank: int, log: str, dies: str = "") -> polars.DataFrame:
    """What a rank gives. It notes that it was done; where the file `dies` is there, it takes it away and is killed."""
    with open(log, "a", encoding="ascii") as file:
        file.write(f"{rank}\n")
    if dies and os.path.exists(dies):
        os.unlink(dies)
        os.kill(os.getpid(), signal.SIGKILL)
    return polars.DataFrame({"rank": [rank] * 3, "value": [rank, rank**2, rank**3]})


def fails(rank: int, log: str) -> polars.DataFrame:
    if rank == 2:
        raise ascend_dump.DumpNotFound("nothing there", path="/dumps/2", hint="look elsewhere")
    return squares(rank, log)


def tasks(log: Path, count: int = 5, made_of: str = "1", dies: str = "") -> list[RankTask]:
    return [
        RankTask(f"rank-{rank}", made_of, (rank, str(log), dies if rank == 3 else "") if dies else (rank, str(log)))
        for rank in range(count)
    ]


def done(log: Path) -> list[int]:
    return sorted(map(int, log.read_text(encoding="ascii").split())) if log.exists() else []


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache"


EXPECTED = [(rank, value) for rank in range(5) for value in (rank, rank**2, rank**3)]


def spawned() -> ProcessPoolExecutor:
    return ProcessPoolExecutor(2, get_context("spawn"))


@pytest.mark.parametrize(
    "make",
    [None, lambda: ThreadPoolExecutor(2), spawned, lambda: RankWorkers(2)],
    ids=["none", "thread", "process", "own"],
)
def test_every_executor_gives_the_same(make: object, tmp_path: Path) -> None:
    executor = make() if callable(make) else None
    with map_ranks(squares, tasks(tmp_path / "log"), executor=executor) as partials:
        assert partials.scan().collect().rows() == EXPECTED
        assert [frame["rank"][0] for frame in partials] == [0, 1, 2, 3, 4]
    assert done(tmp_path / "log") == [0, 1, 2, 3, 4]
    if isinstance(executor, Executor):
        executor.shutdown()


def test_a_killed_worker_repeats_its_rank_only(tmp_path: Path) -> None:
    (tmp_path / "dies").touch()
    with (
        RankWorkers(2) as workers,
        map_ranks(squares, tasks(tmp_path / "log", dies=str(tmp_path / "dies")), executor=workers) as partials,
    ):
        assert partials.scan().collect().rows() == EXPECTED
    assert done(tmp_path / "log") == [0, 1, 2, 3, 3, 4]


def always_dies(rank: int) -> polars.DataFrame:
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError


def test_a_rank_that_always_kills_its_worker_is_given_up() -> None:
    with RankWorkers(1) as workers, pytest.raises(ascend_dump.WorkerLost, match="killed 3 times"):
        map_ranks(always_dies, [RankTask("rank-0", "1", (0,))], executor=workers)


def test_a_pool_that_broke_is_told_and_what_was_done_stays(tmp_path: Path) -> None:
    (tmp_path / "dies").touch()
    given = tasks(tmp_path / "log", dies=str(tmp_path / "dies"))
    with (
        ProcessPoolExecutor(1, get_context("spawn")) as pool,
        pytest.raises(ascend_dump.WorkerLost, match=r"3 of 5 ranks are kept"),
    ):
        map_ranks(squares, given, executor=pool)
    with map_ranks(squares, given) as partials:
        assert partials.repeated == ("rank-3", "rank-4")
        assert partials.scan().collect().rows() == EXPECTED
    assert done(tmp_path / "log") == [0, 1, 2, 3, 3, 4]


@pytest.mark.parametrize("processes", [False, True])
def test_an_error_of_a_rank_comes_as_it_is_and_the_next_call_goes_on(processes: bool, tmp_path: Path) -> None:
    executor = spawned() if processes else None
    with pytest.raises(ascend_dump.DumpNotFound, match="nothing there") as caught:
        map_ranks(fails, tasks(tmp_path / "log", 3), executor=executor)
    assert (caught.value.code, caught.value.hint, caught.value.path) == ("AD403", "look elsewhere", "/dumps/2")
    if executor is not None:
        executor.shutdown()
    before = done(tmp_path / "log")
    with pytest.raises(ascend_dump.DumpNotFound):
        map_ranks(fails, tasks(tmp_path / "log", 3))
    assert done(tmp_path / "log") == before == [0, 1]


def test_what_was_made_of_something_else_is_made_again(tmp_path: Path) -> None:
    work = tmp_path / "work"
    map_ranks(squares, tasks(tmp_path / "log", 2), work=work)
    assert map_ranks(squares, tasks(tmp_path / "log", 2), work=work).repeated == ()
    assert map_ranks(squares, tasks(tmp_path / "log", 3), work=work).repeated == ("rank-2",)
    assert map_ranks(squares, tasks(tmp_path / "log", 2, made_of="2"), work=work).repeated == ("rank-0", "rank-1")


def test_files_are_private_and_those_that_are_not_whole_or_not_ours_are_made_again(tmp_path: Path) -> None:
    work = tmp_path / "work"
    first, second, third = map_ranks(squares, tasks(tmp_path / "log", 3), work=work).paths
    assert stat.S_IMODE(work.stat().st_mode) == 0o700
    assert {stat.S_IMODE(path.stat().st_mode) for path in (first, second, third)} == {0o600}
    os.truncate(first, first.stat().st_size - 1)
    os.chmod(second, 0o666)
    elsewhere = tmp_path / "elsewhere.parquet"
    third.rename(elsewhere)
    third.symlink_to(elsewhere)
    again = map_ranks(squares, tasks(tmp_path / "log", 3), work=work)
    assert again.repeated == ("rank-0", "rank-1", "rank-2")
    assert again.scan().collect().rows() == EXPECTED[:9]
    assert {stat.S_IMODE(path.lstat().st_mode) for path in again.paths} == {0o600}
    assert not any(path.is_symlink() for path in again.paths)


def test_the_default_place_goes_when_all_is_used(tmp_path: Path, cache: Path) -> None:
    with map_ranks(squares, tasks(tmp_path / "log")) as partials:
        assert all(cache in path.parents for path in partials.paths)
    assert not any(path.is_file() for path in cache.rglob("*"))


def test_the_same_work_twice_at_once_is_done_twice(tmp_path: Path, cache: Path) -> None:
    with map_ranks(squares, tasks(tmp_path / "log")) as first:
        with map_ranks(squares, tasks(tmp_path / "log")) as second:
            assert second.scan().collect().rows() == EXPECTED
        assert first.scan().collect().rows() == EXPECTED
    assert not [path for path in cache.rglob("*") if path.is_file()]


def test_a_place_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ascend_dump.WriteError, match="not a directory"):
        map_ranks(squares, tasks(tmp_path / "log"), work=tmp_path / "file")


@pytest.mark.parametrize("name", ["../rank", "", "a/b", ".rank", "rank\n"])
def test_a_name_that_leads_elsewhere_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match="no name of a task"):
        map_ranks(squares, [RankTask(name, "1", (0, ""))])


def test_watch_sees_each_task_once(tmp_path: Path) -> None:
    seen: list[str] = []
    map_ranks(squares, tasks(tmp_path / "log"), watch=lambda names: (seen.append(name) or name for name in names))
    assert seen == [f"rank-{rank}" for rank in range(5)]


def test_no_workers_are_refused() -> None:
    with pytest.raises(ascend_dump.ConfigError, match="0 workers"):
        RankWorkers(0)


def test_errors_come_through_a_process_as_they_are() -> None:
    # As pools of processes send errors; the bytes are our own.
    error = pickle.loads(pickle.dumps(ascend_dump.CorruptDump("cut off", path="/d/x.bin", offset=7, hint="again")))
    assert (str(error), error.path, error.offset, error.code) == (
        "/d/x.bin at byte 7: cut off [AD401]\nHint: again",
        "/d/x.bin",
        7,
        "AD401",
    )
