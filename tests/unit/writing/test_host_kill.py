"""A process killed at any moment leaves every record that it completed."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from host_dumps import content, model_directory

from ascend_dump.reading import open_dump

#: Starts a child that writes until it is killed, for each line on standard input. Imports cost only once.
_NURSERY = """
import hashlib, os, sys
from pathlib import Path
from ascend_dump.writing import HostWriter, Item, Limits, Line, Payload

def content(seed, nbytes):
    return hashlib.shake_128(repr(seed).encode()).digest(nbytes)

def write(directory):
    writer = HostWriter(directory, metadata={}, limits=Limits(room=16376, nbytes=1 << 20))
    for step in range(10**6):
        writer.begin_step(step)
        for number in range(150):
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
        write(Path(line.rstrip()))
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


@pytest.mark.parametrize("seed", range(20))
def test_killed_at_a_random_moment(tmp_path: Path, nursery: subprocess.Popen[str], seed: int) -> None:
    assert nursery.stdin is not None
    assert nursery.stdout is not None
    directory = model_directory(tmp_path)
    nursery.stdin.write(f"{directory}\n")
    nursery.stdin.flush()
    child = int(nursery.stdout.readline())
    try:
        end = time.monotonic() + 30
        index = directory / "0" / "index.jsonl"
        while not (index.exists() and index.stat().st_size) and time.monotonic() < end:
            time.sleep(0.001)
        time.sleep(random.Random(seed).uniform(0, 0.12))
    finally:
        os.kill(child, signal.SIGKILL)
        assert int(nursery.stdout.readline()) == signal.SIGKILL
    records = 0
    for record in open_dump(tmp_path):
        assert record.error is None
        number = int(record.op_name[2:])
        origin = 0 if number % 3 == 0 else record.step
        assert record.numpy().tobytes() == content((origin, number), record.nbytes or 0)
        records += 1
    complete = sum(path.read_bytes().count(b"\n") for path in tmp_path.rglob("index.jsonl"))
    # A line may lack its newline only.
    assert 0 < complete <= records <= complete + 1


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
            end = time.monotonic() + 30
            while not (index.exists() and index.stat().st_size) and time.monotonic() < end:
                time.sleep(0.05)
        finally:
            process.kill()
    assert [record.numpy().tobytes() for record in open_dump(tmp_path)] == [b"content"] * 3
