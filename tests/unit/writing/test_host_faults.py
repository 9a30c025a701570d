"""A disk that fills up or breaks at any moment: the dump ends once, what is there is whole, the training goes on."""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import shutil
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Callable, Optional

import pytest
from host_dumps import in_memory, item, line, lines_of, model_directory, noise, open_shards, put, write_step

from ascend_dump.reading import open_dump
from ascend_dump.writing import HostWriter, Item, Limits

LIMITS = Limits(room=16 * 1024 - 8, nbytes=1 << 20)
#: Elements: below and above what is gathered into one write.
SIZES = [3, 1000, 80_000, 17, 17, 250, 70_000, 100, 90_000, 5, 64, 1, 40_000, 2000]
#: The same in few calls, for tests that fail each of them: links, overwritten memory, a second shard.
FEW = [3, 100_000, 17, 66_000, 110_000, 5]


class Faults:
    """Stands before the calls of the writer thread that change files.

    calls    names of those made so far
    fail_at  number of the call that fails; for_good: all later ones do, too; partly: half of it is done
    capacity bytes that the disk takes, None for enough
    """

    NAMES = ("open", "mkdir", "write", "pwrite", "ftruncate")

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.calls: list[str] = []
        self.fail_at: Optional[int] = None
        self.for_good = False
        self.partly = False
        self.error = errno.EIO
        self.capacity: Optional[int] = None
        self.used = 0
        self.real = {name: getattr(os, name) for name in self.NAMES}
        for name in self.NAMES:
            monkeypatch.setattr(os, name, self._stand_in(name))

    def _stand_in(self, name: str) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            if threading.current_thread().name != "ascend_dump writer":
                return self.real[name](*args, **kwargs)
            number = len(self.calls)
            self.calls.append(name)
            if self.fail_at is not None and (number == self.fail_at or (self.for_good and number > self.fail_at)):
                if self.partly and name in ("write", "pwrite") and number == self.fail_at and len(args[1]) > 1:
                    # Half of it, and the error with the next call.
                    self.fail_at, half = number + 1, args[1][: len(args[1]) // 2]
                    return self.real[name](args[0], half, *args[2:])
                raise OSError(self.error, os.strerror(self.error))
            if self.capacity is not None and name in ("write", "pwrite"):
                return self._write_what_fits(name, *args)
            return self.real[name](*args, **kwargs)

        return call

    def _write_what_fits(self, name: str, fd: int, data: Any, *position: int) -> int:
        assert self.capacity is not None
        size = os.fstat(fd).st_size
        start = position[0] if position else size
        free = max(size - start, 0) + self.capacity - self.used
        if free <= 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        count = int(self.real[name](fd, data[:free], *position))
        self.used += os.fstat(fd).st_size - size
        return count


@pytest.fixture
def faults(monkeypatch: pytest.MonkeyPatch) -> Faults:
    return Faults(monkeypatch)


def train(directory: Path, sizes: list[int] = SIZES) -> HostWriter:
    """Two steps; the second links to the first."""
    writer = HostWriter(directory, metadata={}, stats=("max", "mean"), limits=LIMITS)
    for step in range(2):
        writer.begin_step(step)
        for number, size in enumerate(sizes):
            array = noise(number, size) if number % 5 == 0 else noise(100 * step + number, size)
            one = in_memory(f"op{number}", array)
            put(writer, one)
            put(writer, Item(line(f"none{number}", array, skipped="for a reason"), None))
            if number % 3 == 0 and one.payload is not None:
                writer.protect(one.payload)
                array.fill(7)
            if number % 4 == 0:
                writer.flush()
        writer.end_step()
    writer.close()
    return writer


def expected(step: int, name: str, sizes: list[int]) -> bytes:
    number = int(name[2:])
    return noise(number if number % 5 == 0 else 100 * step + number, sizes[number]).tobytes()


def check(root: Path, writer: HostWriter, sizes: list[int] = SIZES, *, whole: bool = True, headers: bool = True) -> int:
    """Everything that is listed is there; gives the number of records.

    whole: no line is cut off. headers: the safetensors library opens the shards.
    """
    dump = open_dump(root) if any(root.rglob("index.jsonl*")) else []
    count = 0
    for record in dump:
        assert record.error is None
        count += 1
        if record.op_name.startswith("op"):
            assert record.numpy().tobytes() == expected(record.step or 0, record.op_name, sizes)
            assert record.statistics().max == pytest.approx(float(record.numpy().max()))
    if not whole:
        # A line may lack its newline only.
        assert writer.records <= count <= writer.records + 1
        return count
    assert count == writer.records == len(lines_of(root))
    for table in root.rglob("statistic.csv"):
        assert not table.stat().st_size or table.read_bytes().endswith(b"\n")
    if headers:
        listed = {(one["shard"], one["blob"][0]) for one in lines_of(root) if "shard" in one}
        stored = sum(len(tensors) for tensors in open_shards(root).values())
        assert stored >= len(listed)
    return count


def test_all_is_well_without_a_fault(tmp_path: Path, faults: Faults) -> None:
    writer = train(model_directory(tmp_path))
    assert writer.failure is None
    assert check(tmp_path, writer) == 4 * len(SIZES)


@pytest.mark.parametrize(("error", "code"), [(errno.ENOSPC, "AD502"), (errno.EDQUOT, "AD502"), (errno.EIO, "AD501")])
def test_each_error_has_its_code(tmp_path: Path, faults: Faults, error: int, code: str) -> None:
    faults.error, faults.fail_at = error, 5
    writer = train(model_directory(tmp_path), FEW)
    assert writer.failure is not None
    assert writer.failure.code == code


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("kind", "error", "code"),
    [
        ("once", errno.ENOSPC, "AD502"),
        ("for good", errno.EIO, "AD501"),
        ("partly", errno.ENOSPC, "AD502"),
        ("partly, for good", errno.ENOSPC, "AD502"),
    ],
)
def test_a_failure_of_any_call(
    tmp_path: Path, faults: Faults, caplog: pytest.LogCaptureFixture, kind: str, error: int, code: str
) -> None:
    faults.error = error
    assert check(tmp_path / "whole", train(model_directory(tmp_path / "whole"), FEW), FEW) == 4 * len(FEW)
    calls = faults.calls
    assert set(calls) == {"open", "mkdir", "write", "pwrite"}
    assert len(list(tmp_path.rglob("*.safetensors"))) > 2
    for number, name in enumerate(calls):
        if "partly" in kind and name not in ("write", "pwrite"):
            continue
        root = tmp_path / str(number)
        caplog.clear()
        faults.calls, faults.fail_at = [], number
        faults.for_good, faults.partly = "for good" in kind, "partly" in kind
        writer = train(model_directory(root), FEW)
        assert writer.failure is not None, number
        assert writer.failure.code == code
        assert [one.message for one in caplog.records if one.levelno >= logging.WARNING] == [str(writer.failure)]
        # Where no call succeeds any more, nothing can be completed or cut off; nor can what failed only once be
        # the header itself.
        index = faults.calls[number] == "write"
        check(root, writer, FEW, whole="for good" not in kind, headers=index and "for good" not in kind)
        shutil.rmtree(root)


