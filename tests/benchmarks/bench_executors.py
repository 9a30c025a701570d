"""Comparing many ranks: one process against two processes, of a local dask cluster and of our own.

    python tests/benchmarks/bench_executors.py [--ranks 4] [--operators 3000] [--rounds 3] [--dir DIR]

Every tensor of `actual` differs from that of `reference` by rounding, so each pair is read and measured. The three ways
take turns in each round and the best round of each counts, since other work on the machine only adds to it. `bound`
is what the cluster is to reach.

Where other programs keep the processors busy, which the load tells, wall time says little. `CPU` does: for one process
what it took, for the cluster what the calling process took (the scheduler among it) and the busier of the workers,
which is what the wall time would be with a processor for each. Other work makes that larger too, by its caches.
"""

from __future__ import annotations

import argparse
import os
import shutil
import tempfile
import time
from concurrent.futures import Executor
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple, Optional

import numpy as np

import ascend_dump
from ascend_dump.analysis.ranks import RankWorkers
from ascend_dump.writing import HostWriter, Item, Line, Payload

BOUND = 1.6


def write(root: Path, ranks: int, operators: int, off: float) -> Path:
    for rank in range(ranks):
        folder = root / f"worldsize{ranks}_global_rank{rank}" / "20260101010101" / "0" / "Model" / "0"
        folder.mkdir(parents=True)
        writer = HostWriter(folder, metadata={})
        writer.begin_step(0)
        random = np.random.default_rng(rank)
        for number in range(operators):
            items = []
            for io in ("input", "output"):
                array = (random.standard_normal(256) * (1 + off)).astype(np.float32)
                line = Line(
                    number, "aten::mul", f"layers.{number}/mul_{number}", io, 0, 0, "float32", (256,), array.nbytes
                )
                line.stride, line.module = (1,), f"layers.{number}"
                items.append(Item(line, Payload(array.tobytes(), 0, array.nbytes, "float32", (256,))))
            writer.put(items, 2048)
        writer.end_step()
        writer.close()
    return root


class Took(NamedTuple):
    """Seconds; cpu: of the calling process and of the busiest worker."""

    wall: float
    cpu: float


def cpu_of_worker() -> tuple[int, float]:
    return os.getpid(), time.process_time()


class Way:
    """One way to compare."""

    def __init__(self, executor: Optional[Executor] = None, client: Any = None) -> None:
        self._executor = executor
        self._client = client

    def _of_workers(self) -> dict[int, float]:
        if self._client is not None:
            return dict(self._client.run(cpu_of_worker).values())
        if self._executor is not None:
            # Those that wait take turns.
            return dict(self._executor.submit(cpu_of_worker).result() for _ in range(2))
        return {}

    def compare(self, actual: Path, reference: Path) -> tuple[Took, dict[str, int]]:
        before, start, own = self._of_workers(), time.perf_counter(), time.process_time()
        counts = ascend_dump.compare(actual, reference, executor=self._executor).counts
        wall, own = time.perf_counter() - start, time.process_time() - own
        after = self._of_workers()
        busiest = max((after[name] - before[name] for name in before), default=0.0)
        return Took(wall, own + busiest), counts


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--operators", type=int, default=3000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--dir", type=Path)
    given = parser.parse_args()
    place = Path(tempfile.mkdtemp(dir=given.dir))
    try:
        actual = write(place / "actual", given.ranks, given.operators, 1e-7)
        reference = write(place / "reference", given.ranks, given.operators, 0.0)
        with ExitStack() as stack:
            ways = {"one process": Way(), "2 workers of ours": Way(stack.enter_context(RankWorkers(2)))}
            try:
                from distributed import Client, LocalCluster
            except ImportError:
                print("dask.distributed is not installed: its row is left out")
            else:
                options = {"dashboard_address": None, "worker_dashboard_address": None}
                cluster = stack.enter_context(LocalCluster(n_workers=2, threads_per_worker=1, **options))
                client = stack.enter_context(Client(cluster, set_as_default=False))
                ways["2 workers of dask"] = Way(client.get_executor(pure=False), client)
            rounds: dict[str, list[Took]] = {name: [] for name in ways}
            counts: dict[str, dict[str, int]] = {}
            for number in range(given.rounds + 1):
                for name, way in ways.items():
                    took, counts[name] = way.compare(actual, reference)
                    if number:  # the first round loads and compiles
                        rounds[name].append(took)
        assert len({str(one) for one in counts.values()}) == 1, counts
        pairs = given.ranks * given.operators * 2
        print(f"{given.ranks} ranks, {pairs} pairs; load {os.getloadavg()[0]:.1f} on {os.cpu_count()} processors")
        print(f"{'':<20}{'wall':>8}{'':>11}{'CPU':>6}")
        walls = {name: min(one.wall for one in found) for name, found in rounds.items()}
        cpus = {name: min(one.cpu for one in found) for name, found in rounds.items()}
        for name in ways:
            wall, cpu = walls[name], cpus[name]
            against = (walls["one process"] / wall, cpus["one process"] / cpu)
            print(f"{name:<20}{wall:8.2f} s{against[0]:8.2f}x{cpu:8.2f} s{against[1]:8.2f}x")
        if "2 workers of dask" in walls:
            print(f"bound: {BOUND}x for 2 workers of dask")
    finally:
        shutil.rmtree(place, ignore_errors=True)


if __name__ == "__main__":
    main()
