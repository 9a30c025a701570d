"""The memory of a capture with `keep=3` over many steps: it must not grow once the first steps were removed.

    python tests/benchmarks/bench_keep.py [--steps 4000] [--data tensor full stats]

A step is one call of ten small layers on new data, so that each step has tensors that no other step has. Resident
memory is printed after each quarter; it fails if memory grows by more than 8 MB in the last quarter.
"""

from __future__ import annotations

import argparse
import gc
import os
import tempfile
from pathlib import Path


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def measure(data: str, steps: int) -> list[int]:
    """Resident memory after each quarter of the steps."""
    import torch

    import ascend_dump

    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = torch.nn.Sequential(*(torch.nn.Linear(8, 8) for _ in range(10)))
    sizes = []
    with (
        tempfile.TemporaryDirectory() as path,
        ascend_dump.capture(model, path=path, keep=3, data=data, quiet=True, strict=True) as cap,
    ):
        for number in range(1, steps + 1):
            model(torch.randn(4, 8))
            if number % (steps // 4) == 0:
                cap.dump()
                gc.collect()
                sizes.append(resident_bytes())
    return sizes


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=4000)
    parser.add_argument("--data", nargs="+", default=["tensor", "full", "stats"])
    options = parser.parse_args()
    grown = []
    for data in options.data:
        sizes = measure(data, options.steps)
        print(f"{data:7}", " ".join(f"{size / 1e6:8.1f} MB" for size in sizes))
        grown += [data] * (sizes[-1] - sizes[-2] > 8e6)
    if grown:
        raise SystemExit(f"memory grows with keep=3 and data={', '.join(grown)}")


if __name__ == "__main__":
    main()
