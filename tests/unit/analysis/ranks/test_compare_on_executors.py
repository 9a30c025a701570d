"""A comparison of many ranks gives the same on every executor, and goes on where it was broken off."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import textwrap
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future, ProcessPoolExecutor, ThreadPoolExecutor
from contextlib import closing
from importlib import resources
from multiprocessing import get_context
from pathlib import Path
from typing import Any, Optional

import numpy as np
import pytest
from host_dumps import item, noise

import ascend_dump
from ascend_dump.analysis.ranks import RankWorkers
from ascend_dump.dump_format import INDEX
from ascend_dump.reading import Batch, Dump
from ascend_dump.writing import HostWriter

pytest.importorskip("polars")
pytest.importorskip("rapidfuzz")

_Wrong = Callable[[int, int, int], float]


def write(root: Path, ranks: int, wrong: Optional[_Wrong] = None, *, steps: int = 2, cut: bool = False) -> Path:
    """Each rank runs a chain of operators; `wrong` says how far the output of one is off. cut: each has a part."""
    for rank in range(ranks):
        folder = root / f"worldsize{ranks}_global_rank{rank}" / "20260101010101" / "0" / "Model" / "0"
        folder.mkdir(parents=True)
        with closing(HostWriter(folder, metadata={})) as writer:
            for step in range(steps):
                writer.begin_step(step)
                value = noise(step * 100 + (0 if cut else rank), 96).reshape(8, 12)
                for number in range(6):
                    made = np.tanh(value + number)
                    if wrong is not None:
                        made = made + np.float32(wrong(rank, step, number))
                    name = f"layers.{number}/tanh_{number}"
                    mine = [
                        np.ascontiguousarray(np.split(one, ranks, 1)[rank]) if cut else one for one in (value, made)
                    ]
                    records = [
                        item(name, array, io=io, op_type="aten::tanh", seq=number, module=f"layers.{number}")
                        for io, array in zip(("input", "output"), mine)
                    ]
                    writer.put(records, sum(array.nbytes for array in mine))
                    value = made
                writer.end_step()
    return root


def told(found: ascend_dump.Comparison) -> dict[str, Any]:
    return {**found.to_dict(), "counts": found.counts, "worst": [one.to_dict() for one in found.worst_pairs()]}


def spawned() -> Executor:
    return ProcessPoolExecutor(2, get_context("spawn"))


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache"


def one_wrong(rank: int, step: int, number: int) -> float:
    return 0.5 if (rank, step, number) == (1, 1, 2) else 0.0


EXECUTORS = {"threads": lambda: ThreadPoolExecutor(2), "processes": spawned, "workers": lambda: RankWorkers(2)}


@pytest.mark.parametrize("name", EXECUTORS)
def test_every_executor_says_what_one_process_says(name: str, tmp_path: Path) -> None:
    a, b = write(tmp_path / "a", 3, one_wrong), write(tmp_path / "b", 3)
    here = ascend_dump.compare(a, b)
    assert here.origins[0].rank == 1
    with EXECUTORS[name]() as executor:
        found = ascend_dump.compare(a, b, executor=executor)
    assert (found.verdict, found.counts) == (here.verdict, here.counts)
    assert told(found) == told(here)
    pair = next(one for one in found.pairs if one.verdict == "different")
    assert pair.actual is not None
    assert pair.actual.numpy().shape == (8, 12)


def without_records(root: Path, rank: int) -> Path:
    for index in root.glob(f"*_rank{rank}/**/{INDEX}"):
        index.write_bytes(b"")
    return root


def renumbered(root: Path, rank: int) -> Path:
    [only] = root.iterdir()
    only.rename(root / f"worldsize2_global_rank{rank}")
    return root


CASES: dict[str, Callable[[Path], tuple[Path, Path, dict[str, Any]]]] = {
    "equal": lambda root: (write(root / "a", 2), write(root / "b", 2), {}),
    "rank missing": lambda root: (write(root / "a", 3), write(root / "b", 2), {}),
    "one rank of three": lambda root: (write(root / "a", 1, one_wrong), write(root / "b", 3), {}),
    "parts of one rank": lambda root: (write(root / "a", 2, one_wrong, cut=True), write(root / "b", 1), {}),
    "steps missing": lambda root: (write(root / "a", 2, steps=1), write(root / "b", 2, steps=3), {}),
    "noise": lambda root: (
        write(root / "a", 2, lambda rank, step, number: 1e-7 * number),
        write(root / "b", 2),
        {"noise": write(root / "c", 2, lambda rank, step, number: 2e-7 * number)},
    ),
    "noise of one rank and step": lambda root: (
        write(root / "a", 2, one_wrong, steps=1),
        write(root / "b", 2, steps=1),
        {"noise": write(root / "c", 1, lambda *place: 1.0, steps=1)},
    ),
    "mapping and rules": lambda root: (
        write(root / "a", 2, one_wrong),
        write(root / "b", 2),
        {"mapping": {"layers.1/tanh_1": "layers.2/tanh_2"}, "rules": {"*": {"envelope": 1e9, "drift": 1e9}}},
    ),
    "other numbers of ranks": lambda root: (write(root / "a", 4, one_wrong), write(root / "b", 2), {}),
    "parts, and other numbers of ranks": lambda root: (
        write(root / "a", 4, one_wrong, cut=True),
        write(root / "b", 2, cut=True),
        {},
    ),
    "a rank without records": lambda root: (
        without_records(write(root / "a", 4, one_wrong), 0),
        write(root / "b", 2),
        {},
    ),
    "one rank each, with other numbers": lambda root: (
        write(root / "a", 1, one_wrong),
        renumbered(write(root / "b", 1), 1),
        {},
    ),
    "one rank": lambda root: (write(root / "a", 1), write(root / "b", 1, one_wrong), {}),
}


@pytest.mark.parametrize("name", CASES)
def test_ranks_steps_and_settings_mean_the_same(name: str, tmp_path: Path) -> None:
    a, b, settings = CASES[name](tmp_path)
    with ThreadPoolExecutor(2) as executor:
        found = ascend_dump.compare(a, b, executor=executor, **settings)
    assert told(found) == told(ascend_dump.compare(a, b, **settings))


def test_the_numbers_of_each_pair_come_back_as_they_were(tmp_path: Path) -> None:
    offsets = [0.0, 1e-7, float("nan"), float("inf"), -0.5, 1e30]
    a, b = write(tmp_path / "a", 2, lambda rank, step, number: offsets[number]), write(tmp_path / "b", 2)
    here = ascend_dump.compare(a, b)
    with ThreadPoolExecutor(2) as executor:
        found = ascend_dump.compare(a, b, executor=executor)
    numbers = [pair.measure for pair in here.pairs]
    assert {one.nonfinite > 0 for one in numbers if one is not None} == {False, True}
    assert [repr(pair.measure) for pair in found.pairs] == list(map(repr, numbers))
    assert [repr(one.pair.measure) for one in found.origins] == [repr(one.pair.measure) for one in here.origins]


def test_a_task_reads_its_own_rank_where_ranks_hold_no_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two ranks are missing of a program on four. All ranks are only asked whether there is a record."""
    a, b = write(tmp_path / "a", 4, one_wrong), write(tmp_path / "b", 4)
    for rank in (2, 3):
        [directory] = b.rglob(f"*_global_rank{rank}")
        shutil.rmtree(directory)
    read: Counter[int] = Counter()
    batches = Dump.batches

    def counted(dump: Dump) -> Iterator[Batch]:
        read[len(dump.known_values("rank"))] += 1
        return batches(dump)

    monkeypatch.setattr(Dump, "batches", counted)
    with ThreadPoolExecutor(2) as executor:
        ascend_dump.compare(a, b, executor=executor)
    assert (read[4], read[2]) == (1, 1)


