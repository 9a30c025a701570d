"""The time of a captured step relative to a plain step measured in turns with it, for ascend_dump and msprobe.

    python tests/benchmarks/bench_capture.py [--models transformer small llama] [--rounds 4] [--dir DIR] [--clock cpu]

The step is forward and backward of a 4-layer TransformerEncoder (d=512, batch 8x128) or a
ResNet-18-like convnet (batch 8x3x128x128) on 2 threads, or of a TransformerEncoder whose operators
are so short that nothing counts but what each of them costs (d=128, 4 heads, 256, batch 4x32) on
one. `llama` is the Llama of the transformers package, as short (hidden size 128, 4 layers, batch 4x32), whose step
includes AdamW. `+sgd` rows add an optimizer step, so that no tensor of a step equals one of the step before.
A captured block of 3 steps is timed from
entry to exit, its files included, and alternates with 3 plain steps. `best` is the ratio of the
fastest of both; `median` that of the ratios between a block and the plain steps around it, which
a machine that slows down meanwhile does not change. Each row runs in its own process, because the
peer patches PyTorch for good. The peer is mindstudio-probe (msprobe), level L1.

--clock cpu counts the processor time of all threads instead of the time that passes: what is left to look at
where other programs run beside it. A writer that works while the program waits costs there what it costs.

`an empty mode` is a dispatch mode of PyTorch that does nothing but call each operator: what no tool in Python that sees
every operator can be below. It differs much between machines: of the small transformer 1.43x on one, 1.63x on another.

`write` is the time to write the row's distinct bytes to one file, in plain steps: what no writer
that waits for the file system can be below.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, Callable

STEPS = 3
ROWS = {
    "ours tensor": ("ours", "tensor", False),
    "ours tensor +sgd": ("ours", "tensor", True),
    "ours stats": ("ours", "stats", False),
    "ours stats +sgd": ("ours", "stats", True),
    "ours modules": ("ours", "module", False),
    "ours modules +sgd": ("ours", "module", True),
    "ours overflow": ("ours", "overflow", False),
    "ours unselected": ("ours", "unselected", False),
    "ours after the block": ("ours", "after", False),
    "an empty mode": ("none", "empty", False),
    "peer tensor": ("peer", "tensor", False),
    "peer statistics": ("peer", "statistics", False),
}


def make_model(name: str) -> tuple[Any, Any]:
    import torch
    from torch import nn

    torch.manual_seed(0)
    if name == "llama":
        from transformers import LlamaConfig, LlamaForCausalLM

        sizes = {"hidden_size": 128, "intermediate_size": 344, "num_hidden_layers": 4, "num_attention_heads": 4}
        network = LlamaForCausalLM(LlamaConfig(vocab_size=1000, **sizes))

        class Logits(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.network = network

            def forward(self, tokens: Any) -> Any:
                return self.network(input_ids=tokens, use_cache=False).logits

        return Logits(), torch.randint(0, 1000, (4, 32))
    if name in ("transformer", "small"):
        width, heads, inner, rows, columns = (512, 8, 2048, 8, 128) if name == "transformer" else (128, 4, 256, 4, 32)
        layer = nn.TransformerEncoderLayer(width, heads, inner, dropout=0.0, batch_first=True)
        return nn.TransformerEncoder(layer, 4, enable_nested_tensor=False), torch.randn(rows, columns, width)

    class Block(nn.Module):
        def __init__(self, inner: int, outer: int, stride: int = 1) -> None:
            super().__init__()
            self.conv1 = nn.Conv2d(inner, outer, 3, stride, 1, bias=False)
            self.conv2 = nn.Conv2d(outer, outer, 3, 1, 1, bias=False)
            self.norm1, self.norm2 = nn.BatchNorm2d(outer), nn.BatchNorm2d(outer)
            self.relu = nn.ReLU()
            same = inner == outer and stride == 1
            self.shortcut = (
                nn.Sequential()
                if same
                else nn.Sequential(nn.Conv2d(inner, outer, 1, stride, bias=False), nn.BatchNorm2d(outer))
            )

        def forward(self, x: Any) -> Any:
            y = self.relu(self.norm1(self.conv1(x)))
            return self.relu(self.norm2(self.conv2(y)) + self.shortcut(x))

    head = [nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64), nn.ReLU(), nn.MaxPool2d(3, 2, 1)]
    blocks = [Block(64, 64), Block(64, 64), Block(64, 128, 2), Block(128, 128)]
    blocks += [Block(128, 256, 2), Block(256, 256), Block(256, 512, 2), Block(512, 512)]
    tail = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, 1000)]
    return nn.Sequential(*head, *blocks, *tail), torch.randn(8, 3, 128, 128)


def measure(model_name: str, row: str, rounds: int, directory: Path) -> dict[str, Any]:
    import torch

    tool, mode, with_optimizer = ROWS[row]
    torch.set_num_threads(1 if model_name in ("small", "llama") else 2)
    model, x = make_model(model_name)
    x.requires_grad_(x.is_floating_point())
    with_optimizer |= model_name == "llama"
    optimizer: Any = (torch.optim.AdamW if model_name == "llama" else torch.optim.SGD)(model.parameters(), lr=1e-3)

    def step() -> None:
        model.zero_grad(set_to_none=True)
        model(x).float().pow(2).mean().backward()
        if with_optimizer:
            optimizer.step()

    blocks = {"ours": _our_block, "peer": _peer_block, "none": _empty_block}
    block, after = blocks[tool](model, step, mode, directory)

    def plain_block() -> None:
        for _ in range(STEPS):
            step()

    found: dict[str, Any] = {}
    plain_block()
    directory.mkdir(parents=True)
    # The first block compiles kernels and touches memory for the first time.
    block()
    plain, captured = [_time(plain_block)], []
    for _ in range(rounds):
        shutil.rmtree(directory, ignore_errors=True)
        directory.mkdir(parents=True)
        captured.append(_time(block if mode != "after" else plain_block))
        if mode == "after":
            block()
        found = after()
        plain.append(_time(plain_block))
    around = [(before + then) / 2 for before, then in zip(plain, plain[1:])]
    files = [path for path in directory.rglob("*") if path.is_file() and path.name != "manifest.json"]
    written = sum(path.stat().st_size for path in files)
    result = {
        "best": min(captured) / min(plain),
        "median": statistics.median(one / other for one, other in zip(captured, around)),
        "files": len(files) / STEPS,
        "written": written / STEPS,
        "write": _write_floor(written, directory) / min(plain) if written else 0.0,
        "overhead": (min(captured) - min(plain)) / STEPS,
        **found,
    }
    result.setdefault("logical", result["written"])
    return result


def _our_block(
    model: Any, step: Callable[[], None], mode: str, directory: Path
) -> tuple[Callable[[], None], Callable[[], dict[str, Any]]]:
    import ascend_dump

    paths: list[Path] = []

    def block() -> None:
        settings: dict[str, Any] = {"steps": "1000" if mode == "unselected" else "all", "quiet": True}
        if mode == "overflow":
            settings["scene"] = mode
        elif mode == "module":
            settings["level"] = mode
        else:
            settings["data"] = "stats" if mode == "stats" else "tensor"
        with ascend_dump.capture(model, path=directory, **settings) as cap:
            for _ in range(STEPS):
                step()
        paths.append(cap.path)

    def after() -> dict[str, Any]:
        manifest = json.loads((paths[-1] / "manifest.json").read_bytes())
        if manifest["state"] != "complete":
            raise SystemExit(f"the capture is {manifest['state']}: {manifest['failure']}")
        return {"logical": manifest["logical_bytes"] / STEPS}

    import logging

    logging.getLogger("ascend_dump").setLevel(logging.ERROR)  # an unselected block warns that it wrote nothing
    return block, after


def _empty_block(
    model: Any, step: Callable[[], None], mode: str, directory: Path
) -> tuple[Callable[[], None], Callable[[], dict[str, Any]]]:
    from torch.utils._python_dispatch import TorchDispatchMode

    class EmptyMode(TorchDispatchMode):
        supports_higher_order_operators = True

        @classmethod
        def _should_skip_dynamo(cls) -> bool:
            return False  # as ours: otherwise PyTorch wraps the method below

        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            return func(*args, **(kwargs or {}))

    def block() -> None:
        with EmptyMode():
            for _ in range(STEPS):
                step()

    return block, dict


def _peer_block(
    model: Any, step: Callable[[], None], mode: str, directory: Path
) -> tuple[Callable[[], None], Callable[[], dict[str, Any]]]:
    scope: dict[str, Any] = {"scope": [], "list": [], "data_mode": ["all"]}
    config = {
        "task": mode,
        "dump_path": str(directory),
        "rank": [],
        "step": [],
        "level": "L1",
        "risk_level": "ALL",
        "statistics": {**scope, "summary_mode": "statistics"},
        "tensor": scope,
    }
    file = directory.with_suffix(".json")
    file.write_text(json.dumps(config))
    from msprobe.pytorch import PrecisionDebugger

    debugger = PrecisionDebugger(config_path=str(file))

    def block() -> None:
        for _ in range(STEPS):
            debugger.start(model=model)
            step()
            debugger.stop()
            debugger.step()

    return block, dict


#: Set by --clock, in the process of each row.
_clock = time.perf_counter


def _time(function: Callable[[], None]) -> float:
    begin = _clock()
    function()
    return _clock() - begin


def _write_floor(nbytes: int, directory: Path) -> float:
    piece = os.urandom(8 << 20)

    def write() -> None:
        with open(directory / "floor", "wb", buffering=0) as file:
            for _ in range(max(nbytes // len(piece), 1)):
                file.write(piece)
        (directory / "floor").unlink()

    return min(_time(write) for _ in range(2))


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", default=["transformer", "convnet", "small", "llama"])
    parser.add_argument("--rows", nargs="+", default=list(ROWS), choices=list(ROWS))
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--dir", type=Path, help="where to write; a fast file system shows our cost, not the disk's")
    parser.add_argument("--clock", choices=["wall", "cpu"], default="wall")
    parser.add_argument("--measure", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args(argv)
    if options.measure:
        if options.clock == "cpu":
            global _clock
            _clock = time.process_time
        print(json.dumps(measure(*options.measure, options.rounds, options.dir)))
        return 0
    print(
        f"{'model':12} {'row':22} {'best':>6} {'median':>7} {'files/step':>10} {'MB/step':>8} {'write':>6} {'GB/s':>6}"
    )
    failed = 0
    for model in options.models:
        for row in options.rows:
            with tempfile.TemporaryDirectory(dir=options.dir) as directory:
                command = [sys.executable, __file__, "--measure", model, row, "--rounds", str(options.rounds)]
                command += ["--clock", options.clock]
                done = subprocess.run(
                    [*command, "--dir", f"{directory}/dump"], capture_output=True, text=True, check=False
                )
            if done.returncode:
                lines = done.stderr.strip().splitlines() or ["no message"]
                missing = any(f"No module named '{name}'" in lines[-1] for name in ("msprobe", "transformers"))
                print(f"{model:12} {row:22} {'not installed' if missing else lines[-1]}")
                failed += not missing
                continue
            found = json.loads(done.stdout.splitlines()[-1])
            # Beside noise there is nothing to divide by.
            speed = found["logical"] / found["overhead"] / 1e9 if found["best"] > 1.05 else None
            print(
                f"{model:12} {row:22} {found['best']:5.2f}x {found['median']:6.2f}x {found['files']:10.1f} "
                f"{found['written'] / 1e6:8.1f} {found['write']:5.2f}x {'-' if speed is None else f'{speed:.1f}':>6}",
                flush=True,
            )
    print("GB/s: bytes of all records of a step, per second that the step takes longer")
    return 1 if failed else 0


if __name__ == "__main__":
    raise SystemExit(main())
