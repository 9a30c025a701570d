"""Many ranks on a dask cluster of two processes of this machine."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import polars
import pytest
from conftest import free_port
from distributed import Client, LocalCluster
from host_dumps import item, noise

import ascend_dump
from ascend_dump.analysis.overflow import find_overflows
from ascend_dump.analysis.ranks import RankTask, map_ranks
from ascend_dump.cli import main
from ascend_dump.writing import HostWriter


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    with LocalCluster(
        n_workers=2, threads_per_worker=1, processes=True, dashboard_address=None, worker_dashboard_address=None
    ) as found:
        yield found


@pytest.fixture
def client(cluster: LocalCluster) -> Iterator[Client]:
    with Client(cluster, set_as_default=False) as found:
        found.wait_for_workers(2)
        yield found


def write(root: Path, ranks: int = 4, wrong: int = -1) -> Path:
    for rank in range(ranks):
        folder = root / f"worldsize{ranks}_global_rank{rank}" / "20260101010101" / "0" / "Model" / "0"
        folder.mkdir(parents=True)
        with closing(HostWriter(folder, metadata={})) as writer:
            writer.begin_step(0)
            value = noise(rank, 300)
            for number in range(5):
                made = np.tanh(value)
                if rank == wrong and number == 2:
                    made[7] = np.inf
                for io, array in (("input", value), ("output", made)):
                    record = item(f"tanh_{number}", array, io=io, op_type="aten::tanh", seq=number)
                    writer.put([record], array.nbytes)
                value = made
            writer.end_step()
    return root


def test_a_comparison_is_that_of_one_process(client: Client, tmp_path: Path) -> None:
    a, b = write(tmp_path / "a", wrong=2), write(tmp_path / "b")
    here = ascend_dump.compare(a, b)
    found = ascend_dump.compare(a, b, executor=client.get_executor(pure=False))
    assert found.to_dict() == here.to_dict()
    assert (found.origins[0].rank, found.origins[0].op_name) == (2, "tanh_2")


def test_overflow_and_triage_are_those_of_one_process(client: Client, tmp_path: Path) -> None:
    root = write(tmp_path / "a", wrong=2)
    executor = client.get_executor(pure=False)
    assert find_overflows(ascend_dump.open(root), executor=executor) == find_overflows(ascend_dump.open(root))
    assert ascend_dump.triage(root, executor=executor).to_dict() == ascend_dump.triage(root).to_dict()


def test_a_dump_on_a_server_is_compared_where_the_workers_are(client: Client, bucket: str, tmp_path: Path) -> None:
    a, b = write(tmp_path / "a", wrong=2), write(tmp_path / "b")
    settings = {name: value for name, value in os.environ.items() if name.startswith(("AWS_", "FSSPEC_"))}
    client.run(settings_of_worker, settings)
    urls = [f"s3://{bucket}/{path.name}" for path in (a, b)]
    for path, url in zip((a, b), urls):
        ascend_dump.push(path, url)
    here = ascend_dump.compare(a, b)
    found = ascend_dump.compare(*urls, executor=client.get_executor(pure=False))
    assert (found.counts, found.origins[0].rank) == (here.counts, 2)
    assert [one.evidence for one in found.origins] == [one.evidence for one in here.origins]


def settings_of_worker(settings: dict[str, str]) -> None:
    import fsspec

    os.environ.update(settings)
    fsspec.config.conf.clear()
    fsspec.config.set_conf_env(fsspec.config.conf)


def rank_table(rank: int, log: str, dies: str) -> Any:
    with open(log, "a", encoding="ascii") as file:
        file.write(f"{rank} {os.getpid()}\n")
    if rank == 3 and os.path.exists(dies):
        os.unlink(dies)
        os.kill(os.getpid(), signal.SIGKILL)
    return polars.DataFrame({"rank": [rank], "value": [rank**2]})


def test_a_killed_worker_repeats_its_rank_only(client: Client, tmp_path: Path) -> None:
    """Tasks that wait on the worker that is killed go to the other one."""
    log, dies = tmp_path / "log", tmp_path / "dies"
    dies.touch()
    tasks = [RankTask(f"rank-{rank}", "1", (rank, str(log), str(dies))) for rank in range(8)]
    with map_ranks(rank_table, tasks, executor=client.get_executor(pure=False)) as tables:
        assert tables.scan().collect()["value"].to_list() == [rank**2 for rank in range(8)]
    assert not dies.exists()
    workers: dict[int, list[int]] = {rank: [] for rank in range(8)}
    for line in log.read_text(encoding="ascii").splitlines():
        rank, worker = map(int, line.split())
        workers[rank].append(worker)
    # Done again is what the dead worker was at, and what it had given that nobody had fetched yet.
    dead = workers[3][0]
    repeated = {rank: done for rank, done in workers.items() if len(done) != 1}
    assert 3 in repeated
    assert all(len(done) == 2 and done.index(dead) == 0 for done in repeated.values()), workers


def test_the_command_line_takes_a_scheduler(
    cluster: LocalCluster, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    a, b = write(tmp_path / "a", wrong=2), write(tmp_path / "b")
    assert main(["compare", str(a), str(b), "--dask", cluster.scheduler_address]) == 1
    assert "tanh_2" in capsys.readouterr().out
    assert main(["overflow", str(a), "--dask", cluster.scheduler_address]) == 1
    assert "tanh_2" in capsys.readouterr().out


def test_a_scheduler_that_is_not_there_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root = write(tmp_path / "a", 2)
    assert main(["overflow", str(root), "--dask", f"127.0.0.1:{free_port()}"]) == 4
    assert "does not answer" in capsys.readouterr().err
