"""The writer that works in the program's own thread: the same files as the one with a thread."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import gc
import logging
import os
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Callable, NamedTuple, Optional

import numpy as np
import pytest
import xxhash
from host_dumps import in_memory, item, line, lines_of, model_directory, noise, put, read, write_step

from ascend_dump.statistics._statistics import Statistics, statistics
from ascend_dump.writing import DirectWriter, HostWriter, Item, Payload
from ascend_dump.writing.append_file import AppendFile
from ascend_dump.writing.store import Store
from ascend_dump.writing.team import Memory

STATS = ("max", "min", "mean", "l2norm", "nan")


@pytest.mark.parametrize("settings", [{}, {"tensors": False, "stats": STATS}, {"stats": STATS}])
def test_it_leaves_the_files_of_the_other_writer(tmp_path: Path, settings: dict[str, Any]) -> None:
    roots = []
    for kind in (DirectWriter, HostWriter):
        root = tmp_path / kind.__name__
        writer = kind(model_directory(root), metadata={"producer": "test"}, **settings)
        shared = item("a", noise(0, 5000))
        write_step(writer, 0, shared, Item(line("again", noise(0, 5000)), shared.payload), item("b", noise(1, 3)))
        write_step(
            writer, 1, item("a", noise(2, 5000)), item("empty", noise(0, 0)), Item(line("none", noise(0, 2)), None)
        )
        writer.flush()
        writer.begin_step(3)
        put(writer, item("unfinished", noise(3, 10)))
        writer.close()
        writer.close()
        assert (writer.failure, writer.records) == (None, 7)
        roots.append((root, writer.bytes_written, writer.logical_bytes, dict(writer.skipped)))
    (ours, *counted), (theirs, *expected) = roots
    assert counted == expected
    files = {path.relative_to(theirs): path.read_bytes() for path in theirs.rglob("*") if path.is_file()}
    assert files
    assert {path.relative_to(ours): path.read_bytes() for path in ours.rglob("*") if path.is_file()} == files


def test_a_tensor_is_read_when_it_is_put(tmp_path: Path) -> None:
    writer = DirectWriter(model_directory(tmp_path), metadata={})
    writer.begin_step(0)
    array, before = noise(0, 50_000), noise(0, 50_000).tobytes()
    one = in_memory("a", array)
    put(writer, one)
    array.fill(7)
    assert one.payload is not None
    assert one.payload.owner is None, "no memory is kept"
    writer.close()
    assert read(tmp_path) == {(0, "a", "output", 0): before}


def test_protected_memory_may_change_before_it_is_put(tmp_path: Path) -> None:
    writer = DirectWriter(model_directory(tmp_path), metadata={})
    writer.begin_step(0)
    array, before = noise(0, 50_000), noise(0, 50_000).tobytes()
    one = in_memory("a", array)
    assert one.payload is not None
    writer.protect(one.payload)
    array.fill(7)
    put(writer, one)
    writer.close()
    assert read(tmp_path) == {(0, "a", "output", 0): before}


def test_a_full_disk_ends_the_capture_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    writer = DirectWriter(model_directory(tmp_path), metadata={})
    write_step(writer, 0, item("kept", noise(0, 500_000)))

    def full(fd: int, data: Any, position: int) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patched, caplog.at_level(logging.WARNING, "ascend_dump"):
        patched.setattr(os, "pwrite", full)
        write_step(writer, 1, item("lost", noise(1, 500_000)), item("lost too", noise(2, 500_000)))
    late = in_memory("late", noise(3, 10))
    write_step(writer, 2, late)
    writer.close()
    assert writer.failure is not None
    assert writer.failure.code == "AD502"
    assert late.payload is not None
    assert late.payload.owner is None, "nothing is kept that nobody writes"
    assert [one.getMessage() for one in caplog.records] == [str(writer.failure)]
    assert read(tmp_path) == {(0, "kept", "output", 0): noise(0, 500_000).tobytes()}


def test_what_ends_a_program_is_not_swallowed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    writer = DirectWriter(model_directory(tmp_path), metadata={})
    writer.begin_step(0)
    put(writer, item("kept", noise(0, 10)))

    def interrupted(self: Store, payload: Payload, line: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Store, "store", interrupted)
    with pytest.raises(KeyboardInterrupt):
        put(writer, item("cut off", noise(1, 10)))
    writer.close()
    assert writer.failure is not None, "the dump must not be called complete"
    assert list(read(tmp_path)) == [(0, "kept", "output", 0)]


def test_an_operator_that_runs_meanwhile_is_written_after(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A finalizer may run while a tensor is stored, and run operators of its own."""
    writer = DirectWriter(model_directory(tmp_path), metadata={})
    writer.begin_step(0)
    store, nested = Store.store, [item("inner", noise(1, 10))]

    def disturbed(self: Store, payload: Payload, line: Any) -> None:
        if nested:
            put(writer, nested.pop())
            writer.flush()
        store(self, payload, line)

    monkeypatch.setattr(Store, "store", disturbed)
    put(writer, item("outer", noise(0, 10)), item("outer too", noise(2, 10)))
    writer.close()
    assert [one["op_name"] for one in lines_of(tmp_path)] == ["outer", "outer too", "inner"]
    assert len(read(tmp_path)) == 3


