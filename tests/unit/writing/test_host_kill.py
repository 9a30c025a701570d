"""A process killed at any moment leaves every record that it completed."""

from __future__ import annotations

import gzip
import os
import random
import signal
import subprocess
import sys
import time
from array import array
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from host_dumps import content, model_directory

from ascend_dump.reading import open_dump

#: Starts a child that writes until it is killed, for each line on standard input. Imports cost only once.
_NURSERY = """
import hashlib, os, sys
from pathlib import Path
from ascend_dump.writing import HostWriter, Item, Limits, Line, Payload, step_files

def content(seed, nbytes):
    return hashlib.shake_128(repr(seed).encode()).digest(nbytes)

def write(directory, keep, count, worth):
    step_files.WORTH_COMPRESSING = worth
    writer = HostWriter(directory, metadata={}, limits=Limits(room=16376, nbytes=1 << 20), keep=keep)
    for step in range(10**6):
        writer.begin_step(step)
        for number in range(count):
            size = (7, 40, 3000, 1, 300_000)[4 if number % 29 == 0 else number % 4]
            # Every third is that of step 0, which later steps link to.
            seed = (0 if number % 3 == 0 else step, number)
            data = content(seed, size)
            line = Line(number, "t", f"op{number}", "output", 0, 1, "uint8", (size,), size, stride=(1,))
            writer.put([Item(line, Payload(data, 0, size, "uint8", (size,)))], size)
        writer.end_step()

for line in sys.stdin:
    child = os.fork()
    if child == 0:
        directory, keep, count, worth = line.split()
        write(Path(directory), int(keep) or None, int(count), int(worth))
    print(child, flush=True)
    _, status = os.waitpid(child, 0)
    print(os.WTERMSIG(status), flush=True)
"""


