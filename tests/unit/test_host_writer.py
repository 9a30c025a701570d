"""What the host writer leaves on disk, and how it deals with the program it runs beside."""

from __future__ import annotations

import csv
import io
import json
import logging
import os
import random
import stat
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
    lines_of,
    model_directory,
    noise,
    open_shards,
    put,
    read,
    write_step,
)

import ascend_dump
from ascend_dump import Dump, WriteError
from ascend_dump._paths import RunDirectory
from ascend_dump._rank import Rank
from ascend_dump.reading import open_dump
from ascend_dump.writing import HostWriter, Item, Limits, Payload, Run, copy_memory
from ascend_dump.writing.payload import WRITING

STATS = ("max", "min", "mean", "l2norm", "nan", "posinf", "neginf", "zero", "poszero", "negzero")


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return model_directory(tmp_path)


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """The writer waits before each shard write until this is set."""
    opened = threading.Event()
    pwrite = os.pwrite

    def wait(fd: int, data: Any, position: int) -> int:
        assert opened.wait(20)
        return pwrite(fd, data, position)

    monkeypatch.setattr(os, "pwrite", wait)
    yield opened
    opened.set()


def eventually(test: Callable[[], bool]) -> bool:
    end = time.monotonic() + 20
    while not test() and time.monotonic() < end:
        time.sleep(0.002)
    return test()


# What is on disk


def test_each_distinct_tensor_is_written_once_per_run(tmp_path: Path, directory: Path) -> None:
    weight, other = noise(1, 100), noise(2, 100)
    writer = HostWriter(directory, metadata={"producer": "test"})
    for step in range(3):
        activation = noise(10 + step, 50)
        write_step(
            writer,
            step,
            item("a", weight, io="input", index=0),
            item("a", activation),
            item("b", weight.reshape(10, 10).copy(), io="input", index=1),
            item("b", other),
        )
    writer.close()
    assert (writer.failure, writer.records) == (None, 12)
    distinct = 2 * 400 + 3 * 200
    assert writer.bytes_written == distinct == sum(len(d) for s in open_shards(tmp_path).values() for d in s.values())
    assert writer.logical_bytes == 3 * (3 * 400 + 200)
    lines = lines_of(tmp_path)
    assert {one["shard"] for one in lines if one["shape"] == [100]} == {"0/tensors-00000.safetensors"}
    assert [one["hash"] for one in lines[:2]] == [
        xxhash.xxh3_128_hexdigest(weight.tobytes()),
        xxhash.xxh3_128_hexdigest(noise(10, 50).tobytes()),
    ]
    found = read(tmp_path)
    assert found[2, "b", "input", 1] == weight.tobytes()
    assert found[1, "a", "output", 0] == noise(11, 50).tobytes()
    assert sorted(path.name for path in (directory / "1").iterdir()) == ["index.jsonl", "tensors-00000.safetensors"]


def test_equal_bytes_of_different_types_are_stored_once_and_measured_apart(tmp_path: Path, directory: Path) -> None:
    data = np.array([1.0, -2.0, 0.0], dtype=np.float32)
    views = [data, data.view(np.int32), data.view(np.uint8), data.reshape(3, 1)]
    writer = HostWriter(directory, metadata={}, stats=STATS)
    write_step(writer, 0, *(item(f"op{n}", view) for n, view in enumerate(views)))
    writer.close()
    assert writer.bytes_written == 12
    maxima = [record.statistics().max for record in open_dump(tmp_path)]
    assert maxima == [1.0, 0x3F800000, 192, 1.0]
    assert [record.statistics().count for record in open_dump(tmp_path)] == [3, 3, 12, 3]


def test_views_of_the_same_bytes_are_measured_apart(tmp_path: Path, directory: Path) -> None:
    base = np.arange(12, dtype=np.float32)
    writer = HostWriter(directory, metadata={}, stats=("max", "mean"))
    items = []
    for shape, strides in (((12,), (4,)), ((3, 2), (4, 20)), ((5,), (0,)), ((4, 4), (8, 0))):
        view = np.ndarray(shape, np.float32, base, 0, strides)
        payload = Payload(base.tobytes(), 0, base.nbytes, "float32", (12,), (shape, strides))
        items.append(Item(line(f"{shape}", view), payload))
    write_step(writer, 0, *items)
    writer.close()
    assert writer.bytes_written == base.nbytes
    for record in open_dump(tmp_path):
        found = record.statistics()
        array = record.numpy()
        assert (found.count, found.max, found.mean) == (array.size, array.max(), array.mean())
        assert found.l2norm is None


