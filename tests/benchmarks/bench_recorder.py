"""The time of a capture with `keep=3` and `until="nonfinite"` relative to a capture without, within one process.

    python tests/benchmarks/bench_recorder.py [--steps 500] [--rounds 3] [--data stats tensor] [--dir DIR]

A step is forward, backward and Adam of a small transformer. Each round records `--steps` steps with each setting, one
after the other in an order that turns; a time is from entry to exit of the block. Ratios are those of the sums over all
rounds, of processor time (all threads) and of wall time. `disk` is what lies in the directory at the end.
"""

from __future__ import annotations

import argparse
import shutil
import tempfile
import time
from pathlib import Path
from typing import Any

SETTINGS: dict[str, dict[str, Any]] = {
    "all steps": {},
    "keep=3": {"keep": 3},
    "until": {"until": "nonfinite"},
    "keep=3 until": {"keep": 3, "until": "nonfinite"},
}


def make() -> Any:
    import torch

    torch.manual_seed(0)
    torch.set_num_threads(1)
    layer = torch.nn.TransformerEncoderLayer(64, 4, 128, dropout=0.0, batch_first=True)
    model = torch.nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-4)
    x = torch.randn(4, 16, 64)

    def step() -> None:
        optimizer.zero_grad()
        model(x).pow(2).mean().backward()
        optimizer.step()

    return model, step


def block(path: Path, data: Any, steps: int, settings: dict[str, Any]) -> tuple[float, float, int]:
    """Processor time, wall time and bytes on disk of one capture."""
    import ascend_dump

    model, step = make()
    step()
    shutil.rmtree(path, ignore_errors=True)
    cpu, wall = time.process_time(), time.perf_counter()
    with ascend_dump.capture(model, path=path, data=data, strict=True, **settings):
        for _ in range(steps):
            step()
    cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
    return cpu, wall, sum(file.stat().st_size for file in path.rglob("*") if file.is_file())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=500)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--data", nargs="*", default=["stats", "tensor"])
    parser.add_argument("--dir", type=Path, default=None)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=given.dir) as directory:
        for data in given.data:
            block(Path(directory, "warm"), data, 5, SETTINGS["keep=3 until"])
            sums = {name: [0.0, 0.0, 0.0] for name in SETTINGS}
            names = list(SETTINGS)
            for turn in range(given.rounds):
                for name in names[turn % len(names) :] + names[: turn % len(names)]:
                    found = block(Path(directory, "dump"), data, given.steps, SETTINGS[name])
                    sums[name] = [sums[name][0] + found[0], sums[name][1] + found[1], found[2]]
            base = sums["all steps"]
            print(f"data={data!r}, {given.rounds} x {given.steps} steps: {base[0]:.1f} s of CPU, {base[1]:.1f} s")
            for name, (cpu, wall, size) in sums.items():
                print(f"  {name:14} CPU x{cpu / base[0]:.3f}  wall x{wall / base[1]:.3f}  disk {size / 1e6:8.1f} MB")


if __name__ == "__main__":
    main()
