"""Comparing many ranks: one process against two processes, of a local dask cluster and of our own.

    python tests/benchmarks/bench_executors.py [--ranks 16] [--operators 3000] [--rounds 2] [--dir DIR] [--unprofiled]

Every tensor of `actual` differs from that of `reference` by rounding, so each pair is read and measured. The three ways
run in turns in each round, and the best round of each counts, because other work on the machine only adds time. `bound`
is the speedup that the cluster should reach. The speedup of short comparisons is lower: with 4 ranks, which take six
seconds in one process, dask reached 1.5x to 1.7x, and 1.7x to 1.8x with 16 ranks. The single process is measured
without dask, because dask's scheduler, which runs in the process that calls the workers, would take time from it and
make garbage collection slower.

If other programs keep the processors busy, as a high load shows, wall time is misleading: two processes get a larger
share of the processors than one, so that two workers may seem more than twice as fast. `CPU` is more reliable: for one
process its processor time; for the cluster that of the calling process, including the scheduler, plus that of the
busier worker, which would be the wall time if each had a processor. Other work increases that too, because it shares
the caches. `all` is the processor time of all processes together: if it is at least that of the single process, both
did the same work. A part of what dask needs beyond that is its sampling profiler, which `--unprofiled` turns off.
"""

from __future__ import annotations

import argparse
import os
import shutil
import tempfile
import time
from concurrent.futures import Executor, ProcessPoolExecutor
from contextlib import ExitStack
from multiprocessing import get_context
from pathlib import Path
from typing import Any, NamedTuple, Optional, Union

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
    """Seconds; cpu: of the calling process and of the busiest worker; every: of all processes."""

    wall: float
    cpu: float
    every: float


def cpu_of_worker() -> tuple[int, float]:
    return os.getpid(), time.process_time()


def compared(actual: Path, reference: Path, executor: Optional[Executor] = None) -> tuple[Took, dict[str, int]]:
    """The comparison as the process that asks for it sees it, without what its workers took."""
    start, own = time.perf_counter(), time.process_time()
    counts = ascend_dump.compare(actual, reference, executor=executor).counts
    wall, own = time.perf_counter() - start, time.process_time() - own
    return Took(wall, own, own), counts


class OneProcess:
    """A process of its own, which does all of it and stays for the next round."""

    def __init__(self, pool: ProcessPoolExecutor) -> None:
        self._pool = pool

    def compare(self, actual: Path, reference: Path) -> tuple[Took, dict[str, int]]:
        return self._pool.submit(compared, actual, reference).result()


class Workers:
    """An executor with two workers; client: that of dask, to ask its workers."""

    def __init__(self, executor: Executor, client: Any = None) -> None:
        self._executor = executor
        self._client = client

    def _seconds(self) -> dict[int, float]:
        if self._client is not None:
            return dict(self._client.run(cpu_of_worker).values())
        # Those that wait take turns.
        return dict(self._executor.submit(cpu_of_worker).result() for _ in range(2))

    def compare(self, actual: Path, reference: Path) -> tuple[Took, dict[str, int]]:
        before = self._seconds()
        took, counts = compared(actual, reference, self._executor)
        after = self._seconds()
        assert after.keys() == before.keys(), "a worker was replaced, or one of two was asked twice"
        seconds = [after[name] - before[name] for name in before]
        return Took(took.wall, took.cpu + max(seconds), took.cpu + sum(seconds)), counts


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--ranks", type=int, default=16)
    parser.add_argument("--operators", type=int, default=3000)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--dir", type=Path)
    parser.add_argument("--unprofiled", action="store_true", help="without the sampling profiler of dask's workers")
    given = parser.parse_args()
    place = Path(tempfile.mkdtemp(dir=given.dir))
    try:
        actual = write(place / "actual", given.ranks, given.operators, 1e-7)
        reference = write(place / "reference", given.ranks, given.operators, 0.0)
        with ExitStack() as stack:
            alone = stack.enter_context(ProcessPoolExecutor(1, get_context("spawn")))
            ways: dict[str, Union[OneProcess, Workers]] = {
                "one process": OneProcess(alone),
                "2 workers of ours": Workers(stack.enter_context(RankWorkers(2))),
            }
            try:
                import dask
                from distributed import Client, LocalCluster
            except ImportError:
                print("dask.distributed is not installed: its row is left out")
            else:
                stack.enter_context(dask.config.set({"distributed.worker.profile.enabled": not given.unprofiled}))
                options = {"dashboard_address": None, "worker_dashboard_address": None}
                cluster = stack.enter_context(LocalCluster(n_workers=2, threads_per_worker=1, **options))
                client = stack.enter_context(Client(cluster, set_as_default=False))
                ways["2 workers of dask"] = Workers(client.get_executor(pure=False), client)
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
        print(f"{'':<20}{'wall':>8}{'':>11}{'CPU':>8}{'':>11}{'all':>8}")
        best = {name: Took(*(min(values) for values in zip(*found))) for name, found in rounds.items()}
        one = best["one process"]
        for name, took in best.items():
            print(
                f"{name:<20}{took.wall:8.2f} s{one.wall / took.wall:8.2f}x{took.cpu:8.2f} s"
                f"{one.cpu / took.cpu:8.2f}x{took.every:8.2f} s"
            )
        if "2 workers of dask" in best:
            print(f"bound: {BOUND}x for 2 workers of dask")
            if one.wall / best["2 workers of dask"].wall > 2:
                print("more than 2x is the share of busy processors that two processes get: go by CPU, or wait")
    finally:
        shutil.rmtree(place, ignore_errors=True)


if __name__ == "__main__":
    main()
