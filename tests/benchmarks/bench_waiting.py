"""The time of a step in a process that waits for `attach`, relative to the same step in a process that does not.

    python tests/benchmarks/bench_waiting.py [--rounds 40] [--clock cpu]

Two processes, one of them started with ASCEND_DUMP=wait, take turns: each round is as many steps as last some tenths of
a second. A step is forward (`eager`), or forward and backward (`train`), of a TransformerEncoder with 2 layers (d=64,
batch 2x16) on one thread, so short that what is done for each call would show; `compiled` is a function of 8 matrix
products given to torch.compile (backend eager). `best` is the ratio of the fastest rounds of both, `median` that of the
ratios of neighbouring rounds. `attached` is the waiting process after it was attached to once and waits again.

--clock cpu counts processor time instead of the time that passes, for where other programs run beside it.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from typing import Any

KINDS = ("eager", "train", "compiled")
CHILD = """
import json, sys, time
import torch

clock = {"wall": time.perf_counter, "cpu": time.process_time}[sys.argv[1]]
torch.manual_seed(0)
torch.set_num_threads(1)
layer = torch.nn.TransformerEncoderLayer(64, 4, 128, dropout=0.0, batch_first=True)
model = torch.nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
x = torch.randn(2, 16, 64)

def eager():
    with torch.inference_mode():
        model(x)

def train():
    model.zero_grad(set_to_none=True)
    model(x).pow(2).mean().backward()

@torch.compile(backend="eager")
def products(value):
    for _ in range(8):
        value = value @ value.transpose(1, 2) @ value
        value = value / value.norm()
    return value

def compiled():
    products(x)

steps = {"eager": eager, "train": train, "compiled": compiled}
for step in steps.values():
    for _ in range(20):
        step()
print("ready", flush=True)
for line in sys.stdin:
    kind, count = line.split()
    step = steps[kind]
    began = clock()
    for _ in range(int(count)):
        step()
    print(json.dumps(clock() - began), flush=True)
"""


class Child:
    def __init__(self, clock: str, **environment: str) -> None:
        kept = {name: value for name, value in os.environ.items() if not name.startswith("ASCEND_DUMP")}
        self.process: Any = subprocess.Popen(
            [sys.executable, "-c", CHILD, clock],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**kept, **environment},
        )
        self.process.stdout.readline()

    def run(self, kind: str, count: int) -> float:
        print(kind, count, file=self.process.stdin, flush=True)
        return float(json.loads(self.process.stdout.readline()))

    def end(self) -> None:
        self.process.communicate()


def measure(plain: Child, waiting: Child, kind: str, rounds: int) -> tuple[float, float, float]:
    """The ratios, and the seconds of one plain step."""
    count = max(int(0.2 / (plain.run(kind, 50) / 50)), 10)
    times: list[tuple[float, float]] = []
    for number in range(rounds):
        if number % 2:  # whoever comes first has no advantage
            late = waiting.run(kind, count)
            times.append((plain.run(kind, count), late))
        else:
            times.append((plain.run(kind, count), waiting.run(kind, count)))
    best = min(late for _, late in times) / min(early for early, _ in times)
    return best, statistics.median(late / early for early, late in times), min(early for early, _ in times) / count


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--clock", choices=["wall", "cpu"], default="wall")
    options = parser.parse_args(argv)
    with tempfile.TemporaryDirectory() as place:
        plain, waiting = Child(options.clock), Child(options.clock, ASCEND_DUMP="wait", XDG_RUNTIME_DIR=place)
        if not os.path.isdir(f"{place}/ascend-dump"):
            raise SystemExit("the process does not wait: install ascend_dump into this environment")
        print(f"{'row':22} {'best':>6} {'median':>7} {'us/step':>8}")

        def tell(name: str) -> None:
            for kind in KINDS:
                best, median, seconds = measure(plain, waiting, kind, options.rounds)
                print(f"{f'{name} {kind}':22} {best:5.3f}x {median:6.3f}x {seconds * 1e6:8.0f}", flush=True)

        tell("waiting")
        environment = {**os.environ, "XDG_RUNTIME_DIR": place}
        command = [sys.executable, "-m", "ascend_dump", "attach", str(waiting.process.pid), "--steps", "0", "--quiet"]
        attached = [*command, "--path", f"{place}/dumps", "--no-wait"]
        subprocess.run(attached, env=environment, check=True, stderr=subprocess.DEVNULL)
        for _ in range(2):
            waiting.run("eager", 1)
        tell("attached")
        plain.end()
        waiting.end()
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
