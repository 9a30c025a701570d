"""The cost of the first round of `ascend-dump triage --run`, which looks at losses, gradients and parameters.

    python tests/benchmarks/bench_watching.py [--steps 200]

A step is forward, backward and AdamW of a transformer on one thread: `medium` has 4 layers (d=512, batch 8x128),
`small` 4 layers (d=128, batch 4x32). Every second step is watched, so both kinds see the same load of the machine.
`ratio` is the median over pairs of steps, in processor time.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from pathlib import Path

import torch
from ascend_dump_torch._step_summary import StepOutline
from ascend_dump_torch._value_hooks import follow_values

SIZES = {"medium": (512, 8, 128), "small": (128, 4, 32)}
_WARM = 6


def measure(name: str, steps: int, directory: Path) -> None:
    width, batch, length = SIZES[name]
    torch.manual_seed(0)
    layer = torch.nn.TransformerEncoderLayer(width, 4, 4 * width, dropout=0.0, batch_first=True)
    model = torch.nn.TransformerEncoder(layer, 4, enable_nested_tensor=False)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    x, y = torch.randn(batch, length, width), torch.randn(batch, length, width)
    outline = StepOutline(directory, until_wrong=True)
    outline.abandon()  # its hooks are set below, for every second step
    outline.over = ""
    times: dict[bool, list[float]] = {False: [], True: []}
    for number in range(2 * (_WARM + steps)):
        watched = bool(number % 2)
        end = follow_values(outline) if watched else lambda: None
        began = time.thread_time()
        if watched:
            outline.begin(number // 2)
        optimizer.zero_grad()
        output = model(x)
        if watched:
            outline.returned(model, output)
        loss = (output - y).square().mean()
        loss.backward()
        optimizer.step()
        loss.item()
        times[watched].append(time.thread_time() - began)
        end()
    outline.finish("ended")
    plain, watched_times = times[False][_WARM:], times[True][_WARM:]
    ratio = statistics.median(after / before for before, after in zip(plain, watched_times))
    print(f"{name:7} plain {statistics.median(plain) * 1e3:.1f} ms  watched, ratio {ratio:.3f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=200)
    options = parser.parse_args()
    torch.set_num_threads(1)
    for name in SIZES:
        with tempfile.TemporaryDirectory() as directory:
            measure(name, options.steps if name == "small" else options.steps // 8, Path(directory))


if __name__ == "__main__":
    main()
