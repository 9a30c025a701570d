"""Time the statistics of one tensor against a plain copy of the same bytes, as ratios within one run.

    python tests/benchmarks/bench_statistics.py [MB] [--repeat N] [--dtypes float32,bfloat16] [--quick]

Prints, per dtype and kind of data, the time of `statistics` with numba and with numpy, of torch's four reductions
(max, min, mean, norm), each as a ratio to `np.copyto`, and what one call on a small tensor costs.
"cores" says how many processors the numba row really had: on a busy machine fewer than it has threads.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Sequence
from typing import Callable, NamedTuple, Optional

import ml_dtypes
import numpy as np

from ascend_dump import ConfigError
from ascend_dump.statistics import statistics, warm_up

#: Of the dtypes that the goal names, at most this multiple of np.copyto.
GOAL = 1.3
GOAL_DTYPES = ("float32", "bfloat16", "float16")
DTYPES = (
    *GOAL_DTYPES,
    "float64",
    "int64",
    "int32",
    "int16",
    "float8_e4m3fn",
    "int8",
    "bool",
    "complex64",
    "complex128",
)


def main(argv: Optional[Sequence[str]] = None) -> int:
    """Print the tables. Returns 1 when numba misses the goal on processors that were free, else 0."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("size", nargs="?", type=float, default=256, help="megabytes of each tensor (default 256)")
    parser.add_argument("--repeat", type=int, default=7, help="runs of each row, the best of which counts (default 7)")
    parser.add_argument("--dtypes", default=",".join(DTYPES))
    parser.add_argument("--quick", action="store_true", help="leave out the slow rows, numpy and torch")
    options = parser.parse_args(argv)
    dtypes = options.dtypes.split(",")
    numba = _numba_ready(dtypes)
    torch = None if options.quick else _torch()
    worst = _print_large(options, dtypes, numba, torch)
    _print_small(numba)
    if worst is None:
        return 0
    print(f"\ngoal: numba at most {GOAL} x np.copyto on {', '.join(GOAL_DTYPES)}; measured at most {worst.ratio:.2f}")
    threads = min(4, os.cpu_count() or 1)
    if worst.ratio > GOAL and worst.cores < 0.8 * threads:
        print(f"no verdict: only {worst.cores:.1f} of {threads} processors were free; run it on a quiet machine")
        return 0
    return int(worst.ratio > GOAL)


class Worst(NamedTuple):
    """The row that is furthest from the goal, and how many processors it had."""

    ratio: float
    cores: float


def _print_large(options: argparse.Namespace, dtypes: Sequence[str], numba: bool, torch: object) -> Optional[Worst]:
    print(f"{options.size:g} MB per tensor, best of {options.repeat} rounds; ratios to np.copyto of the same bytes")
    print(f"{'dtype':<15}{'data':<18}{'copyto ms':>10}{'numba':>7}{'cores':>7}{'numpy':>7}{'torch 4':>9}")
    rows_of_goal: list[Worst] = []
    for dtype in dtypes:
        for label, array in _variants(dtype, int(options.size * 2**20)):
            target = np.empty_like(array)
            rows: list[Optional[Callable[[], object]]] = [
                lambda array=array, target=target: np.copyto(target, array),
                (lambda array=array: statistics(array, engine="numba")) if numba else None,
                None if options.quick else lambda array=array: statistics(array, engine="numpy"),
                _torch_row(torch, array),
            ]
            copy, *others = _race(rows, options.repeat)
            assert copy is not None
            cells = ["-" if spent is None else f"{spent.wall / copy.wall:.2f}" for spent in others]
            ours = others[0]
            cores = "-" if ours is None else f"{ours.cpu / ours.wall:.1f}"
            print(
                f"{dtype:<15}{label:<18}{copy.wall * 1e3:>10.1f}{cells[0]:>7}{cores:>7}{cells[1]:>7}{cells[2]:>9}",
                flush=True,
            )
            if ours is not None and dtype in GOAL_DTYPES:
                rows_of_goal.append(Worst(ours.wall / copy.wall, ours.cpu / ours.wall))
    return max(rows_of_goal, default=None)