def test_statistics_of_a_huge_view_take_no_longer_than_its_memory(tmp_path: Path, directory: Path) -> None:
    row = np.array([3.0, -4.0], dtype=np.float32)
    view = np.broadcast_to(row, (10**6, 10**6, 2))
    payload = Payload(row.tobytes(), 0, row.nbytes, "float32", (2,), (view.shape, view.strides))
    writer = HostWriter(directory, metadata={}, stats=STATS)
    write_step(writer, 0, Item(line("expanded", view), payload))
    writer.close()
    [record] = open_dump(tmp_path)
    found = record.statistics()
    assert (found.count, found.max, found.min, found.mean) == (2 * 10**12, 3.0, -4.0, -0.5)
    assert found.l2norm == 5e6
    assert record.numpy().shape == view.shape


def test_the_table_of_statistics(tmp_path: Path, directory: Path) -> None:
    array = np.array([[1.0, np.nan], [-np.inf, 0.0]], dtype=np.float32)
    writer = HostWriter(directory, metadata={}, tensors=False, stats=("max", "mean", "nan"))
    write_step(writer, 3, item('odd,"name"\n', array, index=7, phase="forward"), item("nothing", array[:0]))
    writer.close()
    assert sorted(path.name for path in (directory / "3").iterdir()) == ["index.jsonl", "statistic.csv"]
    text = (directory / "3" / "statistic.csv").read_bytes().decode()
    rows = list(csv.DictReader(io.StringIO(text, newline="")))
    assert rows[0]["Op Name"] == 'odd,"name"\n'
    assert [rows[0][name] for name in ("IO", "Slot", "Phase", "Shape", "Count")] == [
        "output",
        "7",
        "forward",
        "(2,2)",
        "4",
    ]
    assert [rows[0][name] for name in ("Max Value", "Min Value", "Avg Value", "Nan Count", "Zero Count")] == [
        "1.0",
        "",
        "nan",
        "1",
        "",
    ]
    [record, empty] = open_dump(tmp_path)
    assert record.statistics().max == 1.0
    assert np.isnan(record.statistics().mean or 0)
    assert record.statistics().min is None
    with pytest.raises(ascend_dump.NotSupported, match="statistics only"):
        record.numpy()
    assert empty.statistics().count == 0