@pytest.fixture(scope="module")
def nursery() -> Iterator[subprocess.Popen[str]]:
    with subprocess.Popen(
        [sys.executable, "-c", _NURSERY], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        yield process
        assert process.stdin is not None
        process.stdin.close()


def kill_after(nursery: subprocess.Popen[str], task: str, step: Path, seed: int) -> None:
    """Kill a child of the nursery at a random moment once the index of a step is there."""
    assert nursery.stdin is not None
    assert nursery.stdout is not None
    nursery.stdin.write(f"{task}\n")
    nursery.stdin.flush()
    child = int(nursery.stdout.readline())
    try:
        end = time.monotonic() + 600
        while not any(map(size_of, step.glob("index.jsonl*"))) and time.monotonic() < end:
            time.sleep(0.001)
        time.sleep(random.Random(seed).uniform(0, 0.12))
    finally:
        os.kill(child, signal.SIGKILL)
        assert int(nursery.stdout.readline()) == signal.SIGKILL


def size_of(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:  # it was compressed, or its step was removed
        return 0


def count_good(root: Path) -> Counter[int]:
    """How many records each step has; fails where one is not what was written."""
    found: Counter[int] = Counter()
    for record in open_dump(root):
        assert record.error is None
        number = int(record.op_name[2:])
        origin = 0 if number % 3 == 0 else record.step
        assert record.numpy().tobytes() == content((origin, number), record.nbytes or 0)
        assert record.step is not None
        found[record.step] += 1
    return found


@pytest.mark.parametrize("worth", [1 << 60, 1], ids=["plain", "compressed"])
@pytest.mark.parametrize("seed", range(10))
def test_killed_while_older_steps_go(tmp_path: Path, nursery: subprocess.Popen[str], seed: int, worth: int) -> None:
    directory = model_directory(tmp_path)
    kill_after(nursery, f"{directory} 2 31 {worth}", directory / "4", seed)
    found = count_good(tmp_path)
    steps = sorted(found)
    assert steps == list(range(steps[0], steps[0] + len(steps)))
    complete = [step for step in steps if found[step] == 31]
    assert complete in (steps, steps[:-1]), "the newest may be there in part"
    assert 2 <= len(complete) <= 3, "three while the oldest goes"


@pytest.mark.parametrize("worth", [1 << 60, 1], ids=["plain", "compressed"])
@pytest.mark.parametrize("seed", range(10))
def test_killed_at_a_random_moment(tmp_path: Path, nursery: subprocess.Popen[str], seed: int, worth: int) -> None:
    directory = model_directory(tmp_path)
    kill_after(nursery, f"{directory} 0 150 {worth}", directory / "0", seed)
    records = sum(count_good(tmp_path).values())
    texts = {path.parent: path.read_bytes() for path in tmp_path.rglob("index.jsonl")}
    texts.update({path.parent: gzip.decompress(path.read_bytes()) for path in tmp_path.rglob("index.jsonl.gz")})
    complete = sum(text.count(b"\n") for text in texts.values())
    # A line may lack its newline only.
    assert 0 < complete <= records <= complete + 1


_STEADY = """
import mmap, sys, time
from pathlib import Path
import numpy as np
from ascend_dump.writing import HostWriter, Item, Line, Payload

directory, times, tensors, stats, ahead = Path(sys.argv[1]), sys.argv[2], *map(int, sys.argv[3:])
with open(times, "r+b") as file:
    times = np.frombuffer(mmap.mmap(file.fileno(), 0), np.float64)
writer = HostWriter(directory, metadata={}, tensors=bool(tensors), stats=("max", "mean") if stats else ())
writer.begin_step(0)
noise = np.random.default_rng(0).standard_normal(20_000).astype(np.float32).tobytes()
for number in range(len(times)):
    data = np.int64(number).tobytes() + noise
    line = Line(number, "t", "op", "output", 0, 1, "float32", (len(data) // 4,), len(data), stride=(1,))
    writer.put([Item(line, Payload(data, 0, len(data), "float32", (len(data) // 4,)))], len(data))
    times[number] = time.monotonic()
    if not ahead:
        time.sleep(0.001)
"""


@pytest.mark.thorough
@pytest.mark.parametrize("ahead", [0, 1], ids=["slow program", "fast program"])
@pytest.mark.parametrize(("tensors", "stats"), [(1, 0), (0, 1), (1, 1)], ids=["tensor", "stats", "full"])
def test_little_is_lost_from_the_first_record_on(tmp_path: Path, tensors: int, stats: int, ahead: int) -> None:
    """Also while numba compiles for the first time on a machine."""
    directory = model_directory(tmp_path)
    seen = tmp_path / "times"
    seen.write_bytes(bytes(8 * 100_000))
    command = [sys.executable, "-c", _STEADY, str(directory), str(seen), str(tensors), str(stats), str(ahead)]
    environment = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path / "cache")}
    with subprocess.Popen(command, env=environment) as process:
        try:
            end = time.monotonic() + 600
            while not any(seen.read_bytes()[:8]) and time.monotonic() < end:
                time.sleep(0.01)
            time.sleep(2.5)
        finally:
            process.kill()
    times = [time for time in array("d", seen.read_bytes()) if time]
    found = len(list(open_dump(tmp_path)))
    lost = len(times) - found
    assert times
    # What is lost was handed over in the last half second (twice that where other tests take the processor), but for
    # what is gathered since a look at the clock.
    assert lost <= 300 or times[-101] - times[found] <= 1.0, f"{lost} of {len(times)}"


def test_killed_while_it_hangs(tmp_path: Path) -> None:
    """What ran before is there, however little it is."""
    program = """
import sys, time
from pathlib import Path
from ascend_dump.writing import HostWriter, Item, Line, Payload

writer = HostWriter(Path(sys.argv[1]), metadata={})
writer.begin_step(0)
for number in range(3):
    line = Line(number, "t", f"op{number}", "output", 0, 1, "uint8", (7,), 7, stride=(1,))
    writer.put([Item(line, Payload(b"content", 0, 7, "uint8", (7,)))], 7)
time.sleep(60)
"""
    index = model_directory(tmp_path) / "0" / "index.jsonl"
    with subprocess.Popen([sys.executable, "-c", program, str(index.parents[1])]) as process:
        try:
            end = time.monotonic() + 600
            while not (index.exists() and index.stat().st_size) and time.monotonic() < end:
                time.sleep(0.05)
        finally:
            process.kill()
    assert [record.numpy().tobytes() for record in open_dump(tmp_path)] == [b"content"] * 3