@pytest.mark.thorough
def test_a_disk_that_is_full_at_any_byte(tmp_path: Path, faults: Faults) -> None:
    faults.capacity = 1 << 30
    whole = check(tmp_path / "whole", train(model_directory(tmp_path / "whole")))
    needed = faults.used
    counts = []
    places = [*range(0, needed, 29_989), *range(needed - 40_000, needed, 1_403)]
    for capacity in places:
        root = tmp_path / str(capacity)
        faults.capacity, faults.used = capacity, 0
        writer = train(model_directory(root))
        assert writer.failure is not None
        assert writer.failure.code == "AD502"
        counts.append(check(root, writer))
        shutil.rmtree(root)
    assert counts == sorted(counts)
    assert counts[0] == 0
    assert whole - 3 <= counts[-1] < whole + 1


def test_what_was_gathered_before_the_failure_is_kept(tmp_path: Path, faults: Faults) -> None:
    """Small tensors wait for each other; those that had room are not lost with those that had not."""
    faults.capacity = LIMITS.room + 8 + 10_000
    writer = HostWriter(model_directory(tmp_path), metadata={}, limits=LIMITS)
    write_step(writer, 0, *(item(f"op{number}", noise(number, 250)) for number in range(50)))
    writer.close()
    # Nothing is left for the index: its lines are what takes the last room.
    assert writer.failure is not None
    [shard] = open_shards(tmp_path).values()
    assert 5 <= len(shard) <= 10
    assert set(shard.values()) == {noise(number, 250).tobytes() for number in range(len(shard))}
    assert lines_of(tmp_path) == []
    assert writer.records == 0


