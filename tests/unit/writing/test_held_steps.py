"""`keep` without tensors: the steps stay in memory, and those that may be read are written in time."""

from __future__ import annotations

import contextlib
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from host_dumps import item, lines_of, model_directory, noise, put, write_step

from ascend_dump.reading import open_dump
from ascend_dump.writing import HostWriter, held_steps


def on_disk(directory: Path) -> list[int]:
    return sorted(int(path.parent.name) for path in directory.rglob("index.jsonl*") if path.stat().st_size)


def whole_on_disk(directory: Path, records: int) -> int:
    """Count the steps on disk with all of their records, while another process writes and removes them."""
    count = 0
    for path in directory.rglob("index.jsonl*"):
        with contextlib.suppress(FileNotFoundError):
            count += path.read_bytes().count(b"\n") == records
    return count


def of_statistics(directory: Path, **settings: Any) -> HostWriter:
    return HostWriter(directory, metadata={}, tensors=False, stats=("max", "mean"), **settings)


def settle(writer: HostWriter) -> None:
    """Wait until the writer has taken what is queued, without asking it to write."""
    while writer._backlog._queued_items != writer._backlog._saved_items:
        time.sleep(0.005)


def test_steps_that_nobody_reads_are_not_written(tmp_path: Path) -> None:
    directory = model_directory(tmp_path)
    writer = of_statistics(directory, keep=2)
    for step in range(9):
        write_step(writer, step, item("a", noise(step, 10)))
        settle(writer)
        assert on_disk(directory) == [0], "the first one, as a trial"
    assert writer.records == 9
    writer.close()
    assert on_disk(directory) == [7, 8]
    assert writer.kept()["removed"] == {"steps": 7, "records": 7, "first": 0, "last": 6}
    assert writer.tally()[:3] == (2, 2, 2)


def test_what_is_held_is_written_every_few_seconds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(held_steps, "EVERY", 0.0)
    directory = model_directory(tmp_path)
    writer = of_statistics(directory, keep=2)
    for step in range(9):
        write_step(writer, step, item("a", noise(step, 10)), item("b", noise(step, 11)))
        settle(writer)
        assert on_disk(directory) == list(range(max(0, step - 2), step + 1))
    writer.close()
    assert on_disk(directory) == [7, 8]
    assert writer.kept()["removed"] == {"steps": 7, "records": 14, "first": 0, "last": 6}


def test_no_more_is_held_than_a_bound(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(held_steps, "_MOST_RECORDS", 5)
    directory = model_directory(tmp_path)
    writer = of_statistics(directory, keep=9)
    for step in range(4):
        writer.begin_step(step)
        for number in range(3):
            put(writer, item(f"op{number}", noise(step, 10)))
            writer._send()
        writer.end_step()
    settle(writer)
    assert on_disk(directory) == [0, 1, 2]
    writer.close()
    assert [line["op_name"] for line in lines_of(directory)] == ["op0", "op1", "op2"] * 4


def test_an_idle_program_leaves_all(tmp_path: Path) -> None:
    directory = model_directory(tmp_path)
    writer = of_statistics(directory, keep=2)
    for step in range(4):
        write_step(writer, step, item("a", noise(step, 10)))
    writer.begin_step(4)
    put(writer, item("a", noise(4, 10)))
    end = time.monotonic() + 600
    while on_disk(directory) != [2, 3, 4] and time.monotonic() < end:
        time.sleep(0.05)
    # The rest of a step of which a part is written follows it there.
    put(writer, item("b", noise(4, 11)))
    writer.end_step()
    writer.close()
    assert [(line["op_name"], line["stats"][0]) for line in lines_of(directory, 4)] == [("a", 10), ("b", 11)]
    assert on_disk(directory) == [3, 4]


@pytest.mark.parametrize("seed", range(3))
def test_in_files_as_if_each_record_were_written_at_once(
    tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Random steps, some empty or recorded twice, with NaN here and there, asked for now and then."""
    draw = random.Random(seed)
    program: list[tuple[int, list[tuple[str, int]], bool]] = []
    number = 0
    for _ in range(30):
        number += draw.choice((0, 1, 1, 1, 3))
        tensors = [(f"op{k}", draw.choice((-1, number, 7))) for k in range(draw.choice((0, 1, 4)))]
        program.append((number, tensors, draw.random() < 0.1))

    def run(root: Path, most: int) -> tuple[Any, ...]:
        monkeypatch.setattr(held_steps, "_MOST_RECORDS", most)
        writer = of_statistics(model_directory(root), keep=3)
        for step, tensors, asked in program:
            writer.begin_step(step)
            for name, kind in tensors:
                array = noise(kind, 100) if kind >= 0 else np.full(9, np.nan, np.float32)
                put(writer, item(name, array))
            if asked:
                writer.flush()
            writer.end_step()
        writer.close()
        return lines_of(root), writer.kept()["removed"]["records"], writer.tally()[::2], writer.records

    held, at_once = run(tmp_path / "held", 10**6), run(tmp_path / "at_once", -1)
    assert held == at_once
    assert held[0]


@pytest.mark.parametrize("ends", ["nonfinite", "program"])
def test_an_end_leaves_the_steps_before_it(tmp_path: Path, ends: str) -> None:
    directory = model_directory(tmp_path)
    writer = of_statistics(directory, keep=2, until="nonfinite" if ends == "nonfinite" else None)
    for step in range(9):
        writer.begin_step(step)
        array = noise(step, 10)
        if step == 5 and ends == "nonfinite":
            array[3] = np.nan
        put(writer, item("a", array))
        if step == 5 and ends == "program":
            writer.end("enough")
        put(writer, item("b", noise(step, 10)))
        writer.end_step()
    settle(writer)
    # A program that is killed at its first NaN has what it was recorded for.
    assert on_disk(directory) == [3, 4, 5]
    writer.close()
    assert on_disk(directory) == [3, 4, 5]
    assert [line["op_name"] for line in lines_of(directory, 5)] == ["a", "b"]
    assert writer.ended is not None
    assert writer.ended.step == 5


_PROGRAM = """
import sys
from pathlib import Path
import numpy as np
from ascend_dump.writing import HostWriter, Item, Line, Payload, held_steps
held_steps.EVERY = 0.3
writer = HostWriter(Path(sys.argv[1]), metadata={}, tensors=False, stats=("max",), keep=3)
for step in range(10**7):
    writer.begin_step(step)
    for number in range(10):
        data = np.float32([step, number]).tobytes()
        line = Line(number, "t", f"op{number}", "output", 0, 1, "float32", (2,), 8, stride=(1,))
        writer.put([Item(line, Payload(data, 0, 8, "float32", (2,)))], 8)
    writer.end_step()
"""


def test_a_killed_program_leaves_whole_steps(tmp_path: Path) -> None:
    directory = model_directory(tmp_path)
    with subprocess.Popen([sys.executable, "-c", _PROGRAM, str(directory)]) as process:
        try:
            end = time.monotonic() + 600
            while whole_on_disk(directory, 10) < 3 and time.monotonic() < end:
                time.sleep(0.01)
            time.sleep(0.1)
        finally:
            process.send_signal(signal.SIGKILL)
    counts: dict[int, int] = {}
    for record in open_dump(tmp_path):
        assert record.error is None
        assert record.step is not None
        counts[record.step] = counts.get(record.step, 0) + 1
    assert sum(count == 10 for count in counts.values()) >= 3
