"""`keep`: the last steps stay on disk with all that they read from, and nothing else does."""

from __future__ import annotations

import json
import os
import shutil
import tracemalloc
from pathlib import Path
from typing import Any, Optional

import numpy as np
import pytest
from host_dumps import item, line, lines_of, model_directory, noise, put, values, write_step
from hypothesis import given, settings
from hypothesis import strategies as st

import ascend_dump
from ascend_dump import ReadError
from ascend_dump.adapter import Rank, RunDirectory
from ascend_dump.dump_format import MANIFEST, numpy_dtype
from ascend_dump.reading import open_dump
from ascend_dump.writing import HostRun, HostWriter, Item, Limits, Line
from ascend_dump.writing.ending import Ended

SMALL = Limits(room=16376, nbytes=20_000)


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return model_directory(tmp_path)


def steps_of(root: Path) -> list[int]:
    return sorted({record.step for record in open_dump(root) if record.step is not None})


def size_of(directory: Path) -> int:
    return sum(path.stat().st_size for path in directory.rglob("*") if path.is_file())


def test_only_the_last_steps_stay(tmp_path: Path, directory: Path) -> None:
    writer = HostWriter(directory, metadata={}, keep=3, stats=("max",))
    for step in range(10):
        write_step(writer, step, item("weight", noise(99, 500)), item("activation", noise(step, 500)))
        writer.flush()
        # With the one that was written last: it is the newest complete one only once another one begins.
        assert steps_of(tmp_path) == list(range(max(0, step - 3), step + 1))
        assert len(values(open_dump(tmp_path))) == 2 * min(step + 1, 4)
    writer.close()
    assert steps_of(tmp_path) == [7, 8, 9]
    for (step, name, *_), found in values(open_dump(tmp_path)).items():
        assert found == noise(99 if name == "weight" else step, 500).tobytes()
    assert writer.kept()["removed"] == {"steps": 7, "records": 14, "first": 0, "last": 6}
    assert writer.records == 20, "of what was written"


def test_memory_does_not_grow_with_removed_steps(directory: Path) -> None:
    writer = HostWriter(directory, metadata={}, keep=3, stats=("max",))
    weight = noise(99, 500)
    ours = f"{os.path.dirname(ascend_dump.__file__)}/writing/*"

    def write(steps: range) -> int:
        for step in steps:
            write_step(
                writer, step, item("weight", weight), *(item(f"op{n}", noise(9 * step + n, 4)) for n in range(9))
            )
        writer.flush()
        # Kernels may be compiled meanwhile, which takes memory of other modules once.
        snapshot = tracemalloc.take_snapshot().filter_traces([tracemalloc.Filter(True, ours)])
        return sum(trace.size for trace in snapshot.traces)

    tracemalloc.start()
    try:
        before = write(range(100))
        growth = write(range(100, 500)) - before
    finally:
        tracemalloc.stop()
    writer.close()
    assert growth < 100_000, "28 bytes for each of the tensors that are gone"


def test_a_shard_stays_as_long_as_a_step_reads_from_it(tmp_path: Path, directory: Path) -> None:
    writer = HostWriter(directory, metadata={}, keep=2)
    sizes = []
    for step in range(12):
        write_step(writer, step, item("weight", noise(99, 100_000)), item("activation", noise(step, 10)))
        writer.flush()
        assert steps_of(tmp_path) == list(range(max(0, step - 2), step + 1))
        values(open_dump(tmp_path))
        sizes.append(size_of(directory))
    writer.close()
    weight = noise(99, 100_000).nbytes
    assert max(sizes) < 2.9 * weight + 12 * 300_000, "a tensor that never changes is there twice at most"
    # Removed steps of which a shard is needed are no part of the dump, by whatever directory it is opened.
    hidden = [path.parent for path in directory.rglob("removed.jsonl")]
    assert hidden
    assert [list(open_dump(path)) for path in hidden] == [[]] * len(hidden)
    assert list(open_dump(next(hidden[0].glob("*.safetensors")))) == []


def test_nothing_of_others_is_removed(tmp_path: Path, directory: Path) -> None:
    writer = HostWriter(directory, metadata={}, keep=1, stats=("max",))
    write_step(writer, 0, item("a", noise(0, 10)))
    writer.flush()
    (directory / "0" / "notes.txt").write_text("mine")
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "precious").write_text("mine")
    (directory / "1").symlink_to(outside)
    for step in (2, 3, 4):
        write_step(writer, step, item("a", noise(step, 10)))
    writer.close()
    assert [path.name for path in (directory / "0").iterdir()] == ["notes.txt"]
    assert [path.name for path in outside.iterdir()] == ["precious"]
    assert sorted(path.name for path in directory.iterdir()) == ["0", "1", "4"]