def test_a_line_comes_after_the_bytes_it_points_at(
    tmp_path: Path, directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = 0
    write = os.write

    def check(fd: int, data: Any) -> int:
        nonlocal seen
        if os.readlink(f"/proc/self/fd/{fd}").endswith("index.jsonl"):
            for text in bytes(data).splitlines():
                one = json.loads(text)
                begin, nbytes = one["blob"]
                stored = (directory / one["shard"]).read_bytes()[begin : begin + nbytes]
                assert xxhash.xxh3_128_hexdigest(stored) == one["hash"]
                seen += 1
        return write(fd, data)

    monkeypatch.setattr(os, "write", check)
    writer = HostWriter(directory, metadata={}, limits=Limits(room=9000))
    for step in range(2):
        writer.begin_step(step)
        for number in range(400):
            put(writer, item(f"op{number}", noise(step * 100 + number % 170, 10 if number % 50 else 70_000)))
        writer.end_step()
    writer.close()
    assert (writer.failure, seen) == (None, 800)


@pytest.mark.parametrize("mask", [0o000, 0o022, 0o277, 0o777])
def test_private_under_any_umask(tmp_path: Path, mask: int) -> None:
    before = os.umask(mask)
    try:
        run = Run(RunDirectory.planned(tmp_path / "dumps" / "deep", Rank(0, 1)).make(), request={}, versions={})
        writer = HostWriter(run.directory(0, "Model"), metadata={}, stats=("max",))
        write_step(writer, 0, item("a", noise(0, 10)))
        writer.close()
        run.write_manifest(state="complete")
    finally:
        os.umask(before)
    assert writer.failure is None
    for path in (tmp_path / "dumps").rglob("*"):
        assert stat.S_IMODE(path.stat().st_mode) == (0o700 if path.is_dir() else 0o600), path
    assert sum(1 for path in tmp_path.rglob("*") if path.is_file()) == 4


def test_what_has_no_bytes_is_listed_with_its_reason(tmp_path: Path, directory: Path) -> None:
    writer = HostWriter(directory, metadata={}, stats=("max",))
    skipped = line("sparse", noise(0, 4), skipped="sparse_coo layout")
    packed = np.frombuffer(content(0, 6), "u1")
    write_step(
        writer,
        0,
        Item(skipped, None),
        Item(line("again", noise(0, 4), skipped="sparse_coo layout"), None),
        Item(line("packed", packed, dtype="quint4x2"), Payload(packed.tobytes(), 0, 6, "quint4x2", (6,))),
        Item(line("future", packed, dtype="float3_new"), Payload(packed.tobytes(), 0, 6, "float3_new", (6,))),
    )
    writer.close()
    assert writer.failure is None
    assert writer.skipped == {
        "sparse_coo layout": 2,
        "no statistics for quint4x2": 1,
        "no statistics for float3_new": 1,
    }
    assert writer.first_skipped["sparse_coo layout"] == "sparse.output.0"
    sparse, _, packed_record, future = open_dump(tmp_path)
    assert sparse.attrs["skipped"] == "sparse_coo layout"
    with pytest.raises(ascend_dump.NotSupported):
        sparse.numpy()
    assert packed_record.numpy().tobytes() == packed.tobytes()
    with pytest.raises(ascend_dump.NotSupported, match="float3_new"):
        future.numpy()


def test_names_that_json_cannot_hold(tmp_path: Path, directory: Path) -> None:
    writer = HostWriter(directory, metadata={}, stats=("max",))
    undecodable = os.fsdecode(b"/home/caf\xe9/train.py:3")
    write_step(writer, 0, item("good", noise(0, 3)), item("bad\udce9", noise(1, 3), source=undecodable))
    writer.close()
    assert writer.failure is None
    assert [record.op_name for record in open_dump(tmp_path)] == ["good", "bad\\udce9"]
    assert [record.source for record in open_dump(tmp_path)] == [None, "/home/caf\\udce9/train.py:3"]
    run = Run(RunDirectory.planned(tmp_path / "run", Rank(0, 1)).make(), request={"path": undecodable}, versions={})
    assert json.loads((run.root / "manifest.json").read_bytes())["request"] == {"path": "/home/caf\\udce9/train.py:3"}
    assert run.directory(0, f"model {undecodable}\0" + "ä" * 300).is_dir()


# Steps


def test_a_step_that_is_entered_again_goes_on(tmp_path: Path, directory: Path) -> None:
    writer = HostWriter(directory, metadata={}, stats=("max",))
    for visit in range(3):
        write_step(writer, 0, item(f"visit{visit}", noise(visit, 10)))
        write_step(writer, 1, item(f"visit{visit}", noise(visit, 10)))
    writer.close()
    assert (writer.failure, writer.records) == (None, 6)
    expected = {(step, f"visit{n}", "output", 0): noise(n, 10).tobytes() for step in (0, 1) for n in range(3)}
    assert read(tmp_path) == expected
    assert len(open_shards(tmp_path)) == 3
    assert len((directory / "0" / "statistic.csv").read_text().splitlines()) == 4


def test_a_shard_deleted_meanwhile_does_not_come_back_with_another_content(tmp_path: Path, directory: Path) -> None:
    writer = HostWriter(directory, metadata={})
    write_step(writer, 0, item("first", noise(0, 10)))
    writer.flush()
    (directory / "0" / "tensors-00000.safetensors").unlink()
    write_step(writer, 0, item("second", noise(1, 10)))
    writer.close()
    first, second = open_dump(tmp_path)
    with pytest.raises(ascend_dump.CorruptDump, match=r"tensors-00000\.safetensors: the shard is missing"):
        first.numpy()
    assert second.numpy().tobytes() == noise(1, 10).tobytes()


def test_thousands_of_steps(tmp_path: Path, directory: Path) -> None:
    before = len(os.listdir("/proc/self/fd"))
    writer = HostWriter(directory, metadata={}, limits=Limits(room=9000))
    shared = noise(0, 100)
    for step in range(2000):
        write_step(writer, step, item("w", shared), *([item("x", noise(step + 1, 4))] if step % 100 == 0 else []))
    writer.close()
    assert (writer.failure, writer.records) == (None, 2020)
    found = read(tmp_path)
    assert len(found) == 2020
    assert set(found.values()) == {shared.tobytes(), *(noise(step + 1, 4).tobytes() for step in range(0, 2000, 100))}
    assert len(open_shards(tmp_path)) == 20
    assert len(os.listdir("/proc/self/fd")) == before


def test_steps_without_a_record_leave_nothing(tmp_path: Path) -> None:
    run = Run(RunDirectory.planned(tmp_path, Rank(0, 1)).make(), request={}, versions={})
    directory = run.directory(0, "m")
    writer = HostWriter(directory, metadata={})
    writer.begin_step(0)
    writer.end_step()
    put(writer, item("outside any step", noise(0, 4)))
    writer.close()
    run.write_manifest(state="complete", records=writer.records)
    assert (writer.records, list(directory.iterdir())) == (0, [])
    assert list(open_dump(tmp_path)) == []


# Runs


def test_runs_that_begin_in_the_same_second_do_not_mix(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "time", lambda: 1_700_000_000.0)
    roots = {Run(RunDirectory.planned(tmp_path, Rank(0, 1)).make(), request={}, versions={}).root for _ in range(5)}
    assert len(roots) == 5
    assert all((root / "manifest.json").is_file() for root in roots)


_RACE = """
import sys
from pathlib import Path
from ascend_dump._paths import RunDirectory
from ascend_dump._rank import Rank
from ascend_dump.writing import HostWriter, Item, Line, Payload, Run

print("ready", flush=True)
sys.stdin.readline()
for number in range(20):
    run = Run(RunDirectory.planned(Path(sys.argv[1]), Rank(0, 1)).make(), request={"who": sys.argv[2]}, versions={})
    writer = HostWriter(run.directory(0, "m"), metadata={})
    writer.begin_step(0)
    data = f"{sys.argv[2]} {number}".encode().ljust(16)
    line = Line(0, "t", sys.argv[2], "output", 0, 1, "uint8", (16,), 16)
    writer.put([Item(line, Payload(data, 0, 16, "uint8", (16,)))], 16)
    writer.close()
    run.write_manifest(state="complete")
"""


def test_processes_that_begin_in_the_same_second_do_not_mix(tmp_path: Path) -> None:
    racers = [
        subprocess.Popen(
            [sys.executable, "-c", _RACE, str(tmp_path / "dumps"), name],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for name in "abc"
    ]
    for racer in racers:
        assert racer.stdout is not None
        assert racer.stdout.readline() == "ready\n"
    for racer in racers:
        racer.communicate("go\n", timeout=60)
        assert racer.returncode == 0
    found = {(record.run, record.op_name, bytes(record.numpy())) for record in open_dump(tmp_path)}
    assert len(found) == 60
    assert len({run for run, _, _ in found}) == 60
    for run, name, data in found:
        manifest = json.loads(
            (tmp_path / "dumps" / "worldsize1_global_rank0" / str(run) / "manifest.json").read_bytes()
        )
        assert manifest["request"] == {"who": name}
        assert data.decode().split()[0] == name


def test_the_manifest_is_replaced_as_a_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = Run(RunDirectory.planned(tmp_path, Rank(1, 4)).make(), request={"steps": "0"}, versions={"torch": "9"})
    path = run.root / "manifest.json"
    first = json.loads(path.read_bytes())
    assert (first["state"], first["rank"], first["world_size"], first["pid"]) == ("running", 1, 4, os.getpid())
    torn = []
    replace = os.replace
    monkeypatch.setattr(os, "replace", lambda a, b: (torn.append(json.loads(path.read_bytes())), replace(a, b)))
    run.write_manifest(state="complete", records=3)
    assert torn == [first]
    assert json.loads(path.read_bytes()) == {**first, "state": "complete", "records": 3}
    assert [one.name for one in run.root.iterdir()] == ["manifest.json"]

    def full(fd: int, mode: str) -> Any:
        os.close(fd)
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fdopen", full)
    with pytest.raises(WriteError, match="full") as caught:
        run.write_manifest(state="incomplete")
    assert caught.value.code == "AD502"
    assert json.loads(path.read_bytes())["state"] == "complete"
    assert [one.name for one in run.root.iterdir()] == ["manifest.json"]


def test_a_run_or_model_that_cannot_be_created_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(WriteError):
        Run(RunDirectory.planned(tmp_path / "file", Rank(0, 1)).make(), request={}, versions={})
    run = Run(RunDirectory.planned(tmp_path, Rank(0, 1)).make(), request={}, versions={})
    run.directory(0, "m")

    def refuse(path: Path, mode: int) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(os, "mkdir", refuse)
    with pytest.raises(WriteError, match="Permission denied"):
        run.directory(0, "m")


# The limit


def test_max_bytes_counts_distinct_tensors_exactly(
    tmp_path: Path, directory: Path, caplog: pytest.LogCaptureFixture
) -> None:
    writer = HostWriter(directory, metadata={}, max_bytes=1000)
    write_step(writer, 0, item("a", noise(0, 150)), item("same", noise(0, 150)), item("b", noise(1, 100)))
    writer.flush()
    assert (writer.failure, writer.bytes_written) == (None, 1000)
    write_step(writer, 1, item("again", noise(0, 150)), item("one more", noise(2, 1)), item("late", noise(0, 150)))
    writer.flush()
    assert writer.failure is not None
    assert writer.failure.code == "AD503"
    write_step(writer, 2, item("later", noise(0, 150)))
    writer.close()
    assert [record.op_name for record in open_dump(tmp_path)] == ["a", "same", "b", "again"]
    assert (writer.records, writer.bytes_written) == (4, 1000)
    assert [record.message for record in caplog.records if "AD503" in record.message] == [str(writer.failure)]
    assert all(open_shards(tmp_path).values())


def test_max_bytes_limits_what_many_short_steps_have_besides_their_tensors(tmp_path: Path, directory: Path) -> None:
    writer = HostWriter(directory, metadata={}, max_bytes=1_000_000)
    for step in range(100):
        write_step(writer, step, item("op", noise(step, 2)))
    writer.close()
    assert writer.failure is not None
    assert writer.failure.code == "AD503"
    written = sum(path.stat().st_size for path in directory.rglob("*") if path.is_file())
    assert 1_000_000 < written < 3_000_000
    assert len(list(open_dump(tmp_path))) == writer.records


def test_max_bytes_limits_statistics_too(tmp_path: Path, directory: Path) -> None:
    writer = HostWriter(directory, metadata={}, tensors=False, stats=("max",), max_bytes=100_000)
    writer.begin_step(0)
    for number in range(5000):
        put(writer, item(f"op{number}", noise(number, 2)))
        if writer.failure:
            break
    writer.close()
    assert writer.failure is not None
    assert writer.failure.code == "AD503"
    written = sum(path.stat().st_size for path in directory.rglob("*") if path.is_file())
    assert 80_000 < written < 250_000
    assert len(list(open_dump(tmp_path))) == writer.records


# Beside the training


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
        thread.join(30)
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
        assert opened.wait(20)
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
    filling.join(20)
    waiting.join(20)
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
    training.join(30)
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
    with pytest.raises(WriteError, match="can't start new thread"):
        HostWriter(directory, metadata={})


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
                                              go.wait(20), writer._handing_over.release(), writer._change.release()))
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
    subprocess.run([sys.executable, "-c", script, str(directory)], check=True, timeout=60)
    expected = {(0, f"op{number}", "output", 0): noise(number, 1000).tobytes() for number in range(20)}
    assert read(tmp_path) == {**expected, (0, "pending", "output", 0): noise(0, 1000).tobytes()}


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
