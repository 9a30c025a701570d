"""Comparing dumps: pairing of many operators, records with equal hashes, and the verb from start to exit.

Usage: bench_compare.py [OPERATORS]     (default 100000; the aims are printed beside what was measured)
"""

from __future__ import annotations

import random
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import msgspec

from ascend_dump.analysis.compare import compare
from ascend_dump.analysis.operators.operator import Operator
from ascend_dump.analysis.pairing.same_framework import align
from ascend_dump.dump_format import Line
from ascend_dump.reading import Record

ROUNDS = 3
NAMES = ("addmm", "native_layer_norm", "gelu", "add", "mul", "_softmax", "bmm", "view", "t") * 2
PARTS = tuple(f"aten::{name}" for name in NAMES)
_PATH = Path("index.jsonl")


class Clock:
    """Medians of what is timed by `with`: by the clock on the wall, and of the processors' time."""

    def __init__(self) -> None:
        self._times: list[tuple[float, float]] = []

    def __enter__(self) -> None:
        self._start = self._now()

    def __exit__(self, *raised: object) -> None:
        wall, processor = self._now()
        self._times.append((wall - self._start[0], processor - self._start[1]))

    def __str__(self) -> str:
        wall, processor = (sorted(column)[len(self._times) // 2] for column in zip(*self._times))
        return f"{wall:.2f} s ({processor:.2f} s of processor)"

    @staticmethod
    def _now() -> tuple[float, float]:
        kinds = (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
        used = [resource.getrusage(kind) for kind in kinds]
        return time.perf_counter(), sum(one.ru_utime + one.ru_stime for one in used)


def peak() -> int:
    """The most memory of this process so far, in MB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024


def operator(position: int, op_type: str, module: str, shape: tuple[int, ...]) -> Operator:
    """An operator of which nothing but its outputs' shape is recorded: no hash, no storage."""
    record = Record(None, path=_PATH, op_type=op_type, op_name=f"{module}/{op_type}", io="output", shape=shape)
    return Operator(position, op_type, f"{module}/{op_type}_{position}", "forward", module, "", [], [record])


def edited(rows: list[tuple[str, str, tuple[int, ...]]], share: float) -> tuple[list[int], list[Operator]]:
    """The operators with some deleted and as many inserted, and for each the number it has in the original, or -1."""
    generator = random.Random(0)
    truth: list[int] = []
    kept: list[tuple[str, str, tuple[int, ...]]] = []
    for number, row in enumerate(rows):
        if generator.random() < share:
            truth.append(-1)
            kept.append(generator.choice(rows))
        if generator.random() >= share:
            truth.append(number)
            kept.append(row)
    return truth, [operator(position, *row) for position, row in enumerate(kept)]


def pairing(operators: int, *, names: bool) -> None:
    """With names the path of the module is known; without, type and shapes alone."""
    rows = [
        (op_type, f"layers.{block}.{part}" if names else "", (4, 16 + part % 5))
        for block in range(operators // len(PARTS))
        for part, op_type in enumerate(PARTS)
    ]
    reference = [operator(position, *row) for position, row in enumerate(rows)]
    truth, actual = edited(rows, 0.02)
    clock = Clock()
    for _ in range(ROUNDS):
        with clock:
            found = align(actual, reference)
    right = sum(truth[match.actual.position] == match.reference.position for match in found)
    possible = sum(number >= 0 for number in truth)
    label = "with names" if names else "types and shapes only"
    print(
        f"pairing {len(reference)} operators, 2 % inserted, 2 % deleted, {label}: {right / possible:.3%} of the "
        f"possible pairs, {clock}, {peak()} MB with all operators (aim: 99.8 %, 3 s, 500 MB)"
    )


def make_dump(root: Path, records: int, shift: int = 0) -> Path:
    """Records of a training step without their tensors; every hash is there."""
    step = root / "worldsize1_global_rank0" / "20260101010101" / "0" / "Model" / "0" / "0"
    step.mkdir(parents=True)
    encode = msgspec.json.Encoder().encode
    with open(step / "index.jsonl", "wb") as file:
        for number in range(records):
            seq, index = divmod(number, 4)
            layer = f"layers.{seq % 48}.linear"
            line = Line(
                seq=seq,
                op_type="aten::addmm",
                op_name=f"{layer}/addmm_{seq // 48}",
                io="output" if index == 3 else "input",
                index=index % 3,
                time=1_700_000_000_000_000 + seq,
                dtype="float32",
                shape=(2, 2),
                nbytes=16,
                phase="forward",
                module=layer,
            )
            line.stride, line.storage, line.version = (2, 1), number % 500, number % 7
            line.hash, line.shard, line.blob = f"{number + shift:032x}", "0/tensors-00000.safetensors", (0, 16)
            file.write(encode(line) + b"\n")
    return root


def equal_hashes(records: int, folder: Path) -> None:
    actual, reference = (make_dump(folder / name, records) for name in ("actual", "reference"))
    clock, looking = Clock(), Clock()
    for number in range(ROUNDS):
        with clock:
            found = compare(actual, reference)
        # No shard exists: whatever read a tensor would be unreadable.
        assert found.verdict == "equal"
        assert len(found.pairs) == records
        if not number:
            print(f"two dumps of {records} records with equal hashes: {peak()} MB", end="", flush=True)
        with looking:
            assert all(pair.verdict == "equal" for pair in found.pairs)
    print(f", {clock} (aim: 5 s); looking at every pair: {looking} more, {peak()} MB")


def start_to_exit(folder: Path) -> None:
    actual, reference = (make_dump(folder / name, 200) for name in ("small-a", "small-b"))
    command = [sys.executable, "-m", "ascend_dump", "compare", str(actual), str(reference)]
    ours, bare = Clock(), Clock()
    for _ in range(5):
        for argv, clock in ((command, ours), ([sys.executable, "-c", "pass"], bare)):
            with clock:
                subprocess.run(argv, check=True, stdout=subprocess.DEVNULL)
    print(f"ascend-dump compare of two small dumps: {ours}; Python alone: {bare} (aim: 0.7 s)")


def main(operators: int) -> None:
    # First, since its memory is that of the process at its largest so far.
    pairing(operators, names=True)
    pairing(operators, names=False)
    with tempfile.TemporaryDirectory() as folder:
        equal_hashes(operators, Path(folder))
        start_to_exit(Path(folder))


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 100_000)
