"""Time and memory to make the catalog of a large host dump, to read the stored catalog, and of the verbs that use it.

It also makes the catalog of the same number of records in steps that repeat, by the compiled function and by decoding
each line, in turns.

Usage: bench_catalog.py [RECORDS [DIRECTORY]]     (default 100000 in the directory of temporary files, 0.5 kB of disk
each; the aim for 1,000,000 is 5 s by the clock to make the catalog, and for 10,000,000 less than 2000 MB of memory).
The verbs are compared with the same verbs without polars, which read every line.
"""

from __future__ import annotations

import gzip
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple, Optional

import msgspec
from xxhash import xxh3_128_hexdigest

from ascend_dump.dump_format import Line

#: As many records as a step of a large model has.
IN_A_STEP = 500_000
SMALL = 200
#: Records of a step that repeats.
REPEATED = 2500
VERBS = ("ls", "ls --op *layers.7.*", "stats --nonfinite", "stats --sort max --limit 10")
ROUNDS = 3
#: Of more records every line is not read.
MOST_PLAIN = 1_000_000
_VERB = "import sys; from ascend_dump.cli import main; sys.exit(main(sys.argv[1:]))"
_PLAIN = f"import sys; sys.modules['polars'] = None; {_VERB}"
_CATALOG = """
import sys, polars
import ascend_dump
rows = ascend_dump.open(sys.argv[1]).catalog()
rows.filter(polars.col("nan") > 0).collect()
print(rows.select(polars.len()).collect().item())
"""


class Run(NamedTuple):
    """The costs of a process: seconds of processor and by the clock, and its most memory in MB."""

    seconds: float
    wall: float
    memory: int
    printed: bytes


