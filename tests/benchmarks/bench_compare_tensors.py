"""Comparing two tensors, in GB/s of one side with the data in memory; msprobe beside it where it is installed.

Usage: bench_compare_tensors.py [MEGABYTES]     (default 256; the aim is 2 GB/s on two processors, 50 times msprobe)

msprobe is the package mindstudio-probe. Its numbers of a pair are asked for as its own comparison asks for them.
"""

from __future__ import annotations

import sys
import time
from statistics import median
from typing import Any, Callable, Optional

import ml_dtypes
import numba  # noqa: F401  # loaded, as it is in a long comparison
import numpy as np

from ascend_dump.analysis.compare import measure

ROUNDS = 5
_DISTINCT = 1 << 20


def pair(name: str, size: int, share: float) -> tuple[np.ndarray, np.ndarray]:
    """Two tensors of so many bytes, of which a share of the elements differs."""
    dtype = np.dtype(getattr(ml_dtypes, name, None) or name)
    rng = np.random.default_rng(0)
    count = size // dtype.itemsize
    b = (3 * rng.standard_normal(_DISTINCT)).astype(dtype)
    noise = np.where(rng.random(_DISTINCT) < share, 1 + 0.01 * rng.standard_normal(_DISTINCT), 1.0)
    a = (b.astype("float64") * noise).astype(dtype)
    return np.resize(a, count), np.resize(b, count)


def seconds(call: Callable[[Any, Any], object], a: np.ndarray, b: np.ndarray) -> tuple[float, float]:
    """Of the wall, and of the processors."""
    start, used = time.perf_counter(), time.process_time()
    call(a, b)
    return time.perf_counter() - start, time.process_time() - used


def of_msprobe() -> Optional[Callable[[Any, Any], object]]:
    try:
        from msprobe.core.compare.npy_compare import compare_ops_apply
    except ImportError:
        return None
    return lambda a, b: compare_ops_apply(a.copy(), b.copy(), False, "")


def main(megabytes: int = 256) -> None:
    peer = of_msprobe()
    heads = ("type", "differ", "GB/s", "GB/s per processor", "times msprobe")
    print("".join(f"{head:>20}" for head in heads))
    for name in ("float32", "bfloat16", "float16", "float64"):
        for share in (0.0, 0.01, 1.0):
            a, b = pair(name, megabytes << 20, share)
            measure(a[:_DISTINCT], b[:_DISTINCT])
            rounds, of_peer = [], []
            for _ in range(ROUNDS):
                # In turns, so that the machine's other work hits both alike.
                rounds.append(seconds(measure, a, b))
                if peer is not None and name == "float32" and share == 1.0:
                    part = a.size // 16
                    of_peer.append(16 * seconds(peer, a[:part], b[:part])[0])
            wall, used = (median(times) for times in zip(*rounds))
            times = f"{median(of_peer) / wall:.0f}" if of_peer else "-"
            row = (name, f"{share:.0%}", f"{a.nbytes / wall / 1e9:.2f}", f"{a.nbytes / used / 1e9:.2f}", times)
            print("".join(f"{cell:>20}" for cell in row))


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 256)