def test_nothing_is_written_in_a_forked_child(tmp_path: Path) -> None:
    writer = DirectWriter(model_directory(tmp_path), metadata={})
    writer.begin_step(0)
    put(writer, item("parent", noise(0, 10)))
    writer.abandon()
    put(writer, item("child", noise(1, 10)))
    writer.flush()
    writer.close()
    assert lines_of(tmp_path) == []


class PatientTeam:
    """Does the work of a team one after the other, and counts the tensors that it is given at once."""

    ready = True

    def __init__(self) -> None:
        self.given: list[int] = []

    def prepare(self) -> None:
        pass

    def measure(
        self,
        memory: Sequence[Memory],
        dtypes: Sequence[Optional[np.dtype[Any]]],
        *,
        hashes: bool = True,
        meanwhile: Optional[Callable[[], None]] = None,
    ) -> PatientlyMeasured:
        self.given.append(len(memory))
        if meanwhile is not None:
            meanwhile()
        return PatientlyMeasured([ctypes.string_at(address, nbytes) for address, nbytes, _ in memory], dtypes)


class PatientlyMeasured(NamedTuple):
    data: list[bytes]
    dtypes: Sequence[Optional[np.dtype[Any]]]

    def digests(self) -> list[bytes]:
        return list(map(xxhash.xxh3_128_digest, self.data))

    def has_statistics(self, i: int) -> bool:
        dtype = self.dtypes[i]
        return dtype is not None and dtype.kind == "f"

    def statistics(self, i: int) -> Statistics:
        return statistics(np.frombuffer(self.data[i], self.dtypes[i]))


@pytest.mark.parametrize("settings", [{}, {"tensors": False, "stats": STATS}, {"stats": STATS}])
def test_with_a_team_it_leaves_the_same_files(tmp_path: Path, settings: dict[str, Any]) -> None:
    found = []
    team = PatientTeam()
    for more in ({}, {"team": team}):
        root = tmp_path / str(len(more))
        writer = DirectWriter(model_directory(root), metadata={}, **settings, **more)
        writer.begin_step(0)
        shared = item("shared", noise(0, 5000))
        for number in range(5):
            put(writer, item(f"{number}", noise(number % 3, 40)), Item(line("again", noise(0, 5000)), shared.payload))
            put(writer, in_memory("here", noise(number, 9000)), item("integers", np.arange(number)))
            put(writer, Item(line("packed", noise(0, 2), dtype="quint4x2"), Payload(b"12", 0, 2, "quint4x2", (2,))))
        writer.begin_step(1)
        put(writer, item("empty", noise(0, 0)), Item(line("none", noise(0, 2), skipped="for a reason"), None))
        writer.close()
        assert writer.failure is None
        files = {path.relative_to(root): path.read_bytes() for path in root.rglob("*") if path.is_file()}
        found.append((files, dict(writer.skipped), writer.bytes_written, writer.logical_bytes, writer.records))
    assert found[0] == found[1]
    assert max(team.given) > 5, "they came together"


def test_what_waits_for_a_team_is_read_before_its_memory_changes(tmp_path: Path) -> None:
    writer = DirectWriter(model_directory(tmp_path), metadata={}, team=PatientTeam())
    writer.begin_step(0)
    array, before = noise(0, 50_000), noise(0, 50_000).tobytes()
    one, other = in_memory("a", array), in_memory("b", noise(1, 10))
    put(writer, one)
    put(writer, other)
    assert one.payload is not None
    assert one.payload.owner is array, "its memory is kept"
    assert lines_of(tmp_path) == []
    writer.protect(one.payload)
    assert one.payload.owner is None, "no memory is kept"
    array.fill(7)
    writer.close()
    assert read(tmp_path) == {(0, "a", "output", 0): before, (0, "b", "output", 0): noise(1, 10).tobytes()}