def test_a_selection_goes_to_the_workers(tmp_path: Path) -> None:
    a, b = write(tmp_path / "a", 3, one_wrong), write(tmp_path / "b", 3)
    one, other = (ascend_dump.open(path).select(step="1", op="layers.[2-4]*", rank="0|1") for path in (a, b))
    with spawned() as executor:
        found = ascend_dump.compare(one, other, executor=executor)
    assert told(found) == told(ascend_dump.compare(one, other))
    assert {pair.record.rank for pair in found.pairs} == {0, 1}


def test_an_empty_side_is_told_as_ever(tmp_path: Path) -> None:
    a, b = write(tmp_path / "a", 2), write(tmp_path / "b", 2)
    with ThreadPoolExecutor(2) as executor, pytest.raises(ascend_dump.DumpNotFound, match="actual holds no records"):
        ascend_dump.compare(ascend_dump.open(a).select(op="nothing"), b, executor=executor)


class Killing(Executor):
    """Runs tasks one after the other; the process that should have done the third one was killed."""

    def __init__(self) -> None:
        self.done = 0
        self._pool = ProcessPoolExecutor(1, get_context("spawn"))

    def submit(self, function: Callable[..., Any], /, *arguments: Any, **named: Any) -> Future[Any]:
        self.done += 1
        if self.done == 3:
            return self._pool.submit(os.kill, self._pool.submit(os.getpid).result(), signal.SIGKILL)
        return self._pool.submit(function, *arguments, **named)

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        self._pool.shutdown(wait)


