"""`keep`: the last steps stay on disk with all that they read from, and nothing else does."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import numpy as np
import pytest
from host_dumps import item, lines_of, model_directory, noise, put, values, write_step
from hypothesis import given, settings
from hypothesis import strategies as st

from ascend_dump import ReadError
from ascend_dump.reading import open_dump
from ascend_dump.writing import HostWriter, Limits

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
    assert writer.kept() == {"steps": 7, "records": 14, "first": 0, "last": 6}
    assert writer.records == 20, "of what was written"


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
    shards = [line["shard"] for line in lines_of(tmp_path)]
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
    assert dump.catalog().collect()["error"].to_list() != [None]
    writer.close()


STEPS = st.lists(
    st.lists(st.tuples(st.integers(0, 8), st.sampled_from([3, 200, 3000])), max_size=5), min_size=1, max_size=14
)


@settings(max_examples=60, deadline=None)
@given(steps=STEPS, keep=st.integers(1, 4), tensors=st.booleans())
def test_whatever_is_recorded(steps: list[list[tuple[int, int]]], keep: int, tensors: bool, tmp_path_factory) -> None:  # type: ignore[no-untyped-def]  # of pytest
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
        index = sorted(int(path.parent.name) for path in directory.rglob("index.jsonl"))
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
    assert sorted(int(path.parent.name) for path in directory.rglob("index.jsonl")) == recorded[-keep:]
    on_disk = set(directory.rglob("*.safetensors"))
    needed = {directory / line["shard"] for line in lines_of(root) if "shard" in line}
    newest = {path for path in on_disk if (path.parent / "index.jsonl").exists()}
    assert on_disk <= needed | newest, "no shard stays that nothing reads from"
    tensor_bytes = sum(path.stat().st_size - 16384 for path in on_disk)
    assert writer.tensor_bytes <= tensor_bytes <= writer.tensor_bytes + 16 * len(recorded) * 5
