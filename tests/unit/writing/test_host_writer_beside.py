"""How the host writer deals with the program that it runs beside."""

from __future__ import annotations

import logging
import os
import random
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Callable

import host_dumps
import numpy as np
import pytest
import xxhash
from host_dumps import (
    content,
    in_memory,
    item,
    line,
    model_directory,
    noise,
    open_shards,
    put,
    read,
    write_step,
)

from ascend_dump import Dump, WriteError
from ascend_dump.reading import open_dump
from ascend_dump.writing import HostWriter, Item, Limits, copy_memory
from ascend_dump.writing.payload import WRITING


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return model_directory(tmp_path)


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """The writer waits before each shard write until this is set."""
    opened = threading.Event()
    pwrite = os.pwrite

    def wait(fd: int, data: Any, position: int) -> int:
        assert opened.wait(60)
        return pwrite(fd, data, position)

    monkeypatch.setattr(os, "pwrite", wait)
    yield opened
    opened.set()


def eventually(test: Callable[[], bool]) -> bool:
    end = time.monotonic() + 600
    while not test() and time.monotonic() < end:
        time.sleep(0.002)
    return test()


def test_a_tensor_is_written_as_it_was_when_it_was_put(tmp_path: Path, directory: Path, gate: threading.Event) -> None:
    writer = HostWriter(directory, metadata={})
    arrays = [noise(number, 100_000) for number in range(6)]
    items = [in_memory(f"op{number}", array) for number, array in enumerate(arrays)]
    writer.begin_step(0)
    put(writer, *items)
    writer.end_step()
    first = items[0].payload
    assert first is not None
    assert eventually(lambda: first.state == WRITING)
    threading.Timer(0.05, gate.set).start()
    for one, array in reversed(list(zip(items, arrays))):
        assert one.payload is not None
        writer.protect(one.payload)
        array.fill(7)
    writer.close()
    assert writer.failure is None
    assert read(tmp_path) == {(0, f"op{n}", "output", 0): noise(n, 100_000).tobytes() for n in range(6)}


def test_several_threads_may_protect_the_same_tensor(tmp_path: Path, directory: Path, gate: threading.Event) -> None:
    writer = HostWriter(directory, metadata={})
    arrays = [noise(number, 200_000) for number in range(8)]
    items = [in_memory(f"op{number}", array) for number, array in enumerate(arrays)]
    write_step(writer, 0, *items)
    left = threading.Barrier(4)

    def overwrite() -> None:
        for one, array in zip(items[::-1], arrays[::-1]):
            assert one.payload is not None
            left.wait()
            writer.protect(one.payload)
            left.wait()
            array.fill(7)

    threads = [threading.Thread(target=overwrite) for _ in range(4)]
    for thread in threads:
        thread.start()
    threading.Timer(0.05, gate.set).start()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()
    writer.close()
    assert read(tmp_path) == {(0, f"op{n}", "output", 0): noise(n, 200_000).tobytes() for n in range(8)}