def test_after_a_broken_pool_the_same_call_goes_on(tmp_path: Path, cache: Path) -> None:
    a, b = write(tmp_path / "a", 4, one_wrong), write(tmp_path / "b", 4)
    with Killing() as broken, pytest.raises(ascend_dump.WorkerLost, match="2 of 4 ranks are kept"):
        ascend_dump.compare(a, b, executor=broken)
    kept = {path.name: path.stat().st_mtime_ns for path in (cache / "ascend-dump" / "ranks").rglob("*.parquet")}
    assert len(kept) == 2
    seen: list[str] = []
    with ThreadPoolExecutor(1) as executor:
        found = ascend_dump.compare(
            a, b, executor=executor, watch=lambda names: (seen.append(name) or name for name in names)
        )
    assert seen == ["rank-2", "rank-3"]
    assert told(found) == told(ascend_dump.compare(a, b))
    assert not list((cache / "ascend-dump" / "ranks").rglob("*.parquet"))


def test_a_dump_that_changed_is_compared_anew(tmp_path: Path) -> None:
    a, b = write(tmp_path / "a", 3), write(tmp_path / "b", 3)
    with Killing() as broken, pytest.raises(ascend_dump.WorkerLost):
        ascend_dump.compare(a, b, executor=broken)
    for path in (a / "worldsize3_global_rank0").rglob("index.jsonl"):
        path.write_text(path.read_text(encoding="utf-8").replace("tanh", "cosh"), encoding="utf-8")
    with ThreadPoolExecutor(1) as executor:
        assert told(ascend_dump.compare(a, b, executor=executor)) == told(ascend_dump.compare(a, b))


@pytest.mark.parametrize(("first", "needs"), [("import ProcessPoolExecutor", "polars"), ("import Executor", "ray")])
def test_the_programs_of_the_page_run(first: str, needs: str, tmp_path: Path) -> None:
    pytest.importorskip(needs)
    text = resources.files("ascend_dump").joinpath("pages", "topics", "ranks.md").read_text(encoding="utf-8")
    blocks = re.findall(r"(?:^ {4}.*\n|^\n(?= {4}))+", text, re.MULTILINE)
    [program] = [block for block in blocks if f"from concurrent.futures {first}\n" in block]
    (tmp_path / "program.py").write_text(textwrap.dedent(program), encoding="utf-8")
    write(tmp_path / "dumps", 3, one_wrong)
    write(tmp_path / "golden", 3)
    done = subprocess.run(
        [sys.executable, "program.py"], cwd=tmp_path, capture_output=True, text=True, timeout=900, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "different layers.2/tanh_2"