def test_little_waits_for_a_team(tmp_path: Path) -> None:
    writer = DirectWriter(model_directory(tmp_path), metadata={}, team=PatientTeam())
    writer.begin_step(0)
    large = [in_memory(f"{number}", noise(number, 3 << 20)) for number in range(4)]
    for one in large:
        put(writer, one)
    assert [one.payload is not None and one.payload.owner is None for one in large] == [True, True, True, False]
    small = [item(f"small{number}", noise(number, 4)) for number in range(1000)]
    for one in small:
        put(writer, one)
    assert sum(one.payload is not None and one.payload.owner is not None for one in small) < 300
    writer.flush()
    assert writer.records == 1004
    writer.close()
    assert len(lines_of(tmp_path)) == 1004


def test_the_table_names_operators_of_one_number(tmp_path: Path) -> None:
    """Several runs of a program may number their operators from 0 in one step."""
    writer = DirectWriter(model_directory(tmp_path), metadata={}, tensors=False, stats=STATS)
    names = ["a", "b", "b", "a"]
    write_step(writer, 0, *(item(name, noise(0, 10), seq=0, phase=f"phase{at}") for at, name in enumerate(names)))
    writer.close()
    (table,) = tmp_path.rglob("statistic.csv")
    rows = [row.split(",")[1:3] for row in table.read_text().splitlines()[1:]]
    assert rows == [[name, f"phase{at}"] for at, name in enumerate(names)]


def test_a_team_that_fails_is_done_without(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    class BrokenTeam(PatientTeam):
        def measure(self, *args: Any, **kwargs: Any) -> PatientlyMeasured:
            raise OSError("no threads today")

    writer = DirectWriter(model_directory(tmp_path), metadata={}, tensors=False, stats=STATS, team=BrokenTeam())
    with caplog.at_level(logging.WARNING, "ascend_dump"):
        for step in range(2):
            write_step(writer, step, item("a", noise(0, 10)), item("b", noise(step, 20)))
    writer.close()
    assert writer.failure is None
    assert ["no threads today" in one.getMessage() for one in caplog.records] == [True]
    assert [one["stats"][0] for one in lines_of(tmp_path)] == [10, 20, 10, 20]


def test_lines_are_written_while_the_next_tensors_are_hashed(tmp_path: Path) -> None:
    class WatchedTeam(PatientTeam):
        def measure(
            self, *args: Any, meanwhile: Optional[Callable[[], None]] = None, **kwargs: Any
        ) -> PatientlyMeasured:
            before = len(lines_of(tmp_path))
            measured = super().measure(*args, meanwhile=meanwhile, **kwargs)
            seen.append((before, len(lines_of(tmp_path))))
            return measured

    seen: list[tuple[int, int]] = []
    writer = DirectWriter(model_directory(tmp_path), metadata={}, tensors=False, stats=STATS, team=WatchedTeam())
    writer.begin_step(0)
    for number in range(450):
        put(writer, item(f"{number}", noise(number, 9)))
    assert seen == [(0, 0), (0, 200)], "the first has no lines before it"
    writer.flush()
    assert len(lines_of(tmp_path)) == 450
    writer.close()
    names = [one["op_name"] for one in lines_of(tmp_path)]
    assert names == [f"{number}" for number in range(450)]
    assert all(len(one["stats"]) == 11 for one in lines_of(tmp_path))


def test_lines_of_what_was_read_survive_what_cannot_be_written(tmp_path: Path) -> None:
    """A tensor finds no room, and nothing else goes wrong."""
    team = PatientTeam()
    writer = DirectWriter(model_directory(tmp_path), metadata={}, max_bytes=3000, team=team)
    writer.begin_step(0)
    for number in range(3):
        put(writer, item(f"{number}", noise(number, 100)))
        put(writer, item(f"again{number}", noise(number, 100)))
    large = in_memory("large", noise(9, 5000))
    put(writer, large)
    assert large.payload is not None
    writer.protect(large.payload)
    assert writer.failure is not None
    assert writer.failure.code == "AD503"
    assert len(lines_of(tmp_path)) == 6, "at once: the program may be killed before it ends"
    writer.close()
    assert len(lines_of(tmp_path)) == 6


@pytest.mark.parametrize("calls", [True, False])
def test_a_full_disk_is_told_once_when_lines_are_written_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, calls: bool
) -> None:
    class Lazy(PatientTeam):
        def measure(
            self, *args: Any, meanwhile: Optional[Callable[[], None]] = None, **kwargs: Any
        ) -> PatientlyMeasured:
            return super().measure(*args, meanwhile=meanwhile if calls else None, **kwargs)

    writer = DirectWriter(model_directory(tmp_path), metadata={}, tensors=False, stats=STATS, team=Lazy())
    writer.begin_step(0)
    for number in range(250):
        put(writer, item(f"{number}", noise(number, 9)))

    def full(self: AppendFile, data: bytes) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(AppendFile, "append", full)
    with caplog.at_level(logging.WARNING, "ascend_dump"):
        for number in range(250):
            put(writer, item(f"{number}", noise(number, 9)))
        writer.close()
    assert writer.failure is not None
    assert writer.failure.code == "AD502"
    assert len(caplog.records) == 1
    assert writer.records == 0


