"""A large index is compressed when its step is complete; nothing is lost, whatever happens meanwhile."""

from __future__ import annotations

import errno
import gzip
import json
import os
import stat
import threading
from pathlib import Path
from typing import Any, Callable

import numpy as np
import pytest
from host_dumps import item, model_directory, noise, put, values, write_step
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ascend_dump.common.paths import UNFINISHED
from ascend_dump.reading import open_dump
from ascend_dump.writing import HostWriter, index_compression, step_files

#: Records of a step whose index is compressed; a line has some 200 bytes.
MANY = 6000


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return model_directory(tmp_path)


@pytest.fixture
def from_one_byte_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(step_files, "WORTH_COMPRESSING", 1)


def write_many(writer: HostWriter, step: int, count: int = MANY, first: int = 0) -> None:
    write_step(writer, step, *(item(f"op{first + number}", noise(number % 7, 5)) for number in range(count)))


def names_in(directory: Path, step: int = 0) -> list[str]:
    return sorted(path.name for path in (directory / str(step)).iterdir())


def text_of(directory: Path, step: int = 0) -> list[dict[str, Any]]:
    path = directory / str(step)
    plain = path / "index.jsonl"
    text = plain.read_bytes() if plain.exists() else gzip.decompress((path / "index.jsonl.gz").read_bytes())
    assert text.endswith(b"\n")
    return [json.loads(line) for line in text.splitlines()]


def test_a_large_step_is_compressed_once_it_is_complete(tmp_path: Path, directory: Path) -> None:
    writer = HostWriter(directory, metadata={}, tensors=False, stats=("max",))
    writer.begin_step(0)
    put(writer, *(item(f"op{number}", noise(number % 7, 5)) for number in range(MANY)))
    writer.flush()
    plain = (directory / "0" / "index.jsonl").read_bytes()
    assert len(plain) > step_files.WORTH_COMPRESSING
    assert names_in(directory) == ["index.jsonl", "statistic.csv"]
    writer.begin_step(1)
    put(writer, *(item(f"op{number}", noise(1, 5)) for number in range(20)))
    writer.close()
    assert names_in(directory) == ["index.jsonl.gz", "statistic.csv"]
    assert names_in(directory, 1) == ["index.jsonl", "statistic.csv"], "of a small one there is little to save"
    compressed = directory / "0" / "index.jsonl.gz"
    assert gzip.decompress(compressed.read_bytes()) == plain
    assert stat.S_IMODE(compressed.stat().st_mode) == 0o600
    assert compressed.stat().st_size * 5 < len(plain)
    assert len(open_dump(tmp_path)) == MANY + 20
    assert writer.tally().records == MANY + 20


def test_the_disk_of_a_run_is_what_its_files_take(directory: Path) -> None:
    """`max_bytes` leaves room for more steps than before."""
    writer = HostWriter(directory, metadata={}, tensors=False, max_bytes=3_000_000)
    for step in range(8):
        write_many(writer, step)
        writer.flush()
        assert sum(path.stat().st_size for path in directory.rglob("*") if path.is_file()) < 3_000_000
    writer.close()
    assert writer.failure is None
    assert len(list(directory.iterdir())) == 8
    assert writer._store.retention.other_bytes == sum(path.stat().st_size for path in directory.rglob("*.*"))


def test_a_step_that_is_written_again_is_continued(tmp_path: Path, directory: Path) -> None:
    writer = HostWriter(directory, metadata={}, tensors=False, stats=("max",))
    write_many(writer, 0)
    write_many(writer, 1, 3)
    writer.flush()
    assert "index.jsonl.gz" in names_in(directory)
    write_many(writer, 0, 5, first=MANY)
    writer.flush()
    assert names_in(directory) == ["index.jsonl", "statistic.csv"]
    write_many(writer, 1, 3)
    writer.close()
    assert names_in(directory) == ["index.jsonl", "statistic.csv"], "it may be continued many times"
    assert [line["op_name"] for line in text_of(directory)] == [f"op{number}" for number in range(MANY + 5)]
    assert len(open_dump(tmp_path)) == MANY + 5 + 6
    assert (directory / "0" / "statistic.csv").read_bytes().count(b"\n") == MANY + 6


