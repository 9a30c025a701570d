"""The cost of recording curves: time and bytes of capture(data="stats", level="module", steps="0-:10").

    python tests/benchmarks/bench_trends.py [--steps 200] [--every 10] [--mode all] [--clock cpu] [--dir /dev/shm]

A step is forward, backward and AdamW of a transformer, on as many threads as PyTorch is given (OMP_NUM_THREADS):
`medium` has 4 layers (d=512, batch 8x128), `small` 4 layers (d=128, batch 4x32), whose operators are so short that the
cost per record dominates. `recorded` is the median of recorded steps divided by that of the steps between them,
`overall` what the capture adds to a step on average, as a part of it. Recorded and other steps alternate, so both see
the same load of the machine. --clock cpu counts processor time, the writer's thread included.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

import ascend_dump

SIZES = {"medium": (512, 8, 128), "small": (128, 4, 32)}


def make_step(width: int, batch: int, length: int) -> tuple[Any, Any]:
    """Return a model, and a function that trains it for a step."""
    torch.manual_seed(0)
    layer = torch.nn.TransformerEncoderLayer(width, 8, 4 * width, dropout=0.0, batch_first=True)
    model = torch.nn.TransformerEncoder(layer, 4, enable_nested_tensor=False)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    x = torch.randn(batch, length, width)

    def step() -> None:
        model(x).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()

    return model, step


def measure(name: str, options: argparse.Namespace, directory: Path) -> None:
    clock = {"wall": time.perf_counter, "cpu": time.process_time}[options.clock]
    model, step = make_step(*SIZES[name])
    for _ in range(5):
        step()
    settings = {"data": "stats", "level": "module", "mode": options.mode, "quiet": True}
    with ascend_dump.capture(model, path=directory / "warm", steps="0", **settings):
        step()
    times: dict[bool, list[float]] = {True: [], False: []}
    with ascend_dump.capture(model, path=directory / "dump", steps=f"0-:{options.every}", **settings) as cap:
        for number in range(options.steps):
            began = clock()
            step()
            times[number % options.every == 0].append(clock() - began)
    nbytes = sum(file.stat().st_size for file in (directory / "dump").rglob("*") if file.is_file())
    recorded, plain = (statistics.median(times[kind]) for kind in (True, False))
    overall = (recorded / plain - 1) / options.every
    records = len(cap.dump()) / len(times[True])
    each = nbytes / len(times[True])
    print(
        f"{name:7} plain {plain * 1e3:.1f} ms  recorded {recorded / plain:.2f}  overall {overall:+.2%}  "
        f"{records:.0f} records and {each / 1e3:.0f} kB per recorded step, {each / records:.0f} bytes per record"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--every", type=int, default=10)
    parser.add_argument("--mode", default="all", choices=["all", "input", "output"])
    parser.add_argument("--clock", default="wall", choices=["wall", "cpu"])
    parser.add_argument("--dir", help="where dumps are written for a while")
    options = parser.parse_args()
    for name in SIZES:
        with tempfile.TemporaryDirectory(dir=options.dir) as directory:
            measure(name, options, Path(directory))


if __name__ == "__main__":
    main()
