"""Statistics of many ranks on an executor are those of one process; overflow, triage and stats say the same."""

from __future__ import annotations

import json
import shutil
from concurrent.futures import BrokenExecutor, Executor, Future, ProcessPoolExecutor, ThreadPoolExecutor
from contextlib import closing
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from host_dumps import item, noise

import ascend_dump
from ascend_dump.analysis.overflow import find_overflows
from ascend_dump.analysis.ranks import RankWorkers, measured
from ascend_dump.cli import main
from ascend_dump.writing import HostWriter

pytest.importorskip("polars")


def write(root: Path, ranks: int = 3) -> Path:
    """Rank 1 makes an Inf in step 1; there are integers, an empty tensor and one that was not stored."""
    for rank in range(ranks):
        folder = root / f"worldsize{ranks}_global_rank{rank}" / "20260101010101" / "0" / "Model" / "0"
        folder.mkdir(parents=True)
        with closing(HostWriter(folder, metadata={})) as writer:
            for step in range(2):
                made = noise(step + 10 * rank, 200)
                if (rank, step) == (1, 1):
                    made[3] = np.inf
                whole = np.arange(5, dtype=np.uint64) + np.uint64(2**63)
                values = {"exp_0": made, "arange_1": whole, "empty_2": np.zeros((0, 3), np.float32)}
                writer.begin_step(step)
                writer.put([item("exp_0", noise(step, 200), io="input", op_type="aten::exp")], 800)
                for number, (name, array) in enumerate(values.items()):
                    writer.put([item(name, array, op_type=f"aten::{name[:-2]}", seq=number)], array.nbytes)
                writer.end_step()
    return root


def told(records: Any) -> list[Any]:
    found = []
    for record in records:
        try:
            value: Any = record.statistics()
        except ascend_dump.AscendDumpError as error:
            value = type(error), str(error), getattr(error, "path", None) and str(error.path)
        found.append((record.to_dict(), value))
    return found


def assert_same(found: list[Any], expected: list[Any]) -> None:
    """One process may have loaded numba, whose sums have other last digits than those of numpy, and another not."""
    assert [fields for fields, _ in found] == [fields for fields, _ in expected]
    for (_, value), (_, other) in zip(found, expected):
        if hasattr(other, "_asdict") and other.count:
            assert value.mean == pytest.approx(other.mean, rel=1e-12, abs=1e-12)
            assert value.l2norm == pytest.approx(other.l2norm, rel=1e-12)
            other = other._replace(mean=value.mean, l2norm=value.l2norm)
        assert value == other


@pytest.mark.parametrize("name", ["threads", "processes", "workers"])
def test_statistics_are_those_of_one_process(name: str, tmp_path: Path) -> None:
    root = write(tmp_path / "dump")
    for shard in (root / "worldsize3_global_rank2").rglob("1/*.safetensors"):
        shard.write_bytes(shard.read_bytes()[:-60])
    for index in (root / "worldsize3_global_rank0").rglob("1/index.jsonl"):
        index.write_text(index.read_text(encoding="utf-8") + "not a record\n", encoding="utf-8")
    executors = {
        "threads": lambda: ThreadPoolExecutor(2),
        "processes": lambda: ProcessPoolExecutor(2, get_context("spawn")),
        "workers": lambda: RankWorkers(2),
    }
    here = told(ascend_dump.open(root))
    assert {type(value[0]) for _, value in here if not hasattr(value, "_asdict")} == {type}
    with executors[name]() as executor:
        assert_same(told(measured(ascend_dump.open(root), executor)), here)


def test_tensors_are_read_in_the_tasks_only(tmp_path: Path) -> None:
    root = write(tmp_path / "dump")
    with ThreadPoolExecutor(2) as executor:
        records = list(measured(ascend_dump.open(root), executor))
    for shard in root.rglob("*.safetensors"):
        shard.unlink()
    assert all(record.statistics().count in (200, 5, 0) for record in records)
    with pytest.raises(ascend_dump.CorruptDump, match="the shard is missing"):
        records[0].numpy()