def test_a_damaged_one_is_not_continued(directory: Path) -> None:
    writer = HostWriter(directory, metadata={}, tensors=False)
    write_many(writer, 0)
    write_many(writer, 1, 3)
    writer.flush()
    compressed = directory / "0" / "index.jsonl.gz"
    compressed.write_bytes(compressed.read_bytes()[:-9])
    write_many(writer, 0, 5, first=MANY)
    writer.close()
    assert writer.failure is not None
    assert "its gzip data is cut off" in str(writer.failure)
    assert names_in(directory) == ["index.jsonl.gz"]


def test_one_that_readers_would_refuse_stays_plain(
    tmp_path: Path, directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(index_compression, "MOST_EXPANSION", 1)
    writer = HostWriter(directory, metadata={}, tensors=False)
    write_many(writer, 0)
    writer.close()
    assert writer.failure is None
    assert names_in(directory) == ["index.jsonl"]
    assert len(open_dump(tmp_path)) == MANY


@pytest.mark.usefixtures("from_one_byte_on")
def test_removed_steps_leave_nothing(tmp_path: Path, directory: Path) -> None:
    writer = HostWriter(directory, metadata={}, keep=2, stats=("max",))
    for step in range(9):
        items = [item("weight", noise(99, 500)), item("activation", noise(step, 50))]
        write_step(writer, step, *items)
        writer.flush()
        there = list(range(max(0, step - 2), step + 1))
        assert sorted({record.step for record in open_dump(tmp_path)}) == there
        assert len(values(open_dump(tmp_path))) == 2 * len(there)
    writer.close()
    assert sorted(int(path.parent.name) for path in directory.rglob("index.jsonl.gz")) == [7, 8]
    assert not list(directory.rglob("index.jsonl"))
    removed = [path.stat().st_size for path in directory.rglob("removed.jsonl")]
    assert removed == [0] * len(removed)


@pytest.mark.usefixtures("from_one_byte_on")
def test_with_both_files_a_step_is_removed_at_once(
    tmp_path: Path, directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    unlink = os.unlink

    def keep_index(path: Any, **more: Any) -> None:
        if path == "index.jsonl" and not removing:
            raise OSError(errno.EIO, "cannot be removed")
        unlink(path, **more)

    removing: list[bool] = []
    monkeypatch.setattr(os, "unlink", keep_index)
    writer = HostWriter(directory, metadata={}, keep=1)
    write_step(writer, 0, item("a", noise(0, 10)))
    write_step(writer, 1, item("b", noise(1, 10)))
    writer.flush()
    assert [name for name in names_in(directory) if "index" in name] == ["index.jsonl", "index.jsonl.gz"]
    assert len(open_dump(tmp_path)) == 2, "one of both is read"
    removing.append(True)
    write_step(writer, 2, item("c", noise(2, 10)))
    writer.close()
    assert [record.op_name for record in open_dump(tmp_path)] == ["c"]
    assert not list(directory.glob("[01]"))


#: Calls of the system by which an index is compressed.
CALLS = ("stat", "fstat", "open", "pread", "write", "replace", "unlink", "fchmod")


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EIO])
@pytest.mark.usefixtures("from_one_byte_on")
def test_whatever_fails_the_records_are_there(
    tmp_path: Path, directory: Path, monkeypatch: pytest.MonkeyPatch, call: str, error: int
) -> None:
    compress = index_compression.compress_index
    real = getattr(os, call)
    failed = []

    def fail(*arguments: Any, **more: Any) -> Any:
        if not failed:
            failed.append(call)
            raise OSError(error, os.strerror(error))
        return real(*arguments, **more)

    def compress_once(index: int, above: int) -> Any:
        with monkeypatch.context() as patch:
            patch.setattr(os, call, fail)
            return compress(index, above)

    monkeypatch.setattr(step_files, "compress_index", compress_once)
    writer = HostWriter(directory, metadata={}, stats=("max",))
    write_step(writer, 0, item("a", noise(0, 10)), item("b", noise(1, 10)))
    write_step(writer, 1, item("c", noise(2, 10)))
    writer.close()
    assert failed or call == "fchmod"  # a new file is private already
    assert writer.failure is None
    assert set(values(open_dump(tmp_path))) == {(0, "a", "output", 0), (0, "b", "output", 0), (1, "c", "output", 0)}
    assert not [path.name for path in directory.rglob(f"{UNFINISHED}*")]
    assert ("index.jsonl.gz" in names_in(directory)) == (not failed or call == "unlink")
    assert "index.jsonl.gz" in names_in(directory, 1)