def test_the_writer_waits_for_a_copy_that_is_being_made(
    tmp_path: Path, directory: Path, gate: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    def copy_slowly(address: int, nbytes: int) -> bytes:
        writer.end_step()
        time.sleep(0.1)
        return copy_memory(address, nbytes)

    monkeypatch.setattr("ascend_dump.writing.writer.copy_memory", copy_slowly)
    writer = HostWriter(directory, metadata={})
    array = noise(0, 100_000)
    one = in_memory("op", array)
    writer.begin_step(0)
    put(writer, one)
    assert one.payload is not None
    writer.protect(one.payload)
    array.fill(7)
    gate.set()
    writer.close()
    assert read(tmp_path) == {(0, "op", "output", 0): noise(0, 100_000).tobytes()}


def test_a_failure_lets_waiting_threads_go(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened = threading.Event()

    def fail(fd: int, data: Any, position: int) -> int:
        assert opened.wait(60)
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(os, "pwrite", fail)
    writer = HostWriter(directory, metadata={}, buffer_bytes=8 << 20)
    items = [in_memory(f"op{number}", noise(number, 3 << 18)) for number in range(12)]
    payloads = [one.payload for one in items if one.payload is not None]
    writer.begin_step(0)
    filling = threading.Thread(target=lambda: [put(writer, one) for one in items])
    filling.start()
    assert eventually(lambda: payloads[0].state == WRITING)
    waiting = threading.Thread(target=lambda: writer.protect(payloads[0]))
    waiting.start()
    filling.join(0.2)
    assert filling.is_alive()
    assert waiting.is_alive()
    opened.set()
    filling.join(60)
    waiting.join(60)
    assert not filling.is_alive()
    assert not waiting.is_alive()
    writer.close()
    assert writer.failure is not None
    assert writer.failure.code == "AD501"


def test_a_copy_that_does_not_fit_waits_for_the_writer(
    tmp_path: Path, directory: Path, gate: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(address: int, nbytes: int) -> bytes:
        raise MemoryError

    monkeypatch.setattr("ascend_dump.writing.writer.copy_memory", refuse)
    writer = HostWriter(directory, metadata={})
    arrays = [noise(number, 100_000) for number in range(3)]
    items = [in_memory(f"op{number}", array) for number, array in enumerate(arrays)]
    writer.begin_step(0)
    put(writer, *items)
    threading.Timer(0.05, gate.set).start()
    for one, array in zip(items, arrays):
        assert one.payload is not None
        writer.protect(one.payload)
        array.fill(7)
    never_put = in_memory("op9", noise(9, 10)).payload
    assert never_put is not None
    with pytest.raises(MemoryError):
        writer.protect(never_put)
    writer.close()
    assert read(tmp_path) == {(0, f"op{n}", "output", 0): noise(n, 100_000).tobytes() for n in range(3)}


def test_the_buffer_is_bounded(directory: Path, gate: threading.Event) -> None:
    writer = HostWriter(directory, metadata={}, buffer_bytes=20 << 20)
    put_so_far = 0

    def train() -> None:
        nonlocal put_so_far
        for number in range(30):
            put(writer, in_memory(f"op{number}", noise(number, 1 << 20)))
            put_so_far += 1

    writer.begin_step(0)
    training = threading.Thread(target=train)
    training.start()
    training.join(0.3)
    # 20 MiB of 4 MiB tensors, and the batch that is being filled.
    assert training.is_alive()
    assert put_so_far <= 7
    gate.set()
    training.join(60)
    assert not training.is_alive()
    writer.close()
    assert (writer.failure, writer.records) == (None, 30)


def test_records_without_bytes_are_bounded_too(directory: Path, gate: threading.Event) -> None:
    writer = HostWriter(directory, metadata={}, buffer_bytes=3 << 20)
    shared = item("op", noise(0, 300_000))
    writer.begin_step(0)
    put(writer, shared)
    put_so_far = 0

    def train() -> None:
        nonlocal put_so_far
        for number in range(20_000):
            put(writer, Item(line(f"op{number}", noise(0, 4)), shared.payload))
            put_so_far += 1

    training = threading.Thread(target=train)
    training.start()
    training.join(0.5)
    assert training.is_alive()
    assert put_so_far < 3000
    gate.set()
    training.join(60)
    assert not training.is_alive()
    writer.close()
    assert writer.records == 20_001


def test_operators_that_failed_do_not_fill_the_buffer(directory: Path) -> None:
    writer = HostWriter(directory, metadata={}, buffer_bytes=1 << 20)
    writer.begin_step(0)
    for number in range(50):
        # The bytes of an operator that raised were announced with the next one's.
        writer.put([item(f"op{number}", noise(number, 10))], 10 << 20)
    writer.close()
    assert (writer.failure, writer.records) == (None, 50)


def test_everything_goes_on_when_the_writer_thread_is_dead(
    directory: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(HostWriter, "_run", lambda self: None)
    writer = HostWriter(directory, metadata={}, buffer_bytes=1000)
    array = noise(0, 100_000)
    kept = sys.getrefcount(array)
    writer.begin_step(0)
    for number in range(500):
        one = in_memory(f"op{number}", array)
        put(writer, one)
        assert one.payload is not None
        writer.protect(one.payload)
    del one
    writer.flush()
    writer.end_step()
    writer.close()
    assert sys.getrefcount(array) < kept + 300
    assert writer.failure is not None
    assert writer.failure.code == "AD501"


@pytest.mark.parametrize("error", [ValueError("a bug"), MemoryError(), SystemExit(3)])
def test_a_failure_inside_the_writer_ends_the_dump_and_nothing_else(
    tmp_path: Path,
    directory: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    error: BaseException,
) -> None:
    def fail(*_: Any) -> Any:
        raise error

    writer = HostWriter(directory, metadata={})
    write_step(writer, 0, item("good", noise(0, 10)))
    writer.flush()
    with monkeypatch.context() as patched:
        patched.setattr(xxhash, "xxh3_128_digest", fail)
        write_step(writer, 1, item("bad", noise(1, 10)))
        writer.flush()
    assert writer.failure is not None
    assert writer.failure.reported
    array = noise(2, 100)
    late = in_memory("late", array)
    write_step(writer, 2, late)
    assert late.payload is not None
    writer.protect(late.payload)
    writer.flush()
    writer.close()
    writer.close()
    put(writer, item("after the end", noise(3, 10)))
    writer.flush()
    writer.begin_step(9)
    assert read(tmp_path) == {(0, "good", "output", 0): noise(0, 10).tobytes()}
    assert len([record for record in caplog.records if record.levelno == logging.WARNING]) == 1


def test_a_log_handler_that_fails_does_not_matter(directory: Path) -> None:
    class Broken(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            raise RuntimeError("no log today")

    handler = Broken()
    logging.getLogger("ascend_dump").addHandler(handler)
    try:
        writer = HostWriter(directory, metadata={}, max_bytes=10)
        write_step(writer, 0, item("a", noise(0, 10)))
        writer.flush()
        assert writer.failure is not None
        writer.close()
    finally:
        logging.getLogger("ascend_dump").removeHandler(handler)


def test_no_thread_to_be_had(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(self: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    writer = HostWriter(directory, metadata={})
    write_step(writer, 0, item("a", noise(0, 10)))
    writer.flush()
    writer.close()
    assert isinstance(writer.failure, WriteError)
    assert "can't start new thread" in writer.failure.message


def test_without_a_step_there_is_no_thread(directory: Path) -> None:
    """Starting and ending one is most of what a block costs of which nothing is selected."""
    before = threading.enumerate()
    writer = HostWriter(directory, metadata={})
    writer.end_step()
    writer.flush()
    assert threading.enumerate() == before
    writer.close()
    writer.begin_step(0)
    assert threading.enumerate() == before
    assert writer.failure is None


def test_an_operator_that_a_finalizer_runs_meanwhile_is_written_too(tmp_path: Path, directory: Path) -> None:
    class Disturbed(list[Item]):
        """Runs an operator as its items are taken, as a finalizer does that comes in between."""

        def __iter__(self) -> Iterator[Item]:
            put(writer, item("inner", noise(1, 10)))
            return super().__iter__()

    writer = HostWriter(directory, metadata={})
    writer.begin_step(0)
    writer.put(Disturbed([item("outer", noise(0, 10)), item("outer too", noise(2, 10))]), 80)
    writer.close()
    assert writer.failure is None
    assert sorted(name for _, name, _, _ in read(tmp_path)) == ["inner", "outer", "outer too"]


def test_flush_makes_everything_so_far_readable(tmp_path: Path, directory: Path) -> None:
    writer = HostWriter(directory, metadata={})
    writer.begin_step(0)
    dumps: list[Dump] = []
    for number in range(5):
        put(writer, item(f"op{number}", noise(number, 1000)))
        writer.flush()
        dumps.append(open_dump(tmp_path))
        assert writer.records == len(dumps[-1]) == number + 1
        assert all(record.numpy().tobytes() == noise(n, 1000).tobytes() for n, record in enumerate(dumps[-1]))
    writer.close()
    # A dump that was opened before sees what came later when it is gone through again.
    assert [len(dump) for dump in dumps] == [5] * 5


def test_a_forked_child_leaves_the_dump_alone(tmp_path: Path, directory: Path) -> None:
    script = f"""
import os, sys, threading, warnings
sys.path.insert(0, {str(Path(host_dumps.__file__).parent)!r})
warnings.simplefilter("ignore", DeprecationWarning)
from pathlib import Path
from host_dumps import in_memory, item, noise, put
from ascend_dump.writing import HostWriter
writer = HostWriter(Path(sys.argv[1]), metadata={{}})
os.register_at_fork(after_in_child=writer.abandon)
writer.begin_step(0)
pending = in_memory("pending", noise(0, 1000))
put(writer, pending)
for number in range(20):
    put(writer, item(f"op{{number}}", noise(number, 1000)))
    # The locks are held by threads that the child does not have.
    holder = threading.Thread(target=lambda: (writer._change.acquire(), writer._handing_over.acquire(), ready.set(),
                                              go.wait(60), writer._handing_over.release(), writer._change.release()))
    ready, go = threading.Event(), threading.Event()
    holder.start()
    ready.wait()
    child = os.fork()
    if child == 0:
        writer.protect(pending.payload)
        for other in range(300):
            put(writer, item("child", noise(other, 2000)))
        writer.flush()
        writer.end_step()
        writer.close()
        os._exit(0 if writer.records == 0 or True else 1)
    go.set()
    holder.join()
    assert os.waitpid(child, 0)[1] == 0
writer.end_step()
writer.close()
assert writer.failure is None
"""
    subprocess.run([sys.executable, "-c", script, str(directory)], check=True, timeout=900)
    expected = {(0, f"op{number}", "output", 0): noise(number, 1000).tobytes() for number in range(20)}
    assert read(tmp_path) == {**expected, (0, "pending", "output", 0): noise(0, 1000).tobytes()}


def test_a_child_forked_by_a_thread_that_returns_ends_with_its_dump_complete(tmp_path: Path, directory: Path) -> None:
    """Python ends such a process with its last thread, and calls none of its exit functions."""
    script = f"""
import os, sys, threading, warnings
sys.path.insert(0, {str(Path(host_dumps.__file__).parent)!r})
warnings.simplefilter("ignore", DeprecationWarning)
from pathlib import Path
from host_dumps import item, noise, put
from ascend_dump.writing import HostWriter

def fork():
    global child
    child = os.fork()
    if child == 0:
        writer = HostWriter(Path(sys.argv[1]), metadata={{}})
        writer.begin_step(0)
        for number in range(20):
            put(writer, item(f"op{{number}}", noise(number, 1000)))

thread = threading.Thread(target=fork)
thread.start()
thread.join()
print(os.waitpid(child, 0)[1])
"""
    done = subprocess.run(
        [sys.executable, "-c", script, str(directory)], check=True, timeout=900, capture_output=True, text=True
    )
    assert (done.stdout, done.stderr) == ("0\n", "")
    assert read(tmp_path) == {(0, f"op{number}", "output", 0): noise(number, 1000).tobytes() for number in range(20)}


@pytest.mark.parametrize("seed", range(8))
def test_any_interleaving_keeps_every_content(tmp_path: Path, directory: Path, seed: int) -> None:
    """Threads put tensors, overwrite them after protecting them, flush and enter steps, in any order."""
    rng = random.Random(seed)
    buffer = rng.choice([0, 50_000, 1 << 20])
    writer = HostWriter(directory, metadata={}, buffer_bytes=buffer, limits=Limits(room=9000, nbytes=1 << 20))
    expected: dict[tuple[Any, ...], bytes] = {}
    writer.begin_step(0)

    def train(worker: int) -> None:
        own = random.Random(f"{seed} {worker}")
        live: list[tuple[np.ndarray, Any]] = []
        for number in range(120):
            name = f"worker{worker}/op{number}"
            if live and own.random() < 0.5:
                array, payload = live.pop(own.randrange(len(live)))
                writer.protect(payload)
                array[:] = own.random()
            array = noise(own.randrange(40), own.choice([1, 30, 4000, 90_000]))
            made = (in_memory if own.random() < 0.8 else item)(name, array)
            expected[0, name, "output", 0] = array.tobytes()
            put(writer, made)
            if own.random() < 0.8:
                live.append((array, made.payload))
            if own.random() < 0.05:
                writer.flush()
        for array, payload in live:
            writer.protect(payload)
            array.fill(-1)

    workers = [threading.Thread(target=train, args=(number,)) for number in range(3)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(60)
        assert not worker.is_alive()
    writer.end_step()
    writer.close()
    assert writer.failure is None
    assert writer.records == 360
    assert read(tmp_path) == expected
    assert all(open_shards(tmp_path).values())


def test_memory_is_copied_whatever_its_size() -> None:
    data = content(0, 100_000)
    array = np.frombuffer(data, "u1")
    assert copy_memory(array.ctypes.data, array.size) == data
    assert copy_memory(array.ctypes.data, 0) == b""