def test_an_interrupt_while_lines_are_written_reaches_the_program(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = DirectWriter(model_directory(tmp_path), metadata={}, tensors=False, stats=STATS, team=PatientTeam())
    writer.begin_step(0)
    for number in range(250):
        put(writer, item(f"{number}", noise(number, 9)))

    def interrupted(self: AppendFile, data: bytes) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(AppendFile, "append", interrupted)
    with pytest.raises(KeyboardInterrupt):
        writer.flush()
    assert writer.failure is not None
    writer.close()


class AskedTeam(PatientTeam):
    """Calls a function as it measures."""

    def __init__(self, function: Callable[[], None]) -> None:
        super().__init__()
        self.function = function

    def measure(self, *args: Any, **kwargs: Any) -> PatientlyMeasured:
        self.function()
        return super().measure(*args, **kwargs)


@pytest.mark.parametrize("fails", [False, True])
def test_no_garbage_is_collected_while_memory_is_read(tmp_path: Path, fails: bool) -> None:
    """A finalizer may let go of it."""

    def look() -> None:
        seen.append(gc.isenabled())
        if fails:
            raise KeyboardInterrupt

    seen: list[bool] = []
    writer = DirectWriter(model_directory(tmp_path), metadata={}, team=AskedTeam(look))
    writer.begin_step(0)
    put(writer, item("a", noise(1, 9)))
    with pytest.raises(KeyboardInterrupt) if fails else contextlib.nullcontext():
        writer.flush()
    assert seen == [False]
    assert gc.isenabled()
    gc.disable()
    try:
        put(writer, item("b", noise(2, 9)))
        writer.close()
        assert not gc.isenabled(), "as it was"
    finally:
        gc.enable()


@pytest.mark.filterwarnings("ignore:.*multi-threaded:DeprecationWarning")
def test_a_child_that_another_thread_forks_meanwhile_collects_garbage(tmp_path: Path) -> None:
    status = []

    def fork() -> None:
        child = os.fork()
        if child == 0:
            writer.abandon()
            os._exit(not gc.isenabled())
        status.append(os.waitpid(child, 0)[1])

    def fork_elsewhere() -> None:
        thread = threading.Thread(target=fork)
        thread.start()
        thread.join()

    writer = DirectWriter(model_directory(tmp_path), metadata={}, team=AskedTeam(fork_elsewhere))
    writer.begin_step(0)
    put(writer, item("a", noise(1, 9)))
    writer.close()
    assert status == [0]


def test_another_thread_waits_until_memory_is_read_before_it_changes(tmp_path: Path) -> None:
    def change() -> None:
        one = threading.Thread(target=writer.protect, args=(payload,))
        threads.append(one)
        one.start()
        one.join(0.2)
        waited.append(one.is_alive())

    threads: list[threading.Thread] = []
    waited: list[bool] = []
    writer = DirectWriter(model_directory(tmp_path), metadata={}, team=AskedTeam(change))
    writer.begin_step(0)
    new = in_memory("a", noise(1, 9))
    payload = new.payload
    put(writer, new)
    writer.close()
    threads[0].join(10)
    assert waited == [True]
    assert not threads[0].is_alive()
    assert len(lines_of(tmp_path)) == 1


def test_a_forked_child_lets_go_of_what_waits(tmp_path: Path) -> None:
    writer = DirectWriter(model_directory(tmp_path), metadata={}, team=PatientTeam())
    writer.begin_step(0)
    put(writer, item("parent", noise(0, 10)))
    writer.abandon()
    writer.close()
    assert lines_of(tmp_path) == []
