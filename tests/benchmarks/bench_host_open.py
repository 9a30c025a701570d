"""Reading the index of a large host dump, as a multiple of decoding its lines only.

Usage: bench_host_open.py [RECORDS]     (default 100000; the aim is at most 4 to list all records)
"""

from __future__ import annotations

import gzip
import sys
import tempfile
import time
import tracemalloc
from pathlib import Path
from typing import Callable

import msgspec

from ascend_dump.reading import Record, open_dump
from ascend_dump.writing import HostWriter, Item, Line, Payload

STEPS = 10
ROUNDS = 5


def make_dump(root: Path, records: int) -> None:
    """Records as a transformer's training step leaves them, with tensors of 16 bytes."""
    directory = root / "worldsize1_global_rank0" / "20260101010101" / "0" / "Model" / "0"
    directory.mkdir(parents=True)
    writer = HostWriter(directory, metadata={})
    for step in range(STEPS):
        writer.begin_step(step)
        for number in range(records // STEPS):
            layer = f"encoder.layers.{number % 48}.linear{number % 3}"
            operator = (number, "aten::addmm", f"{layer}/addmm_{number // 48}", "output", 0, 1700000000000000 + number)
            line = Line(*operator, "float32", (2, 2), 16, "cpu", "forward", layer, "/home/user/train.py:123")
            line.stride, line.storage, line.address = (2, 1), number % 500, 0x7F0000000000 + number
            line.storage_nbytes, line.version = 4096, number % 7
            data = number.to_bytes(16, "little")
            writer.put([Item(line, Payload(data, 0, 16, "float32", (2, 2)))], 16)
        writer.end_step()
    writer.close()
    assert writer.failure is None
    assert writer.records == records


def decode(root: Path) -> int:
    """The least that any reader of these files does."""
    line = msgspec.json.Decoder(Line).decode
    opens = {"index.jsonl": open, "index.jsonl.gz": gzip.open}
    return sum(1 for path in root.rglob("index.jsonl*") for text in opens[path.name](path, "rb") if line(text))


def seconds(call: Callable[[], object]) -> float:
    start = time.process_time()
    call()
    return time.process_time() - start


def main(records: int) -> float:
    with tempfile.TemporaryDirectory() as directory:
        root = Path(directory)
        make_dump(root, records)
        dump = open_dump(root)
        kept: list[Record] = []
        calls: dict[str, Callable[[], object]] = {
            "decode": lambda: decode(root),
            "open": lambda: open_dump(root),
            "len(dump)": lambda: len(dump),
            "list(dump)": lambda: list(dump),
            "select(op=...)": lambda: list(dump.select(op="*linear1*", step=3)),
        }
        # In turns, so that the machine's other work hits all alike.
        rounds = [{name: seconds(call) for name, call in calls.items()} for _ in range(ROUNDS)]
        best = {name: min(times[name] for times in rounds) for name in calls}
        for name, taken in best.items():
            print(f"{name:15} {taken:7.3f} s {taken / best['decode']:6.2f} x")
        arrays = seconds(lambda: [record.numpy() for record in dump.select(step=0)])
        print(f"numpy() {arrays / records * STEPS * 1e6:.1f} us each")
        tracemalloc.start()
        len(dump)
        print(f"memory to go through it: {tracemalloc.get_traced_memory()[1] / 1e6:.1f} MB", end=", ")
        kept += dump
        print(f"to keep all records: {tracemalloc.get_traced_memory()[0] / 1e6:.1f} MB")
        tracemalloc.stop()
    return best["list(dump)"] / best["decode"]


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 100_000)