def _print_small(numba: bool) -> None:
    print(f"\n{'one call, microseconds':<35}{'numba':>8}{'numpy':>8}")
    random = np.random.default_rng(1)
    for dtype in ("float32", "bfloat16", "int64", "bool", "float8_e4m3fn"):
        for size in (1 << 10, 100 << 10):
            array = _cast(random.standard_normal(size, dtype=np.float32), dtype)
            array = array[: size // array.itemsize].reshape(-1, 16)
            for label, view in (("", array), (" transposed slice", array[::2, :].T)):
                cells = [
                    f"{_per_call(lambda view=view, engine=engine: statistics(view, engine=engine)):.1f}"
                    if numba or engine == "numpy"
                    else "-"
                    for engine in ("numba", "numpy")
                ]
                print(f"{dtype} {size >> 10} KB{label:<17}".ljust(35) + f"{cells[0]:>8}{cells[1]:>8}")


def _variants(dtype: str, size: int) -> list[tuple[str, np.ndarray]]:
    """Data that takes different ways through a kernel; a short pattern repeated, so that making it is quick."""
    random = np.random.default_rng(0)
    pattern = random.standard_normal(1 << 20, dtype=np.float32) * 3
    clean = _cast(pattern, dtype)
    found = [("normal", clean)]
    if dtype in GOAL_DTYPES:
        masked = pattern.copy()
        masked[::3] = -np.inf
        masked[1::1001] = np.nan
        found += [("half zeros", _cast(np.maximum(pattern, 0), dtype)), ("-Inf mask and NaN", _cast(masked, dtype))]
    return [(label, np.resize(array, size // array.itemsize)) for label, array in found]


def _cast(values: np.ndarray, dtype: str) -> np.ndarray:
    if dtype == "bool":
        return values > 0
    target = np.dtype(getattr(ml_dtypes, dtype, dtype))
    return (values * 40).astype(target) if target.kind in "iu" else values.astype(target)


class Spent(NamedTuple):
    """Seconds on the clock, and of processor time on all threads."""

    wall: float
    cpu: float


def _race(rows: Sequence[Optional[Callable[[], object]]], repeat: int) -> list[Optional[Spent]]:
    """Time the rows in turn, so that a disturbance meets all of them, and keep the best of each."""
    rounds: list[list[Optional[Spent]]] = []
    for _ in range(repeat + 1):
        rounds.append([None if row is None else _time(row) for row in rows])
    # The first round pays for pages and caches.
    return [None if column[0] is None else min(filter(None, column)) for column in zip(*rounds[1:])]


def _time(row: Callable[[], object]) -> Spent:
    wall, cpu = time.perf_counter(), time.process_time()
    row()
    return Spent(time.perf_counter() - wall, time.process_time() - cpu)


def _per_call(function: Callable[[], object], number: int = 300) -> float:
    best = float("inf")
    for _ in range(7):
        start = time.perf_counter()
        for _ in range(number):
            function()
        best = min(best, time.perf_counter() - start)
    return best / number * 1e6


def _numba_ready(dtypes: Sequence[str]) -> bool:
    try:
        statistics(np.zeros(1, np.float32), engine="numba")
    except ConfigError as error:
        print(f"no numba rows: {error.message}")
        return False
    warm_up(dtypes)
    return True


def _torch() -> object:
    try:
        import torch
    except ImportError:
        print("no torch rows: torch is not installed")
        return None
    return torch


def _torch_row(torch, array: np.ndarray) -> Optional[Callable[[], object]]:  # type: ignore[no-untyped-def]  # optional
    if torch is None or array.dtype.name not in (*GOAL_DTYPES, "float64"):
        return None
    if array.dtype.name == "bfloat16":
        tensor = torch.from_numpy(array.view(np.uint16)).view(torch.bfloat16)
    else:
        tensor = torch.from_numpy(array)
    return lambda: (tensor.max(), tensor.min(), tensor.mean(), torch.norm(tensor))


if __name__ == "__main__":
    sys.exit(main())
