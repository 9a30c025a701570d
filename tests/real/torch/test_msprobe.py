"""Dumps that the installed mindstudio-probe writes are read, and compared with ours of the same program."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import ascend_dump

pytest.importorskip("msprobe")

PROGRAM = """
import sys
import torch
from torch.nn import functional as F

torch.set_num_threads(1)
torch.manual_seed(0)


class Block(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = torch.nn.LayerNorm(16)
        self.up = torch.nn.Linear(16, 32)
        self.down = torch.nn.Linear(32, 16)

    def forward(self, x):
        return x + self.down(F.gelu(self.up(self.norm(x))))


net = torch.nn.Sequential(Block(), Block(), torch.nn.Linear(16, 4))
x, target = torch.randn(5, 16), torch.randint(0, 4, (5,))
if "wrong" in sys.argv:
    net[1].norm.eps = 1e-2


def step():
    F.cross_entropy(net(x), target).backward()
"""
OURS = """
import ascend_dump
with ascend_dump.capture(net, path=sys.argv[1]):
    step()
"""
THEIRS = """
from msprobe.pytorch import PrecisionDebugger
debugger = PrecisionDebugger(config_path=sys.argv[1])
debugger.start(model=net)
step()
debugger.stop()
debugger.step()
"""


def run(text: str, place: Path, *arguments: str) -> Path:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM + text, str(place), *arguments],
        capture_output=True, text=True, timeout=900, cwd=place.parent,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return place


def by_msprobe(place: Path, task: str, level: str, *arguments: str, **settings: Any) -> Path:
    config = {"task": task, "dump_path": str(place), "rank": [], "step": [0], "level": level}
    config[task] = {"scope": [], "list": [], "data_mode": ["all"], **settings}
    file = place.parent / f"{place.name}.json"
    file.write_text(json.dumps(config))
    run(THEIRS, file, *arguments)
    return place


@pytest.mark.parametrize("level", ["L0", "L1", "mix"])
def test_every_tensor_is_read(level: str, tmp_path: Path) -> None:
    dump = ascend_dump.open(by_msprobe(tmp_path / "theirs", "tensor", level))
    files = list((tmp_path / "theirs").rglob("*.pt"))
    assert len(dump) == len(files) > 20
    assert dump.errors() == []
    for record in dump:
        assert record.numpy().shape == record.shape
        numbers = record.recorded_statistics()
        assert numbers is not None
        assert numbers.max == record.numpy().max()


@pytest.mark.parametrize("mode", ["statistics", "md5"])
def test_statistics_and_hashes(mode: str, tmp_path: Path) -> None:
    first = by_msprobe(tmp_path / "first", "statistics", "L1", summary_mode=mode)
    again = by_msprobe(tmp_path / "again", "statistics", "L1", summary_mode=mode)
    found = ascend_dump.compare(again, first)
    assert found.verdict == ("equal" if mode == "md5" else "undecided")
    assert not found.origins


@pytest.mark.parametrize("level", ["L1", "mix"])
def test_a_program_dumped_by_both_is_the_same(level: str, tmp_path: Path) -> None:
    ours, theirs = run(OURS, tmp_path / "ours"), by_msprobe(tmp_path / "theirs", "tensor", level)
    found = ascend_dump.compare(ours, theirs)
    assert found.origins == ()
    assert {pair.verdict for pair in found.pairs} <= {"equal", "noise", "unmatched"}
    names = {
        pair.reference.op_name for pair in found.pairs if pair.reference is not None and pair.verdict != "unmatched"
    }
    # The loss too, which is several operators of PyTorch.
    assert {f"Functional.linear.{number}.forward" for number in range(5)} | {
        "Functional.cross_entropy.0.forward"
    } <= names
    assert "unmatched" not in found.counts


@pytest.mark.parametrize("level", ["L1", "mix"])
def test_statistics_alone_find_their_partners(level: str, tmp_path: Path) -> None:
    """They cannot prove that tensors are equal."""
    ours, theirs = run(OURS, tmp_path / "ours"), by_msprobe(tmp_path / "theirs", "statistics", level)
    found = ascend_dump.compare(ours, theirs)
    assert set(found.counts) == {"undecided"}
    assert found.origins == ()
    same = {
        (pair.actual.op_name, pair.reference.op_name)
        for pair in found.pairs
        if pair.actual is not None and pair.reference is not None
    }
    assert {
        ("0.up/addmm_0", "Functional.linear.0.forward"),
        ("0/gelu_0", "Functional.gelu.0.forward"),
        ("1.norm/native_layer_norm_0", "Functional.layer_norm.1.forward"),
        ("nll_loss_forward_0", "Functional.cross_entropy.0.forward"),
        ("1.down/sum_0", "Functional.linear.3.backward"),
        ("1.up/mm_1", "Functional.linear.2.backward"),
    } <= same


def test_a_wrong_epsilon_is_found_by_statistics(tmp_path: Path) -> None:
    ours, theirs = run(OURS, tmp_path / "ours", "wrong"), by_msprobe(tmp_path / "theirs", "statistics", "L1")
    [origin] = ascend_dump.compare(ours, theirs).origins
    assert (origin.op_name, origin.kind) == ("1.norm/native_layer_norm_0", "compute")
    assert "statistics of its inputs agree" in origin.evidence


def test_a_wrong_epsilon_is_found_against_a_dump_of_msprobe(tmp_path: Path) -> None:
    ours, theirs = run(OURS, tmp_path / "ours", "wrong"), by_msprobe(tmp_path / "theirs", "tensor", "L1")
    [first] = ascend_dump.compare(ours, theirs).origins
    assert (first.op_name, first.kind) == ("1.norm/native_layer_norm_0", "compute")
