"""Suspects in real trainings: none where nothing is wrong, the right one where something was planted."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Callable

import pytest

import ascend_dump
from ascend_dump.analysis.suspects import SuspectReport, find_suspects

torch: Any = pytest.importorskip("torch")

from healthy_networks import NETWORKS  # noqa: E402  (it needs torch)


def dumped(path: Path, step: Callable[[], Any], steps: int = 5, **settings: Any) -> SuspectReport:
    with ascend_dump.capture(path=path, framework="torch", **{"data": "stats", **settings}) as cap:
        for number in range(steps):
            if number:
                cap.step()
            step()
    return find_suspects(cap.dump())


@pytest.mark.thorough
@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_healthy_training_has_no_suspect(tmp_path: Path, name: str, dtype: str) -> None:
    if (name, dtype) == ("lstm", "bfloat16") and not torch.ops.mkldnn._is_mkldnn_bf16_supported():
        pytest.skip("PyTorch cannot run it on this processor: oneDNN has no such kernel")
    torch.manual_seed(0)
    step = NETWORKS[name]()

    def cast() -> None:
        # Its cache of weights lasts as long as the block.
        with torch.autocast("cpu", torch.bfloat16, enabled=dtype == "bfloat16"):
            step()

    report = dumped(tmp_path, cast)
    assert report.suspects == ()
    assert report.reasons == ()
    assert report.operators > 100


def small(*layers: Any) -> Any:
    torch.manual_seed(0)
    return torch.nn.Sequential(*layers)


def regression(net: Any, optimizer: Any, *, dtype: Any = torch.float32) -> Callable[[], None]:
    def step() -> None:
        x = torch.randn(32, 16, dtype=dtype)
        optimizer.zero_grad()
        torch.nn.functional.mse_loss(net(x), x).backward()
        optimizer.step()

    return step


class TestPlantedFaults:
    """The rule that has to name each of them first, and its operator."""

    def test_a_layer_whose_units_have_died(self, tmp_path: Path) -> None:
        net = small(torch.nn.Linear(16, 64), torch.nn.ReLU(), torch.nn.Linear(64, 16))
        step = regression(net, torch.optim.SGD(net.parameters(), lr=0.01))
        steps = iter(range(9))

        def dying() -> None:
            if next(steps) == 3:
                net[0].bias.data.fill_(-100.0)
            step()

        report = dumped(tmp_path, dying, 6)
        seen = [(one.rule, one.module, one.step) for one in report.suspects]
        assert seen[0] == ("growth", "0", 3)  # the bias
        assert ("dead", "1", 3) in seen
        assert {one.rule for one in report.suspects} == {"growth", "dead", "zero-gradient", "unmoved"}

    def test_an_optimizer_that_lacks_a_layer(self, tmp_path: Path) -> None:
        net = small(torch.nn.Linear(16, 64), torch.nn.Tanh(), torch.nn.Linear(64, 16))
        report = dumped(tmp_path, regression(net, torch.optim.SGD(net[2].parameters(), lr=0.01)))
        assert [(one.rule, one.module) for one in report.suspects] == [("no-gradient", "0"), ("no-gradient", "0")]
        assert "optimizer" in report.suspects[0].reason

    def test_updates_that_are_too_small_for_their_type(self, tmp_path: Path) -> None:
        net = small(torch.nn.Linear(16, 64), torch.nn.LayerNorm(64), torch.nn.Linear(64, 16)).bfloat16()
        report = dumped(tmp_path, regression(net, torch.optim.SGD(net.parameters(), lr=1e-3), dtype=torch.bfloat16))
        assert ("unmoved", "1") in [(one.rule, one.module) for one in report.suspects]
        assert {one.rule for one in report.suspects} == {"unmoved"}

    def test_a_bias_that_a_batch_norm_takes_out_again_does_not_have_to_move(self, tmp_path: Path) -> None:
        net = small(torch.nn.Linear(16, 64), torch.nn.BatchNorm1d(64), torch.nn.Linear(64, 16))
        report = dumped(tmp_path, regression(net, torch.optim.SGD(net.parameters(), lr=1e-3)))
        assert report.suspects == ()

    def test_weights_that_a_cache_keeps_as_they_were(self, tmp_path: Path) -> None:
        """One block of autocast around all steps: its copies of the weights are those of the first step."""
        step = NETWORKS["diffusion"]()
        with torch.autocast("cpu", torch.bfloat16):
            report = dumped(tmp_path, step)
        assert report.suspects[0].rule == "zero-gradient"

    def test_activations_that_explode_at_one_step(self, tmp_path: Path) -> None:
        net = small(*(torch.nn.Linear(16, 16) for _ in range(4)))
        step = regression(net, torch.optim.SGD(net.parameters(), lr=1e-3))
        steps = iter(range(9))

        def exploding() -> None:
            if next(steps) == 4:
                net[2].weight.data.mul_(100.0)
            step()

        report = dumped(tmp_path, exploding, 6)
        first = report.suspects[0]
        assert (first.rule, first.module, first.step, first.record.io) == ("growth", "2", 4, "input")

    def test_one_layer_that_is_initialised_wrongly(self, tmp_path: Path) -> None:
        def layer() -> Any:
            return torch.nn.Sequential(torch.nn.Linear(16, 16), torch.nn.Tanh(), torch.nn.Linear(16, 16))

        net = small(*(layer() for _ in range(4)))
        with torch.no_grad():
            net[2][2].weight.mul_(1000.0)
        report = dumped(tmp_path, lambda: net(torch.randn(32, 16)), 1)
        assert [(one.rule, one.module) for one in report.suspects] == [("layer-growth", "2.2")]

    def test_a_value_at_the_limit_of_half_precision(self, tmp_path: Path) -> None:
        def scaled() -> None:
            scores = torch.randn(64, 64, dtype=torch.float16) * 4000
            torch.clamp(scores * 100, -65504, 65504).softmax(-1)

        report = dumped(tmp_path, scaled, 1)
        # The clamp takes the Inf of the product away.
        assert [one.rule for one in report.suspects] == ["saturated"]

    def test_gradients_that_half_precision_loses(self, tmp_path: Path) -> None:
        report = dumped(tmp_path, lambda: (torch.randn(1000) * 1e-8).half() * 2, 1)
        assert [(one.rule, one.op_type) for one in report.suspects] == [("underflow", "aten::_to_copy")]

    def test_memory_that_nobody_has_written(self, tmp_path: Path) -> None:
        report = dumped(tmp_path, lambda: torch.empty(100) * 2, 1)
        assert ("uninitialised", "aten::mul") in [(one.rule, one.op_type) for one in report.suspects]

    def test_a_dump_of_tensors_says_the_same(self, tmp_path: Path) -> None:
        report = dumped(tmp_path, lambda: (torch.randn(1000) * 1e-8).half() * 2, 1, data="tensor")
        assert [(one.rule, one.op_type) for one in report.suspects] == [("underflow", "aten::_to_copy")]
