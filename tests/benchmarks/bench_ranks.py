"""Time and memory of comparing the indexes of two runs with many ranks; both should be proportional to the ranks.

Usage: bench_ranks.py [RANKS [OPERATORS]]     (default 1024 100000: the aim is at most 60 s on two CPUs, and 2 GB)

Three sizes are run: a sixteenth of the ranks, a quarter, and all of them. Tensor parallelism joins eight ranks at every
hundredth operator, data parallelism every eighth rank at every ten-thousandth. One operator of one rank is wrong, and
the difference spreads to all ranks. The comparison must name that operator first.
"""

from __future__ import annotations

import json
import resource
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from ascend_dump.analysis.ranks import compare_indexes
from ascend_dump.dump_format import ranks_text
from ascend_dump.reading.catalog import schema

SPAN, REDUCED, SYNCED = 8, 100, 10_000


def program(operators: int) -> pl.DataFrame:
    """The catalog of one rank, without hashes and groups: an operator is one record, a collective two."""
    number = np.arange(operators)
    tensor, data = number % REDUCED >= REDUCED - 2, number % SYNCED >= SYNCED - 2
    collective = tensor | data
    seq = number - (collective & (number % 2 == 1))  # the two records of a call
    layers = number // REDUCED % 96
    names = [
        f"layers.{layer}.mlp/{'all_reduce' if joined else 'addmm'}_{at}"
        for at, layer, joined in zip(seq.tolist(), layers.tolist(), collective.tolist())
    ]
    known = {
        "op_type": np.where(collective, "_c10d_functional::all_reduce", "aten::addmm"),
        "op_name": names,
        "io": np.where(collective & (number % 2 == 0), "input", "output"),
        "index": np.zeros(operators, np.int64),
        "step": np.zeros(operators, np.int64),
        "seq": seq,
        "nth": seq,
        "source": np.char.add("/home/user/train.py:", (layers + 100).astype(str)),
        "dtype": ["float32"] * operators,
        # What a capture with statistics knows of where a tensor lies in the bytes that its hash is of.
        "shape": [[64, 64]] * operators,
        "stored_stride": [[64, 1]] * operators,
        "nbytes": [4 * 64 * 64] * operators,
        "blob_offset": [0] * operators,
    }
    types = schema()
    columns = [
        pl.Series(name, known[name]).cast(kind)
        if name in known
        else pl.Series(name, [None], kind).new_from_index(0, operators)
        for name, kind in types.items()
    ]
    return pl.DataFrame(columns)


def groups(operators: int, rank: int, ranks: int) -> pl.Series:
    """What a rank tells of its collectives: `attrs` of the catalog."""
    first = rank // SPAN * SPAN
    tensor, data = range(first, first + SPAN), range(rank % SPAN, ranks, SPAN)
    texts: list[object] = [None] * operators
    count = {"tp": 0, "dp": 0}
    for at in range(REDUCED - 2, operators - 1, REDUCED):
        name, members = ("dp", data) if at % SYNCED >= SYNCED - 2 else ("tp", tensor)
        told = {"kind": "all_reduce", "group": f"{name}{members[0]}", "ranks": ranks_text(members), "reduce": "sum"}
        texts[at] = texts[at + 1] = json.dumps({"collective": {**told, "nth": count[name]}})
        count[name] += 1
    return pl.Series("attrs", texts, dtype=pl.Utf8)


def hashes(seed: int, operators: int) -> pl.Series:
    words = np.random.default_rng(seed).bytes(16 * operators).hex()
    return pl.Series("hash", [words[at : at + 32] for at in range(0, 32 * operators, 32)])


def first_wrong(rank: int, ranks: int, operators: int, wrong: tuple[int, int]) -> int:
    """The first record of a rank that the wrong one has reached."""
    of_rank, at = wrong
    if rank == of_rank:
        return at
    reduced = (
        next(one for one in range(at // REDUCED * REDUCED, operators, REDUCED) if one + REDUCED - 2 >= at) + REDUCED - 1
    )
    if rank // SPAN == of_rank // SPAN and reduced % SYNCED != SYNCED - 1:
        return reduced
    return (at // SYNCED + 1) * SYNCED - 1


def make_runs(root: Path, ranks: int, operators: int, wrong: tuple[int, int]) -> None:
    """Both runs as catalogs. Ranks of data parallelism have the same values in the reference."""
    base = program(operators)
    for name in ("actual", "reference"):
        (root / name).mkdir()
    pools = [[hashes(2 * part + other, operators) for other in range(2)] for part in range(SPAN)]
    for rank in range(ranks):
        right, changed = pools[rank % SPAN]
        known = base.with_columns(groups(operators, rank, ranks))
        at = first_wrong(rank, ranks, operators, wrong)
        for name, column in (("reference", right), ("actual", pl.concat([right[:at], changed[at:]]))):
            known.with_columns(column).write_parquet(root / name / f"rank-{rank}.parquet", compression="zstd")


def largest() -> float:
    """GB that this process has had at most."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6


def in_another_process(function: Callable[..., Any], *arguments: Any) -> Any:
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        return pool.submit(function, *arguments).result()


def run(ranks: int, operators: int) -> tuple[float, float, float]:
    """(wall seconds, CPU seconds, GB) of the comparison, which is all that this process does."""
    wrong = (ranks // 2 + 3, operators * 3 // 10 + 33)
    with tempfile.TemporaryDirectory() as directory:
        root = Path(directory)
        in_another_process(make_runs, root, ranks, operators, wrong)
        wall, cpu = time.perf_counter(), time.process_time()
        with ThreadPoolExecutor(2) as executor:
            found = compare_indexes(root / "actual", root / "reference", executor=executor, work=root / "work")
        wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    [origin] = found.origins
    assert (origin.ranks, origin.kind, origin.follows) == ((wrong[0],), "made", ranks - 1), origin
    assert found.ranks.filter(pl.col("rank") == wrong[0])["position"].item() == wrong[1]
    assert found.ranks["rows"].sum() == ranks * operators
    return wall, cpu, largest()


def main(ranks: int, operators: int) -> None:
    for size in (max(ranks // 16, SPAN), max(ranks // 4, SPAN), ranks):
        wall, cpu, memory = in_another_process(run, size, operators)
        rows = size * operators
        print(
            f"{size:5} ranks, {rows:11,} rows of each run: {wall:6.1f} s, {cpu:6.1f} s of CPU, "
            f"{cpu / rows * 1e6:.2f} us of CPU per row, at most {memory:.2f} GB"
        )


if __name__ == "__main__":
    main(*[*map(int, sys.argv[1:]), 1024, 100_000][:1], *[*map(int, sys.argv[2:]), 100_000][:1])