def test_a_step_that_somebody_else_removed_is_no_matter(tmp_path: Path, directory: Path) -> None:
    writer = HostWriter(directory, metadata={}, keep=1)
    for step in range(4):
        write_step(writer, step, item("a", noise(step, 10)))
        writer.flush()
        if step == 1:
            shutil.rmtree(directory / "0")
    writer.close()
    assert writer.failure is None
    assert steps_of(tmp_path) == [3]


def test_a_step_whose_directory_became_a_link_ends_the_capture(directory: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    for name in ("index.jsonl", "statistic.csv"):
        (other / name).write_text("mine")
    writer = HostWriter(directory, metadata={}, keep=1)
    write_step(writer, 0, item("a", noise(0, 10)))
    writer.flush()
    (directory / "0").rename(directory / "moved")
    (directory / "0").symlink_to(other)
    write_step(writer, 1, item("a", noise(1, 10)))
    write_step(writer, 2, item("a", noise(2, 10)))
    writer.close()
    assert writer.failure is not None
    assert writer.failure.code == "AD510"
    assert sorted(path.name for path in other.iterdir()) == ["index.jsonl", "statistic.csv"]


def test_max_bytes_counts_what_is_on_disk(tmp_path: Path, directory: Path) -> None:
    writer = HostWriter(directory, metadata={}, max_bytes=1_000_000, keep=2, limits=SMALL)
    for step in range(100):
        write_step(writer, step, *(item(f"op{at}", noise(step * 7 + at, 1000)) for at in range(7)))
        writer.flush()
        assert size_of(directory) < 1_000_000
    writer.close()
    assert writer.failure is None
    assert writer.bytes_written == 100 * 7 * 4000
    assert writer.tensor_bytes == 2 * 7 * 4000
    assert steps_of(tmp_path) == [98, 99]


def test_a_step_that_comes_again_is_the_newest(tmp_path: Path, directory: Path) -> None:
    """Runs of a program may count from 0 again."""
    writer = HostWriter(directory, metadata={}, keep=2)
    for at, step in enumerate((0, 1, 0, 2, 3, 1, 0, 0)):
        write_step(writer, step, item(f"op{at}", noise(at, 10)), item("same", noise(1000, 10)))
        writer.flush()
        values(open_dump(tmp_path))
    writer.close()
    found = values(open_dump(tmp_path))
    assert {key[:2] for key in found} == {(1, "op5"), (1, "same"), (0, "op6"), (0, "op7"), (0, "same")}
    shards = [one["shard"] for one in lines_of(tmp_path)]
    assert all(os.path.exists(directory / shard) for shard in shards)


def test_a_dump_that_was_opened_before_names_the_steps_that_went(tmp_path: Path, directory: Path) -> None:
    writer = HostWriter(directory, metadata={}, keep=1, stats=("max",))
    write_step(writer, 0, item("a", noise(0, 5000)), item("b", noise(1, 5000)))
    writer.flush()
    dump = open_dump(tmp_path)
    first, second = dump
    before = first.numpy()
    for step in (1, 2):
        write_step(writer, step, item("a", noise(step, 10)))
    writer.flush()
    assert before.tobytes() == noise(0, 5000).tobytes(), "an array that was read stays valid"
    del before
    with pytest.raises(ReadError, match="the step was removed") as caught:
        second.numpy()
    assert caught.value.code == "AD404"
    (gone,) = dump
    assert gone.error is not None
    assert gone.error.code == "AD404"
    writer.close()


def test_a_catalog_of_such_a_dump_names_them_too(tmp_path: Path, directory: Path) -> None:
    pytest.importorskip("polars")
    writer = HostWriter(directory, metadata={}, keep=1, stats=("max",))
    write_step(writer, 0, item("a", noise(0, 5000)))
    writer.flush()
    dump = open_dump(tmp_path)
    for step in (1, 2):
        write_step(writer, step, item("a", noise(step, 10)))
    writer.flush()
    assert dump.catalog().collect()["error"].to_list() != [None]
    writer.close()


STEPS = st.lists(
    st.lists(st.tuples(st.integers(0, 8), st.sampled_from([3, 200, 3000])), max_size=5), min_size=1, max_size=14
)


@settings(max_examples=60, deadline=None)
@given(steps=STEPS, keep=st.integers(1, 4), tensors=st.booleans())
def test_whatever_is_recorded(
    steps: list[list[tuple[int, int]]], keep: int, tensors: bool, tmp_path_factory: Any
) -> None:
    root = tmp_path_factory.mktemp("dump")
    directory = model_directory(root)
    writer = HostWriter(directory, metadata={}, keep=keep, limits=SMALL, tensors=tensors, stats=("max",))
    recorded: list[int] = []
    for step, contents in enumerate(steps):
        writer.begin_step(step)
        for at, (seed, size) in enumerate(contents):
            put(writer, item(f"op{at}", noise(seed, size)))
        writer.flush()
        if contents:
            recorded.append(step)
        there = recorded[-keep - 1 :]
        index = sorted(int(path.parent.name) for path in directory.rglob("index.jsonl*"))
        assert index == there
        if not there:
            continue
        for record in open_dump(root):
            assert record.error is None
            seed, size = steps[record.step or 0][int(record.op_name[2:])]
            assert record.statistics().max == pytest.approx(float(noise(seed, size).max()))
            if tensors:
                np.testing.assert_array_equal(record.numpy(), noise(seed, size))
    writer.close()
    assert writer.failure is None
    assert sorted(int(path.parent.name) for path in directory.rglob("index.jsonl*")) == recorded[-keep:]
    on_disk = set(directory.rglob("*.safetensors"))
    needed = {directory / one["shard"] for one in lines_of(root) if "shard" in one}
    newest = {path for path in on_disk if (path.parent / "index.jsonl").exists()}
    assert on_disk <= needed | newest, "no shard stays that nothing reads from"
    tensor_bytes = sum(path.stat().st_size - 16384 for path in on_disk)
    assert writer.tensor_bytes <= tensor_bytes <= writer.tensor_bytes + 16 * len(recorded) * 5


class TestUntil:
    """until="nonfinite": the step that produced NaN or Inf is the last one."""

    @pytest.mark.parametrize("wrong", [np.nan, np.inf, -np.inf])
    @pytest.mark.parametrize("dtype", ["float16", "float32", "float64", "complex64", "bfloat16", "float8_e5m2"])
    @pytest.mark.parametrize(("tensors", "stats"), [(True, ()), (False, ("max",)), (True, ("max",))])
    def test_in_any_type(
        self, tmp_path: Path, directory: Path, wrong: float, dtype: str, tensors: bool, stats: tuple[str, ...]
    ) -> None:
        kind = numpy_dtype(dtype)
        writer = HostWriter(directory, metadata={}, keep=2, until="nonfinite", tensors=tensors, stats=stats)
        for step in range(20):
            array = noise(step, 100).astype(kind)
            if step in (7, 9):
                array[51] = wrong
            write_step(writer, step, item("before", noise(step, 5)), item("op", array), item("after", noise(step, 6)))
        writer.close()
        assert steps_of(tmp_path) == [5, 6, 7]
        assert [len(open_dump(tmp_path).select(step=step)) for step in (5, 6, 7)] == [3, 3, 3], "to its end"
        what = "NaN" if np.isnan(wrong) else "-Inf" if wrong < 0 and kind.kind != "c" else "Inf"
        assert writer.ended == Ended(f"{what} in op.output.0", 7, "op.output.0")
        assert writer.kept()["removed"]["steps"] == 5

    @pytest.mark.parametrize("stats", [(), ("max",)])
    def test_a_step_without_goes_on(self, directory: Path, tmp_path: Path, stats: tuple[str, ...]) -> None:
        writer = HostWriter(directory, metadata={}, keep=1, until="nonfinite", stats=stats)
        mask = np.array([0, -np.inf, 0], np.float32)
        scores = np.array([1, -np.inf, 3], np.float32)
        for step in range(4):
            writer.begin_step(step)
            put(writer, item("full", mask, op_type="aten::full"))
            put(writer, item("triu", scores, op_type="aten::masked_fill"))
            put(writer, item("add", mask, io="input"), item("add", scores, op_type="aten::add"))
            put(writer, item("view", scores, io="input", op_type="x"), item("view", scores, op_type="x"))
            put(writer, item("max", np.array([3, 2**31 - 1], np.int32)))
            writer.put([Item(line("empty", noise(0, 2), skipped="uninitialised memory"), None)], 0)
        writer.close()
        assert writer.ended is None
        assert steps_of(tmp_path) == [3]
        assert writer.kept()["unknown"] == 0

    def test_what_nobody_can_look_at_is_counted(self, directory: Path) -> None:
        writer = HostWriter(directory, metadata={}, until="nonfinite")
        sparse = Line(0, "t", "sparse", "output", 0, 1, "float32", (3,), 12, skipped="sparse")
        writer.begin_step(0)
        writer.put([Item(sparse, None)], 0)
        writer.close()
        assert (writer.ended, writer.kept()["unknown"]) == (None, 1)


def test_an_end_that_the_program_asks_for(tmp_path: Path, directory: Path) -> None:
    writer = HostWriter(directory, metadata={}, keep=2)
    for step in range(9):
        writer.begin_step(step)
        put(writer, item("a", noise(step, 10)))
        if step == 5:
            writer.end("loss spike")
            writer.end("another")
        put(writer, item("b", noise(step, 20)))
        writer.end_step()
    writer.close()
    assert {key[:2] for key in values(open_dump(tmp_path))} == {(s, n) for s in (3, 4, 5) for n in "ab"}
    assert writer.ended == Ended("loss spike", 5, "")


@pytest.mark.parametrize("keep", [None, 2])
def test_an_end_between_steps(tmp_path: Path, directory: Path, keep: int) -> None:
    writer = HostWriter(directory, metadata={}, keep=keep)
    for step in range(6):
        if step == 4:
            writer.end("why not")
        write_step(writer, step, item("a", noise(step, 10)))
    writer.close()
    assert steps_of(tmp_path) == ([0, 1, 2, 3] if keep is None else [1, 2, 3])
    assert writer.ended == Ended("why not", 3, "")


EVENTS = st.lists(st.sampled_from(["step", "empty", "nan", "mask", "trigger", "trigger between"]), max_size=12)


@settings(max_examples=60, deadline=None)
@given(events=EVENTS, keep=st.none() | st.integers(1, 3), until=st.booleans())
def test_whatever_ends_it(events: list[str], keep: Optional[int], until: bool, tmp_path_factory: Any) -> None:
    root = tmp_path_factory.mktemp("dump")
    directory = model_directory(root)
    writer = HostWriter(directory, metadata={}, keep=keep, until="nonfinite" if until else None, limits=SMALL)
    recorded: list[int] = []
    ended: Optional[int] = None
    last: Optional[int] = None
    for step, event in enumerate(events):
        if event == "trigger between":
            writer.end("between")
            ended = (last if last is not None else -1) if ended is None else ended
            continue
        writer.begin_step(step)
        last = step
        if event != "empty":
            array = noise(step, 50)
            array[3] = {"nan": np.nan, "mask": -np.inf}.get(event, 0)
            put(writer, item("op", array, op_type="aten::masked_fill"))
            recorded += [step] if ended is None else []
        if event == "trigger":
            writer.end("inside")
        if ended is None and (event == "trigger" or (event == "nan" and until)):
            ended = step
        writer.end_step()
    writer.close()
    assert (writer.ended is None) == (ended is None)
    if writer.ended is not None:
        assert writer.ended.step == (None if ended == -1 else ended)
    expected = recorded
    if keep is not None:
        # The step that ended it stays besides; where that has no records, one more of those before.
        expected = recorded[-keep:] if ended is None else recorded[-keep - 1 :]
    assert sorted(int(path.parent.name) for path in directory.rglob("index.jsonl*")) == expected
    assert recorded == [] or len(values(open_dump(root))) == len(expected)


def test_a_manifest_has_the_removed_steps_of_all_writers(tmp_path: Path) -> None:
    run = HostRun(RunDirectory.planned(tmp_path, Rank(0, 1)).make(), request={}, versions={})
    writers = [HostWriter(run.directory(0, model), metadata={}, keep=1, until="nonfinite") for model in "ab"]
    for writer, steps, name in zip(writers, ([2, 3, 7], [1, 4, 5, 6]), ("exp_0", "log_0")):
        for step in steps:
            write_step(writer, step, item("a", noise(step, 10)))
        assert writer._store.watch is not None
        writer._store.watch.harmless.update(["mul_0", name])
    writers[1].end("loss spike")
    for writer in writers:
        writer.close()
    run.finish(writers, None)
    manifest = json.loads((run.root / MANIFEST).read_text())
    assert manifest["removed"] == {"steps": 4, "records": 4, "first": 1, "last": 4}
    assert manifest["ended"]["reason"] == "loss spike"
    assert manifest["harmless"] == {"mul_0": 2, "exp_0": 1, "log_0": 1}
