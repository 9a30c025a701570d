"""`ascend-dump triage --run`: how often the faulty operator is found, and the time and disk space that it takes.

    python tests/benchmarks/bench_triage.py [--trials 20] [--steps 4000] [--seed 0] [--dir DIR] [--only nan constant]

nan       a transformer is trained; in a random step an operator of a random layer makes NaN or Inf, in the forward
          pass, in the backward pass or in the loss. One command has to name step and operator. `wall` and `CPU` are
          those of the command against one plain run of all steps, which is run right before it; `disk` is what the
          command wrote against a dump of the tensors of three steps.
constant  one constant of a random operator is wrong, and another program has it right. `bytes` is what the command
          wrote against dumps of the tensors of one step of both programs.
"""

from __future__ import annotations

import argparse
import json
import random
import resource
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple

PROGRAM = """
import json, sys
import torch
from torch import nn

given = json.loads(sys.argv[1])
torch.manual_seed(given["seed"])
torch.set_num_threads(1)
WIDTH, BATCH, LENGTH, LAYERS = given["width"], given["batch"], given["length"], 3
now = {"fault": False, "layer": given.get("layer"), "kind": given.get("kind")}


def wrong(kind, layer):
    return now["fault"] and now["kind"] == kind and now["layer"] == layer


class Gate(nn.Module):
    def __init__(self, layer):
        super().__init__()
        self.layer = layer

    def forward(self, x):
        divisor = torch.ones(x.shape[0], 1, 1)
        if wrong("forward", self.layer):
            divisor[1] = 0
        return x / divisor * (given["constant"] if wrong("scale", self.layer) else 1.0)


class Length(nn.Module):
    def __init__(self, layer):
        super().__init__()
        self.layer = layer

    def forward(self, x):
        mask = torch.ones(x.shape[0], 1, 1)
        if wrong("backward", self.layer):
            mask[2] = 0
        return (x * mask).pow(2).sum(-1, keepdim=True).sqrt()


class Layer(nn.Module):
    def __init__(self, layer):
        super().__init__()
        self.layer = layer
        self.norm = nn.LayerNorm(WIDTH)
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)
        self.out = nn.Linear(WIDTH, WIDTH)
        self.up = nn.Linear(WIDTH, 2 * WIDTH)
        self.down = nn.Linear(2 * WIDTH, WIDTH)
        self.gate, self.size = Gate(layer), Length(layer)

    def forward(self, x):
        if wrong("epsilon", self.layer):
            self.norm.eps = given["constant"]
        q, k, v = (one.unflatten(-1, (4, -1)).transpose(1, 2) for one in self.qkv(self.norm(x)).chunk(3, -1))
        y = nn.functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)
        x = x + self.gate(self.out(y))
        hidden = self.up(x)
        slope = given["constant"] if wrong("slope", self.layer) else 0.01
        return x + self.down(nn.functional.leaky_relu(hidden, slope)) / (1 + self.size(x))


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Linear(8, WIDTH)
        self.layers = nn.ModuleList(Layer(number) for number in range(LAYERS))
        self.head = nn.Linear(WIDTH, 4)

    def forward(self, x):
        x = self.embed(x)
        for layer in self.layers:
            x = layer(x)
        return self.head(x)


model = Net()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-4)
for step in range(given["steps"]):
    now["fault"] = given.get("step") in (step, "all")
    x = torch.randn(BATCH, LENGTH, 8)
    optimizer.zero_grad()
    share = torch.softmax(model(x), -1)[..., 0]
    if wrong("loss", None):
        share = share * 0
    loss = -torch.log(share).mean()
    loss.backward()
    optimizer.step()
"""


class Fault(NamedTuple):
    """What is planted, and the operator that has to be named."""

    kind: str
    layer: Any
    operator: str


class Cost(NamedTuple):
    code: int
    printed: str
    wall: float
    cpu: float


def run(*command: str) -> Cost:
    """Wall time and processor time of a command and all that it starts."""
    before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    wall, after = time.perf_counter() - began, resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return Cost(done.returncode, done.stdout, wall, cpu)


def size_of(place: Path) -> int:
    return sum(file.stat().st_size for file in place.rglob("*") if file.is_file())


def dump(place: Path, steps: str, command: list[str]) -> int:
    """Bytes of a dump of all tensors of these steps."""
    shutil.rmtree(place, ignore_errors=True)
    done = run(sys.executable, "-m", "ascend_dump", "run", "--path", str(place), "--steps", steps, "--", *command)
    assert done.code == 0
    return size_of(place)