def test_records_before_the_failure_are_listed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A tensor that fails takes no record with it whose bytes are in the file."""
    pwrite = os.pwrite

    def fail(fd: int, data: Any, position: int) -> int:
        if len(data) == 90_000 * 4:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return pwrite(fd, data, position)

    monkeypatch.setattr(os, "pwrite", fail)
    writer = HostWriter(model_directory(tmp_path), metadata={})
    small = [item(f"small{number}", noise(number, 50)) for number in range(5)]
    write_step(writer, 0, *small, item("large", noise(9, 90_000)), item("late", noise(10, 5)))
    writer.close()
    assert writer.failure is not None
    assert [record.op_name for record in open_dump(tmp_path)] == [f"small{number}" for number in range(5)]
    assert [record.numpy().tobytes() for record in open_dump(tmp_path)] == [noise(n, 50).tobytes() for n in range(5)]
    assert writer.records == 5
    [shard] = open_shards(tmp_path).values()
    assert set(shard.values()) == {noise(number, 50).tobytes() for number in range(5)}


def test_the_free_space_is_watched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    class Disk:
        f_frsize = 4096
        f_blocks = (100 << 30) // 4096
        f_bavail = (1 << 30) // 4096 + (65 << 20) // 4096

    monkeypatch.setattr(os, "statvfs", lambda path: Disk)
    monkeypatch.setattr("ascend_dump.writing.budget._CHECK_EVERY", 1 << 20)
    writer = HostWriter(model_directory(tmp_path), metadata={})
    writer.begin_step(0)
    for number in range(40):
        if number == 20:
            writer.flush()
            Disk.f_bavail = (1 << 30) // 4096
        put(writer, item(f"op{number}", noise(number, 100_000)))
    writer.close()
    assert writer.failure is not None
    assert writer.failure.code == "AD502"
    assert "only 1.1 GB is free in " in str(writer.failure)
    assert "would leave less than the 1.1 GB kept in reserve: the capture stops" in str(writer.failure)
    assert 20 <= writer.records <= 23
    assert len(list(open_dump(tmp_path))) == writer.records
    assert len(caplog.records) == 1


def test_a_disk_that_does_not_tell_is_written_to(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: object) -> None:
        raise OSError(errno.ENOSYS, "Function not implemented")

    monkeypatch.setattr(os, "statvfs", refuse)
    writer = HostWriter(model_directory(tmp_path), metadata={})
    write_step(writer, 0, item("op0", noise(0, 3)))
    writer.close()
    assert (writer.failure, writer.records) == (None, 1)


@contextlib.contextmanager
def mounted(path: Path, size: str) -> Iterator[Path]:
    path.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"size={size},mode=700", "tmpfs", str(path)]
    if shutil.which("mount") is None or subprocess.run(command, capture_output=True).returncode:
        pytest.skip("this user may not mount a small file system")
    try:
        yield path
    finally:
        subprocess.run(["umount", "-l", str(path)], check=True)


def test_a_real_disk_that_is_full(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with mounted(tmp_path / "small", "1200k") as small:
        # As if another program took the rest after the check.
        monkeypatch.setattr("ascend_dump.writing.budget.Budget._check_disk", lambda self, nbytes, more: None)
        writer = train(model_directory(small))
        assert writer.failure is not None
        assert writer.failure.code == "AD502"
        assert 0 < check(small, writer) < 4 * len(SIZES)
    with mounted(tmp_path / "smaller", "12k") as small:
        writer = HostWriter(model_directory(small), metadata={})
        write_step(writer, 0, item("op0", noise(0, 3)))
        writer.close()
        assert writer.failure is not None
        assert writer.failure.code == "AD502"


@pytest.mark.parametrize("what", ["run", "model", "step"])
def test_directories_deleted_meanwhile(tmp_path: Path, what: str) -> None:
    directory = model_directory(tmp_path)
    writer = HostWriter(directory, metadata={}, stats=("max",))
    write_step(writer, 0, item("op0", noise(0, 3)))
    writer.begin_step(1)
    put(writer, item("op0", noise(100, 3)))
    writer.flush()
    shutil.rmtree({"run": tmp_path / "worldsize1_global_rank0", "model": directory, "step": directory / "1"}[what])
    put(writer, item("op3", noise(103, 17)))
    writer.end_step()
    write_step(writer, 2, item("op4", noise(204, 17)))
    writer.flush()
    writer.close()
    if what == "step":
        assert writer.failure is None
        assert [record.step for record in open_dump(tmp_path)] == [0, 2]
    else:
        assert writer.failure is not None
        assert writer.failure.code == "AD501"
        assert str(directory) in str(writer.failure)


def test_a_path_in_the_way(tmp_path: Path) -> None:
    directory = model_directory(tmp_path)
    (directory / "0").write_text("no directory")
    writer = HostWriter(directory, metadata={})
    write_step(writer, 0, item("op0", noise(0, 3)))
    writer.close()
    assert writer.failure is not None
    assert writer.failure.code == "AD501"
