"""`ascend-dump triage --run` on losses that spike, are zero, or do not fall."""

from __future__ import annotations

import json
import subprocess
import textwrap
from pathlib import Path
from typing import Any

import pytest
from preloaded import COMPILER, write_python

pytestmark = pytest.mark.thorough

pytest.importorskip("torch")

HEAD = """
    import torch
    from torch.nn import functional as F
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Tanh(), torch.nn.Linear(16, 1, bias=False))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    steps, scale = 24, 1.0
"""
LOOP = """
    for step in range(steps):
        x = torch.randn(16, 8) * scale
        optimizer.zero_grad()
        loss = (model(x) - x.sum(1, keepdim=True)).pow(2).mean()
        loss.backward()
        optimizer.step()
"""


class Training:
    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.file = directory / "train.py"
        self.python = str(write_python(directory / "python", COMPILER))

    def line_of(self, part: str) -> str:
        lines = self.file.read_text().splitlines()
        return f"{self.file}:{next(number for number, line in enumerate(lines, 1) if part in line)}"

    def triage(self, head: str, loop: str, *options: str) -> tuple[int, dict[str, Any]]:
        self.file.write_text(textwrap.dedent(HEAD) + textwrap.dedent(head) + textwrap.dedent(loop))
        words = ["-m", "ascend_dump", "triage", "--json", "--path", str(self.directory / "t"), *options, "--run"]
        command = [self.python, *words, "--", self.python, str(self.file)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=900, cwd=self.directory, check=False)
        assert done.stdout.startswith("{"), done.stderr
        return done.returncode, json.loads(done.stdout)


@pytest.fixture
def training(tmp_path: Path) -> Training:
    return Training(tmp_path)


def test_a_learning_rate_that_jumps_is_the_arguments_of_the_optimizer_step(training: Training) -> None:
    step = "        optimizer.param_groups[0]['lr'] = 0.05 if step < 15 else 200.0\n"
    code, found = training.triage("", LOOP.replace("        optimizer.step()", step + "        optimizer.step()"))
    assert code == 1
    assert found["cause"]["op_type"] == "aten::add_"
    assert (found["cause"]["step"], found["cause"]["source"]) == (15, training.line_of("optimizer.step()"))
    assert found["why"].startswith("lr of the optimizer is 200 in step 15, 0.05 before, x4000; the loss rises to ")


def test_a_batch_that_is_larger_than_the_others_is_named(training: Training) -> None:
    loop = LOOP.replace("* scale", "* (400.0 if step == 15 else 1.0)")
    code, found = training.triage("", loop, "--symptom", "spike")
    assert code == 1
    assert (found["cause"]["op_type"], found["cause"]["source"]) == ("aten::mul", training.line_of("x = torch.randn"))
    assert "the loss rises to" in found["why"]


@pytest.mark.parametrize(
    ("head", "loss", "operator", "why"),
    [
        ("", "((model(x) - 5).relu() ** 2).mean()", "aten::relu", "input 0 has values from -"),
        ("", "((model(x) ** 2).squeeze(1) * (x[:, 0] > 99)).sum()", "aten::gt", "input 0 has values from -"),
        (
            "model[2] = torch.nn.Linear(16, 3)",
            "F.cross_entropy(model(x), torch.full((16,), -100), reduction='none').sum()",
            "aten::nll_loss_forward",
            "input 1 has the value -100 everywhere",
        ),
    ],
)
def test_the_operator_that_makes_a_loss_zero(head: str, loss: str, operator: str, why: str, training: Training) -> None:
    loop = LOOP.replace("(model(x) - x.sum(1, keepdim=True)).pow(2).mean()", loss)
    code, found = training.triage(head, loop)
    assert code == 1
    assert found["cause"]["op_type"] == operator
    assert found["cause"]["source"] == training.line_of("loss = ")
    assert why in found["why"]
    assert "the loss is exactly 0 from step 0 on" in found["why"]


@pytest.mark.parametrize(
    ("head", "loop", "line", "why"),
    [
        (
            "optimizer.param_groups[0]['lr'] = 0.0",
            LOOP.replace("loss.backward()\n        optimizer", "loss.backward(); optimizer"),
            "optimizer.step()",
            "the learning rate of the optimizer is 0",
        ),
        (
            "",
            LOOP.replace("loss.backward()", "loss.backward(); torch.nn.utils.clip_grad_norm_(model.parameters(), 0.0)"),
            "clip_grad_norm_",
            "the program passes the constant other=0.0",
        ),
        ("torch.nn.init.constant_(model[0].bias, -99.0); model[1] = torch.nn.ReLU()", LOOP, "loss = ", "relu"),
        (
            "optimizer = torch.optim.SGD(model[0].parameters(), lr=0.1)",
            LOOP.replace("model(x)", "model[2](model[1](model[0](x)).detach())"),
            "detach()",
            "no parameter of the optimizer has a gradient",
        ),
        (
            "model[2] = torch.nn.Linear(16, 1); model[0].requires_grad_(False)",
            LOOP,
            "optimizer.step()",
            "no parameter of the optimizer has a gradient",
        ),
    ],
)
def test_what_keeps_the_parameters_from_moving(head: str, loop: str, line: str, why: str, training: Training) -> None:
    code, found = training.triage(head, loop)
    assert code == 1
    assert found["cause"]["source"] == training.line_of(line)
    assert why in found["why"] or why in found["cause"]["op_type"]
    assert found["cause"]["op_type"] != "aten::ones_like", "the backward pass begins with it"
    assert "no parameter changes in 24 optimizer steps" in found["why"]


HEALTHY = {
    "warm restarts": (
        "steps = 60\nschedule = torch.optim.lr_scheduler.CosineAnnealingWarmRestarts(optimizer, 10, eta_min=1e-6)",
        LOOP + "        schedule.step()\n",
    ),
    "hinge": ("", LOOP.replace("(model(x) - x.sum(1, keepdim=True)).pow(2).mean()", "(2 - model(x)).relu().mean()")),
    "noisy rewards": (
        "steps = 60\nrewards = torch.distributions.Pareto(1.0, 1.5)",
        LOOP.replace("(model(x) - x.sum(1, keepdim=True)).pow(2)", "(model(x).squeeze(1) * rewards.sample((16,)))"),
    ),
    "ends with zero": (
        "optimizer.param_groups[0]['lr'] = 1.0",
        LOOP.replace("(model(x) - x.sum(1, keepdim=True)).pow(2).mean()", "(2 - model(x).square()).relu().mean()"),
    ),
}


@pytest.mark.parametrize("name", HEALTHY)
def test_a_healthy_training_has_no_cause(name: str, training: Training) -> None:
    code, found = training.triage(*HEALTHY[name])
    assert found["cause"] is None, found["why"]
    assert code == 0


def test_a_symptom_that_is_not_there_is_not_found(training: Training) -> None:
    code, found = training.triage("", LOOP, "--symptom", "spike")
    assert (code, found["cause"]) == (3, None)
    assert "not found: no spike in the losses of these steps" in found["reasons"]
