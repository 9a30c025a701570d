"""Steps that end with the optimizer's: `options={"step": "optimizer"}`."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

import ascend_dump
from ascend_dump import ConfigError

torch = pytest.importorskip("torch")

BY_OPTIMIZER = {"step": "optimizer"}


def train(model: Any, updates: int, accumulate: int = 3) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(updates):
        for _ in range(accumulate):
            model(torch.ones(2, 4)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        model.eval()
        model(torch.zeros(2, 4))
        model.train()


def calls(dump: ascend_dump.Dump) -> dict[Any, int]:
    """Return the number of calls of the layer by step."""
    return dict(Counter(record.step for record in dump.select(op_type="aten::addmm", io="output")))


def test_a_step_holds_all_calls_up_to_the_update(tmp_path: Path) -> None:
    model = torch.nn.Linear(4, 2)
    with ascend_dump.capture(model, path=tmp_path, options=BY_OPTIMIZER, steps="1-2", quiet=True) as cap:
        train(model, 4)
    dump = cap.dump()
    assert calls(dump) == {1: 3, 2: 3}
    for step in (1, 2):
        assert any(record.phase == "other" and "add_" in record.op_type for record in dump.select(step=step))
    zeros = [record for record in dump.select(op_type="aten::addmm", io="input", index=1) if not record.numpy().any()]
    assert not zeros, "what is evaluated between two updates belongs to no step"


def test_a_step_holds_what_follows_the_update(tmp_path: Path) -> None:
    """Such as an average of the parameters; but no evaluation."""
    model = torch.nn.Linear(4, 2)
    average = torch.zeros(2, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with ascend_dump.capture(model, path=tmp_path, options=BY_OPTIMIZER, steps="0-1", quiet=True) as cap:
        for _ in range(2):
            model(torch.ones(2, 4)).sum().backward()
            optimizer.step()
            average.lerp_(model.weight.detach(), 0.1)
            model.eval()
            model(torch.zeros(2, 4))
            average.mul_(1.0)
            model.train()
    averages = cap.dump().select(op_type="aten::lerp_", io="output")
    assert [record.step for record in averages] == [0, 1]
    assert len(cap.dump().select(op_type="aten::mul_")) == 0


def test_without_a_target_too(tmp_path: Path) -> None:
    model = torch.nn.Linear(4, 2)
    with ascend_dump.capture(path=tmp_path, options=BY_OPTIMIZER, steps="0|2", quiet=True) as cap:
        train(model, 3)
    assert set(calls(cap.dump())) == {0, 2}


def test_one_step_without_a_target_has_effect(tmp_path: Path) -> None:
    """No `cap.step()` is missing where the optimizer counts."""
    with ascend_dump.capture(path=tmp_path, options=BY_OPTIMIZER, steps="1", strict=True, quiet=True) as cap:
        train(torch.nn.Linear(4, 2), 3)
    assert cap.dump().steps == [1]


def test_only_the_optimizer_of_the_target_counts(tmp_path: Path) -> None:
    model, other = torch.nn.Linear(4, 2), torch.nn.Linear(4, 2)
    foreign = torch.optim.SGD(other.parameters(), lr=0.1)
    mine = torch.optim.SGD(model.parameters(), lr=0.1)
    with ascend_dump.capture(model, path=tmp_path, options=BY_OPTIMIZER, quiet=True) as cap:
        for _ in range(2):
            model(torch.ones(2, 4)).sum().backward()
            foreign.step()
            model(torch.ones(2, 4)).sum().backward()
            mine.step()
    assert calls(cap.dump()) == {0: 2, 1: 2}


def test_nothing_counts_after_the_block(tmp_path: Path) -> None:
    hooks = sys.modules["torch.optim.optimizer"]._global_optimizer_post_hooks
    before = len(hooks)
    model = torch.nn.Linear(4, 2)
    with ascend_dump.capture(model, path=tmp_path, options=BY_OPTIMIZER, quiet=True):
        train(model, 1)
        assert len(hooks) == before + 1
    assert len(hooks) == before


@pytest.mark.parametrize(("updates", "rest", "told"), [(2, 1, True), (2, 0, False), (3, 1, False)])
def test_a_last_step_that_no_optimizer_ended_is_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, updates: int, rest: int, told: bool
) -> None:
    model = torch.nn.Linear(4, 2)
    with ascend_dump.capture(model, path=tmp_path, options=BY_OPTIMIZER, steps="0-2"):
        train(model, updates)
        for _ in range(rest):
            model(torch.ones(2, 4)).sum().backward()
    [text] = [text for text in caplog.messages if "dumped" in text]
    assert ("the last step was not ended by the optimizer" in text) is told


def test_another_value_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="give 'optimizer'; without it each call"):
        ascend_dump.capture(torch.nn.Linear(1, 1), path=tmp_path, options={"step": "epoch"}).start()


def test_under_the_launcher(tmp_path: Path) -> None:
    program = tmp_path / "train.py"
    program.write_text(
        "import torch\n"
        "model = torch.nn.Linear(4, 2)\n"
        "optimizer = torch.optim.SGD(model.parameters(), lr=0.1)\n"
        "for number in range(8):\n"
        "    model(torch.ones(2, 4)).sum().backward()\n"
        "    if number % 2:\n"
        "        optimizer.step()\n"
    )
    setting = f"path={tmp_path / 'dumps'},steps=1-2,options.step=optimizer,quiet=1"
    environment = {**os.environ, "PYTHONPATH": str(Path(ascend_dump.__file__).parent / "startup" / "site")}
    done = subprocess.run(
        [sys.executable, str(program)],
        env={**environment, "ASCEND_DUMP": setting},
        capture_output=True,
        text=True,
        timeout=900,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert calls(ascend_dump.open(tmp_path / "dumps")) == {1: 2, 2: 2}