@pytest.mark.usefixtures("from_one_byte_on")
def test_a_file_of_somebody_else_is_left_alone(tmp_path: Path, directory: Path) -> None:
    other = tmp_path / "other"
    other.write_text("mine")
    writer = HostWriter(directory, metadata={})
    writer.begin_step(0)
    put(writer, item("a", noise(0, 10)))
    writer.flush()
    index = directory / "0" / "index.jsonl"
    index.rename(tmp_path / "moved")
    index.write_text("mine")
    (directory / "0" / "index.jsonl.gz").symlink_to(other)
    writer.close()
    assert (index.read_text(), other.read_text()) == ("mine", "mine")


@pytest.mark.parametrize("make", [lambda path, other: path.symlink_to(other), lambda path, other: path.mkdir()])
@pytest.mark.usefixtures("from_one_byte_on")
def test_what_has_the_name_already_is_not_followed(
    tmp_path: Path, directory: Path, make: Callable[[Path, Path], None]
) -> None:
    other = tmp_path / "other"
    other.write_text("mine")
    writer = HostWriter(directory, metadata={})
    writer.begin_step(0)
    put(writer, item("a", noise(0, 10)))
    writer.flush()
    make(directory / "0" / "index.jsonl.gz", other)
    writer.close()
    assert other.read_text() == "mine"
    assert writer.failure is None
    assert len(values(open_dump(directory))) == 1


@pytest.mark.usefixtures("from_one_byte_on")
def test_a_reader_sees_each_step_at_any_moment(tmp_path: Path, directory: Path) -> None:
    """A step is listed plain and may be compressed before it is opened, or while it is read."""
    over = threading.Event()
    found: list[int] = []
    wrong: list[Any] = []

    def read() -> None:
        last = 0
        while not over.is_set():
            records = list(open_dump(tmp_path))
            wrong.extend(record.error for record in records if record.error is not None)
            found.append(len(records))
            if len(records) < last:
                wrong.append((last, len(records)))
            last = len(records)

    writer = HostWriter(directory, metadata={}, tensors=False)
    write_many(writer, 0, 5)
    writer.flush()
    reader = threading.Thread(target=read)
    reader.start()
    try:
        for step in range(1, 60):
            write_many(writer, step, 5)
            writer.flush()
    finally:
        over.set()
        reader.join()
        writer.close()
    assert wrong == []
    assert found
    assert len(open_dump(tmp_path)) == 300


STEPS = st.lists(st.tuples(st.integers(0, 3), st.integers(0, 40)), max_size=8)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(steps=STEPS, keep=st.none() | st.integers(1, 3), tensors=st.booleans(), worth=st.sampled_from([1, 2000, 6000]))
def test_it_changes_no_record(
    steps: list[tuple[int, int]], keep: Any, tensors: bool, worth: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Whatever is recorded, in whatever order of steps: the same lines with and without."""
    lines = []
    for least in (worth, 1 << 60):
        directory = model_directory(tmp_path_factory.mktemp("dump"))
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(step_files, "WORTH_COMPRESSING", least)
            writer = HostWriter(directory, metadata={}, tensors=tensors, stats=("max",), keep=keep)
            for number, (step, count) in enumerate(steps):
                write_step(writer, step, *(item(f"op{number}_{at}", noise(at % 5, 9)) for at in range(count)))
                writer.flush()
            writer.close()
            assert writer.failure is None
        there = sorted({int(path.parent.name) for path in directory.rglob("index.jsonl*")})
        assert len(list(directory.rglob("index.jsonl*"))) == len(there)
        lines.append([text_of(directory, step) for step in there if names_in(directory, step)])
        if there:
            records = list(open_dump(directory))
            assert [record.error for record in records] == [None] * len(records)
            assert len(records) == sum(map(len, lines[-1]))
            for record in records:
                assert record.statistics().max == pytest.approx(
                    float(np.max(noise(int(record.op_name.split("_")[1]) % 5, 9)))
                )
    assert lines[0] == lines[1]