class _LosesRank1(Executor):
    """Its worker ends at rank 1."""

    def submit(self, call: Any, /, *given: Any, **named: Any) -> Future[Any]:
        done: Future[Any] = Future()
        if given[-1][-1] == 1:
            done.set_exception(BrokenExecutor("killed"))
        else:
            done.set_result(call(*given, **named))
        return done


def test_a_shard_that_was_mended_is_measured_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Knowledge of a rank is kept after an error; its index stays as it is where a shard is copied again."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    root = write(tmp_path / "dump")
    here = told(ascend_dump.open(root))
    [shard] = (root / "worldsize3_global_rank2").rglob("1/*.safetensors")
    whole = shard.read_bytes()
    shard.write_bytes(whole[:-60])
    broken = told(ascend_dump.open(root))
    assert broken != here
    with pytest.raises(ascend_dump.WorkerLost, match="2 of 3 ranks are kept"):
        list(measured(ascend_dump.open(root), _LosesRank1()))
    shard.write_bytes(whole)
    with ThreadPoolExecutor(2) as executor:
        assert told(measured(ascend_dump.open(root), executor)) == here


def test_one_rank_is_measured_here(tmp_path: Path) -> None:
    root = write(tmp_path / "dump", 1)
    with ThreadPoolExecutor(2) as executor:
        assert told(measured(ascend_dump.open(root), executor)) == told(ascend_dump.open(root))


def test_a_selection_is_measured_as_selected(tmp_path: Path) -> None:
    dump = ascend_dump.open(write(tmp_path / "dump")).select(op="exp*", step=1, io="output")
    with ProcessPoolExecutor(2, get_context("spawn")) as executor:
        assert_same(told(measured(dump, executor)), told(dump))


def test_overflow_and_triage_find_the_same(tmp_path: Path) -> None:
    root = write(tmp_path / "dump")
    here = find_overflows(ascend_dump.open(root))
    assert here.answer == "origin"
    with ThreadPoolExecutor(2) as executor:
        found = find_overflows(ascend_dump.open(root), executor=executor)
        triage = ascend_dump.triage(root, executor=executor)
        against = ascend_dump.triage(root, root, executor=executor)
    assert found == here
    assert triage.to_dict() == ascend_dump.triage(root).to_dict()
    assert triage.cause is not None
    assert triage.cause.rank == 1
    assert against.to_dict() == ascend_dump.triage(root, root).to_dict()


def test_the_verbs_say_the_same_with_workers(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root = write(tmp_path / "dump")
    shutil.copytree(root, tmp_path / "other")
    # Each starts processes of its own.
    for verb, *options in (["stats", "--nonfinite"], ["overflow"], ["compare"]):
        given = [verb, str(root), *([str(tmp_path / "other")] if verb == "compare" else []), *options, "--json"]
        code = main(given)
        here = json.loads(capsys.readouterr().out)
        assert main([*given, "--workers", "2"]) == code
        assert json.loads(capsys.readouterr().out) == here, given


@pytest.mark.parametrize("verb", ["stats", "overflow", "triage", "compare"])
def test_wrong_options_are_told(verb: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root = str(write(tmp_path / "dump", 2))
    given = [verb, root, *([root] if verb == "compare" else [])]
    assert main([*given, "--workers", "0"]) == 2
    assert main([*given, "--workers", "2", "--dask", "localhost:1"]) == 2
    assert "leave one of them out" in capsys.readouterr().err


def test_a_run_has_no_workers(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["triage", "--run", "--workers", "2", "--", "true"]) == 2
    assert "--workers applies to the analysis of dumps" in capsys.readouterr().err


def test_without_dask_the_extra_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(__import__("sys").modules, "distributed", None)
    assert main(["overflow", str(write(tmp_path / "dump", 2)), "--dask", "localhost:8786"]) == 4
    assert "ascend-dump[distributed]" in capsys.readouterr().err