def program(directory: Path, given: dict[str, Any]) -> list[str]:
    file = directory / "program.py"
    file.write_text(PROGRAM)
    return [sys.executable, str(file), json.dumps(given)]


def triage(place: Path, options: list[str], command: list[str]) -> tuple[Cost, dict[str, Any]]:
    shutil.rmtree(place, ignore_errors=True)
    mine = ["triage", "--json", "--path", str(place), *options, "--run", "--", *command]
    done = run(sys.executable, "-m", "ascend_dump", *mine)
    found = json.loads(done.printed)
    return done, found.get("cause") or {}


def nan(directory: Path, trials: int, steps: int, chance: random.Random) -> None:
    shape = {"width": 32, "batch": 4, "length": 16, "steps": steps}
    three = dump(directory / "full", "0-2", program(directory, {**shape, "steps": 4, "seed": 0}))
    print(f"NaN in one of {steps} steps; tensors of three steps: {three / 1e6:.1f} MB")
    right, ratios = 0, []
    for trial in range(trials):
        layer = chance.randrange(3)
        fault = chance.choice(
            [
                Fault("forward", layer, f"layers.{layer}.gate/div_0"),
                Fault("backward", layer, f"layers.{layer}.size/div_0"),
                Fault("loss", None, "log_0"),
            ]
        )
        step = chance.randrange(steps)
        given = {**shape, "seed": trial, "step": step, "kind": fault.kind, "layer": fault.layer}
        command = program(directory, given)
        plain = run(*command)
        cost, cause = triage(directory / "triage", [], command)
        is_right = (cause.get("op_name"), cause.get("step")) == (fault.operator, step)
        right += is_right
        ratio = (cost.wall / plain.wall, cost.cpu / plain.cpu, size_of(directory / "triage") / three)
        ratios.append(ratio)
        said = f"{cause.get('op_name')} in step {cause.get('step')}"
        numbers = f"wall x{ratio[0]:.2f}  CPU x{ratio[1]:.2f}  disk x{ratio[2]:.2f} of three steps"
        planted = f"{fault.operator} in step {step}"
        print(f"  {'right' if is_right else 'WRONG'}  {planted:32} {said:32} {numbers}", flush=True)
    most = [max(column) for column in zip(*ratios)]
    print(f"  {right} of {trials} right; at most wall x{most[0]:.2f}, CPU x{most[1]:.2f}, disk x{most[2]:.2f}")


def constant(directory: Path, trials: int, chance: random.Random) -> None:
    shape = {"width": 128, "batch": 16, "length": 32, "steps": 3}
    print("a wrong constant against a reference program")
    right, shares = 0, []
    for trial in range(trials):
        layer = chance.randrange(3)
        fault, value = chance.choice(
            [
                (Fault("scale", layer, f"layers.{layer}.gate/mul_0"), 1 + chance.choice([-1, 1]) * 0.003),
                (Fault("epsilon", layer, f"layers.{layer}.norm/native_layer_norm_0"), chance.choice([1e-3, 1e-2])),
                (Fault("slope", layer, f"layers.{layer}/leaky_relu_0"), chance.choice([0.011, 0.02])),
            ]
        )
        base = {**shape, "seed": trial, "kind": fault.kind, "layer": layer, "constant": value}
        reference, command = program(directory, base), program(directory, {**base, "step": "all"})
        full = dump(directory / "full", "0", command) + dump(directory / "full", "0", reference)
        _, cause = triage(directory / "triage", ["--reference", shlex.join(reference)], command)
        is_right = (cause.get("op_name"), cause.get("step")) == (fault.operator, 0)
        right += is_right
        shares.append(size_of(directory / "triage") / full)
        planted = f"{fault.operator} {value:.4g}"
        said = f"{cause.get('op_name')} in step {cause.get('step')}"
        print(f"  {'right' if is_right else 'WRONG'}  {planted:44} {said:44} bytes {shares[-1]:.1%}", flush=True)
    print(
        f"  {right} of {trials} right; at most {max(shares):.1%} of the bytes of two full dumps ({full / 1e6:.1f} MB)"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trials", type=int, default=20)
    parser.add_argument("--steps", type=int, default=4000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--dir", type=Path, default=None)
    parser.add_argument("--only", nargs="*", default=["constant", "nan"])
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=given.dir) as directory:
        if "constant" in given.only:
            constant(Path(directory), given.trials, random.Random(given.seed))
        if "nan" in given.only:
            nan(Path(directory), given.trials, given.steps, random.Random(given.seed))


if __name__ == "__main__":
    main()