def make_dump(root: Path, records: int) -> Path:
    """The indexes of a training run with statistics, without its tensors."""
    steps = root / "worldsize1_global_rank0" / "20260101010101" / "0" / "Model" / "0"
    encode = msgspec.json.Encoder().encode
    for first in range(0, records, IN_A_STEP):
        step = steps / str(first // IN_A_STEP)
        step.mkdir(parents=True)
        with open(step / "index.jsonl", "wb") as file:
            for number in range(min(IN_A_STEP, records - first)):
                file.write(encode(_line(first + number, number)) + b"\n")
    return root


def _line(unique: int, number: int) -> Line:
    seq, index = divmod(number, 4)
    layer = f"model.layers.{seq % 48}.self_attn.q_proj"
    line = Line(
        seq=seq,
        op_type="aten::addmm",
        op_name=f"{layer}/addmm_{seq // 48}",
        io="output" if index == 3 else "input",
        index=index % 3,
        time=1_700_000_000_000_000 + unique,
        dtype="bfloat16",
        shape=(4, 16 + seq % 48),
        nbytes=128,
        phase="forward",
        module=layer,
        source="/home/user/train.py:123",
    )
    line.stride, line.storage, line.version = (64, 1), number % 500, number % 7
    line.address, line.storage_nbytes = 0x7F0000000000 + number, 4096
    line.hash, line.shard, line.blob = xxh3_128_hexdigest(b"%d" % unique), "0/tensors-00000.safetensors", (0, 16)
    line.stats = (64, number % 1000 / 7, -(number % 900) / 7, number % 31 / 9, number % 1000 / 3, 0, 0, 0, 1, 1, 0)
    return line


def make_repeated(root: Path, records: int) -> Path:
    """Steps with the same lines but for times, hashes, versions and statistics, in compressed indexes."""
    steps = root / "worldsize1_global_rank0" / "20260101010101" / "0" / "Model" / "0"
    encode = msgspec.json.Encoder().encode
    for step in range(records // REPEATED):
        (steps / str(step)).mkdir(parents=True)
        lines = []
        for number in range(REPEATED):
            line = _line(number, number)
            line.time += step * 1_000_000
            line.version, line.hash = step, xxh3_128_hexdigest(b"%d %d" % (step, number))
            line.stats = (64, number / 7 + step / 3, -number / 7, number / 9, step + 1 / 3, 0, 0, 0, 1, 1, 0)
            lines.append(encode(line) + b"\n")
        (steps / str(step) / "index.jsonl.gz").write_bytes(gzip.compress(b"".join(lines), 6))
    return root


def time_repeated(root: Path) -> None:
    """Print the processor time of a catalog by the compiled function, and by decoding; each as the best of some."""
    code = f"import ascend_dump.reading.catalog as catalog; catalog._MANY = %s; {_CATALOG.lstrip()}"
    runs: list[list[Run]] = []
    run("-c", code % 0, str(root))  # compiles the function
    for _ in range(ROUNDS):
        runs.append([])
        for many in (0, sys.maxsize):
            shutil.rmtree(root / ".ascend-dump-catalog", ignore_errors=True)
            runs[-1].append(run("-c", code % many, str(root)))
    compiled, decoded = min(pair[0] for pair in runs), min(pair[1] for pair in runs)
    print(
        f"repeated steps: {compiled.seconds:.2f} s of processor, {compiled.memory} MB; decoded "
        f"{decoded.seconds:.2f} s, {decoded.memory} MB; ratio {compiled.seconds / decoded.seconds:.2f}",
        flush=True,
    )


def run(*command: str) -> Run:
    """Run Python in a process of its own. Only the last of the children that ended is measured."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reading)
        start = time.perf_counter()
        found = subprocess.run(
            [sys.executable, *command], check=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
        )
        wall = time.perf_counter() - start
        used = resource.getrusage(resource.RUSAGE_CHILDREN)
        with os.fdopen(writing, "wb") as pipe:
            took = f"{used.ru_utime + used.ru_stime} {wall} {used.ru_maxrss // 1024} ".encode()
            pipe.write(took + found.stdout[-100:])
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        seconds, wall, memory, printed = pipe.read().split(b" ", 3)
    os.waitpid(child, 0)
    return Run(float(seconds), float(wall), int(memory), printed)


def verbs(argv: list[str], root: Path, *, plain: bool) -> tuple[Run, Optional[Run]]:
    """The best of some runs, with polars and without, in turns; without plain one run with polars."""
    verb, *options = argv
    if not plain:
        return run("-c", _VERB, verb, str(root), *options), None
    runs = [[run("-c", code, verb, str(root), *options) for code in (_VERB, _PLAIN)] for _ in range(ROUNDS)]
    ours, without = (min(side) for side in zip(*runs))
    assert ours.printed == without.printed
    return ours, without


def main(records: int, directory: Path) -> None:
    with tempfile.TemporaryDirectory(dir=directory) as folder:
        root = make_dump(Path(folder, "large"), records)
        size = sum(path.stat().st_size for path in root.rglob("index.jsonl"))
        print(f"{records} records, {size / 1e6:.0f} MB of indexes")
        for what in ("made", "kept"):
            took = run("-c", _CATALOG, str(root))
            assert took.printed.split()[0] == str(records).encode()
            print(
                f"catalog {what}: {took.wall:.2f} s, {took.seconds:.2f} s of processor, {took.memory} MB at most; "
                f"load {os.getloadavg()[0]:.1f} on {os.cpu_count()} processors",
                flush=True,
            )
        kept = sum(path.stat().st_size for path in (root / ".ascend-dump-catalog").glob("*"))
        print(f"it takes {kept / 1e6:.0f} MB of disk")
        time_repeated(make_repeated(Path(folder, "repeated"), records))
        for name, directory in (("", root), ("small: ", make_dump(Path(folder, "small"), SMALL))):
            for verb in VERBS:
                ours, plain = verbs(verb.split(), directory, plain=records <= MOST_PLAIN or directory is not root)
                without = "" if plain is None else f"; plain {plain.seconds:.2f} s"
                print(f"{name}{verb}: {ours.seconds:.2f} s of processor, {ours.memory} MB{without}", flush=True)


if __name__ == "__main__":
    main(
        int(sys.argv[1]) if len(sys.argv) > 1 else 100_000,
        Path(sys.argv[2] if len(sys.argv) > 2 else tempfile.gettempdir()),
    )
