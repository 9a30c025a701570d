"""The files of the host writer."""

from __future__ import annotations

import csv
import io
import json
import os
import stat
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xxhash
from host_dumps import (
    content,
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
from ascend_dump import WriteError
from ascend_dump.adapter import Rank, RunDirectory
from ascend_dump.reading import open_dump
from ascend_dump.writing import HostRun, HostWriter, Item, Limits, Line, Payload, step_files, summary

STATS = ("max", "min", "mean", "l2norm", "nan", "posinf", "neginf", "zero", "poszero", "negzero")


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return model_directory(tmp_path)


@pytest.mark.parametrize("seconds", [253_402_300_800, 2**62])
def test_a_clock_beyond_the_calendar_is_told_and_its_records_are_read(
    tmp_path: Path, directory: Path, seconds: int, caplog: pytest.LogCaptureFixture
) -> None:
    step_files._warn_of_clock.cache_clear()
    writer = HostWriter(directory, metadata={}, stats=("max",))
    write_step(
        writer,
        0,
        item("a", np.ones(3, np.float32), time=seconds * (10**6 if seconds < 2**60 else 1)),
        item("b", np.zeros(3, np.float32)),
    )
    writer.close()
    assert writer.failure is None
    a, b = open_dump(tmp_path)
    assert (a.error, a.op_name, b.op_name) == (None, "a", "b")
    assert str(a.timestamp).startswith("2534023007")
    assert "beyond the year 9999" in caplog.text


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
        run = HostRun(RunDirectory.planned(tmp_path / "dumps" / "deep", Rank(0, 1)).make(), request={}, versions={})
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
    run = HostRun(RunDirectory.planned(tmp_path / "run", Rank(0, 1)).make(), request={"path": undecodable}, versions={})
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
    # Fewer if the collector of garbage has closed files of an earlier test.
    assert len(os.listdir("/proc/self/fd")) <= before


def test_steps_without_a_record_leave_nothing(tmp_path: Path) -> None:
    run = HostRun(RunDirectory.planned(tmp_path, Rank(0, 1)).make(), request={}, versions={})
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
    roots = {HostRun(RunDirectory.planned(tmp_path, Rank(0, 1)).make(), request={}, versions={}).root for _ in range(5)}
    assert len(roots) == 5
    assert all((root / "manifest.json").is_file() for root in roots)


_RACE = """
import sys
from pathlib import Path
from ascend_dump.adapter import RunDirectory
from ascend_dump.adapter import Rank
from ascend_dump.writing import HostWriter, Item, Line, Payload, HostRun

print("ready", flush=True)
sys.stdin.readline()
for number in range(20):
    run = HostRun(RunDirectory.planned(Path(sys.argv[1]), Rank(0, 1)).make(), request={"who": sys.argv[2]}, versions={})
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
        racer.communicate("go\n", timeout=900)
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
    run = HostRun(RunDirectory.planned(tmp_path, Rank(1, 4)).make(), request={"steps": "0"}, versions={"torch": "9"})
    path = run.root / "manifest.json"
    first = json.loads(path.read_bytes())
    assert (first["state"], first["rank"], first["world_size"], first["pid"]) == ("running", 1, 4, os.getpid())
    torn = []
    replace = os.replace

    def look(a: str, b: str, **where: int) -> None:
        torn.append(json.loads(path.read_bytes()))
        replace(a, b, **where)

    monkeypatch.setattr(os, "replace", look)
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
        HostRun(RunDirectory.planned(tmp_path / "file", Rank(0, 1)).make(), request={}, versions={})
    run = HostRun(RunDirectory.planned(tmp_path, Rank(0, 1)).make(), request={}, versions={})
    run.directory(0, "m")

    def refuse(path: str, mode: int, **where: object) -> None:
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
    for step in range(200):
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


def test_the_table_names_operators_of_one_number(tmp_path: Path, directory: Path) -> None:
    """Several runs of a program may number their operators from 0 in one step."""
    writer = HostWriter(directory, metadata={}, tensors=False, stats=STATS)
    names = ["a", "b", "b", "a"]
    write_step(writer, 0, *(item(name, noise(0, 10), seq=0, phase=f"phase{at}") for at, name in enumerate(names)))
    writer.close()
    (table,) = tmp_path.rglob("statistic.csv")
    rows = [row.split(",")[1:3] for row in table.read_text().splitlines()[1:]]
    assert rows == [[name, f"phase{at}"] for at, name in enumerate(names)]


def test_lines_of_what_was_stored_survive_what_cannot_be_written(tmp_path: Path, directory: Path) -> None:
    """A tensor finds no room, and nothing else goes wrong."""
    writer = HostWriter(directory, metadata={}, max_bytes=3000)
    writer.begin_step(0)
    for number in range(3):
        put(writer, item(f"{number}", noise(number, 100)))
        put(writer, item(f"again{number}", noise(number, 100)))
    put(writer, item("large", noise(9, 5000)))
    writer.flush()
    assert writer.failure is not None
    assert writer.failure.code == "AD503"
    assert len(lines_of(tmp_path)) == 6, "at once: the program may be killed before it ends"
    writer.close()
    assert len(lines_of(tmp_path)) == 6


@pytest.mark.parametrize("tensors", [True, False])
def test_statistics_that_fail_are_marked_and_the_run_goes_on(
    tmp_path: Path, directory: Path, monkeypatch: pytest.MonkeyPatch, tensors: bool
) -> None:
    summarize = summary.summarize

    def fail_once(data: Any, dtype: str, strided: Any, *optional: Any) -> Any:
        if len(data) == 40:
            raise TypeError("data type not understood")
        return summarize(data, dtype, strided, *optional)

    monkeypatch.setattr(summary, "summarize", fail_once)
    writer = HostWriter(directory, metadata={}, tensors=tensors, stats=STATS)
    write_step(writer, 0, item("bad", noise(0, 10)), item("good", noise(0, 20)))
    writer.close()
    assert writer.failure is None
    assert writer.skipped == {"no statistics for float32: TypeError('data type not understood')": 1}
    bad, good = open_dump(tmp_path)
    assert good.statistics().count == 20
    with pytest.raises(ascend_dump.NotSupported, match=r"bad\.output\.0 has no statistics: .*not understood"):
        bad.statistics()


def test_windows_on_types_that_numpy_has_no_name_for(tmp_path: Path, directory: Path) -> None:
    import ml_dtypes

    data = np.ones(60_000, ml_dtypes.float8_e5m2)
    writer = HostWriter(directory, metadata={}, tensors=False, stats=STATS)
    shape = (59_701, 300)
    windows = Line(0, "t", "unfold", "output", 0, 1, "float8_e5m2", shape, 59_701 * 300, stride=(1, 1))
    payload = Payload(data.tobytes(), 0, 60_000, "float8_e5m2", (60_000,), strided=(shape, (1, 1)))
    write_step(writer, 0, Item(windows, payload), item("after", noise(0, 20)))
    writer.close()
    assert writer.failure is None
    first, after = open_dump(tmp_path)
    assert (first.statistics().count, first.statistics().max, after.statistics().count) == (59_701 * 300, 1.0, 20)
