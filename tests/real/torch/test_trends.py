"""`trends` of a small GPT-2: a spike of the learning rate, a changed eps, healthy seeds, and TensorBoard's reader."""

from __future__ import annotations

import math
import stat
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Optional

import pytest
import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from transformers import GPT2Config, GPT2LMHeadModel

import ascend_dump
from ascend_dump.cli import Exit, main

NORM = "transformer.h.1.ln_2"
STEPS, LATE = 30, 20


def train(
    path: Path, seed: int, *, rate: float = 1e-3, eps: Optional[float] = None, capture: Optional[dict[str, Any]] = None
) -> Path:
    """Train for 30 steps. rate: the learning rate in step 20 alone. eps: of one norm, from step 20 on."""
    torch.manual_seed(seed)
    model = GPT2LMHeadModel(GPT2Config(n_layer=2, n_head=2, n_embd=32, vocab_size=101, n_positions=32))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    settings = {"data": "stats", "level": "module", **(capture or {})}
    with ascend_dump.capture(model, path=path, quiet=True, strict=True, **settings):
        for step in range(STEPS):
            tokens = torch.randint(0, 101, (4, 16))
            optimizer.param_groups[0]["lr"] = rate if step == LATE else 1e-3
            if eps is not None and step == LATE:
                model.get_submodule(NORM).eps = eps
            model(tokens, labels=tokens).loss.backward()
            optimizer.step()
            optimizer.zero_grad()
    return path


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Iterator[None]:
    """Operators this short wait for their threads longer than they run, beside other programs."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def healthy(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    return [train(tmp_path_factory.mktemp("healthy"), seed) for seed in range(3)]


@pytest.fixture(scope="module")
def spiked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return train(tmp_path_factory.mktemp("spiked"), 0, rate=0.5)


def test_a_spike_of_the_learning_rate_names_step_and_parameter(spiked: Path, capsys: Any) -> None:
    found = ascend_dump.trends(spiked)
    curve, spike = found.spikes[0]
    assert (spike.step, curve.quantity, curve.name) == (LATE, "update_ratio", "transformer.wte.weight")
    # AdamW divides by the root of the second moment: the update follows the learning rate, which is 500 times as large.
    assert 200 < spike.times < 1000
    assert {first.step for _, first in found.spikes} == {LATE, LATE + 1}
    assert main(["trends", str(spiked)]) == Exit.DIFFERENT
    printed = capsys.readouterr().out.splitlines()
    assert len(printed) <= 25
    # The first line names the dump: with a long path it is folded.
    spikes = [line for line in printed[:3] if line.startswith("spike ")]
    assert spikes[0].startswith("spike in step 20, first in update_ratio of transformer.wte.weight")


@pytest.mark.parametrize("noise", [None, 1])
def test_a_changed_eps_parts_at_its_step_and_module(noise: Optional[int], healthy: list[Path], tmp_path: Path) -> None:
    changed = train(tmp_path, 0, eps=0.1)
    found = ascend_dump.trends(changed, healthy[0], noise=None if noise is None else healthy[noise])
    first = found.partings[0]
    assert (found.verdict, first.step, first.curve.name) == ("different", LATE, NORM)
    assert all(parting.step >= LATE for parting in found.partings)
    told = any("no noise was measured" in note for note in found.notes)
    assert told == (noise is None)
    assert (first.noise is None) == (noise is None)


def test_healthy_seeds_neither_spike_nor_part(healthy: list[Path]) -> None:
    for seed in range(3):
        actual, reference, again = (healthy[(seed + shift) % 3] for shift in range(3))
        found = ascend_dump.trends(actual, reference, noise=again)
        assert (found.verdict, found.partings, found.spikes, found.notes) == ("noise", (), (), ())
        assert main(["trends", str(actual), str(reference), "--noise", str(again)]) == Exit.OK


def test_the_same_run_twice_is_equal(healthy: list[Path], tmp_path: Path) -> None:
    found = ascend_dump.trends(train(tmp_path, 0), healthy[0])
    assert (found.verdict, found.unmatched, found.notes) == ("equal", 0, ())


def test_tensorboard_reads_the_curves(healthy: list[Path], spiked: Path, tmp_path: Path) -> None:
    began = time.time() - 3600
    events = tmp_path / "logs"
    words = ["trends", str(spiked), str(healthy[0]), "--export", "tensorboard", str(events)]
    assert main(words) == Exit.DIFFERENT
    found = ascend_dump.trends(spiked, healthy[0])
    for side, curves in (("actual", found.curves), ("reference", found.reference_curves)):
        reader = EventAccumulator(str(events / side), size_guidance={"scalars": 0})
        reader.Reload()
        assert len(reader.Tags()["scalars"]) == len(curves) > 200
        for curve in curves:
            scalars = reader.Scalars(f"{curve.quantity}/{curve.name or 'model'}")
            assert [scalar.step for scalar in scalars] == list(curve.steps)
            for scalar, value in zip(scalars, curve.values):
                assert math.isclose(scalar.value, value, rel_tol=1e-6, abs_tol=1e-30)
                assert began < scalar.wall_time < time.time()
    files = [path for path in events.rglob("*") if path.is_file()]
    assert {stat.S_IMODE(file.stat().st_mode) for file in files} == {0o600}
    assert {stat.S_IMODE(path.stat().st_mode) for path in (events, events / "actual")} == {0o700}
    assert len(files) == 2
    assert main(words) == Exit.DIFFERENT  # a second export stands beside the first one
    assert len(list(events.rglob("events.*"))) == 4


def test_attention_that_computes_its_weights_shows_their_concentration(tmp_path: Path) -> None:
    """Operators are recorded, among them the softmax of attention."""
    torch.manual_seed(0)
    config = GPT2Config(n_layer=1, n_head=2, n_embd=32, vocab_size=101, n_positions=32, attn_implementation="eager")
    model = GPT2LMHeadModel(config).eval()
    with torch.no_grad(), ascend_dump.capture(model, path=tmp_path, data="stats", quiet=True):
        for factor in (1.0, 100.0):
            model.transformer.h[0].attn.c_attn.weight.mul_(factor)
            weights = model(torch.arange(16)[None], output_attentions=True).attentions[0]
    curve = ascend_dump.trends(tmp_path).curve("transformer.h.0.attn", "concentration")
    assert curve.values[-1] == pytest.approx(float(weights.pow(2).sum(-1).mean()), rel=1e-4)
    assert curve.values[0] < 0.5 < curve.values[1]
