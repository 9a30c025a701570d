"""States that one of two programs alone updates: averages, parameters, momentum."""

from __future__ import annotations

from pathlib import Path
from typing import Callable

import pytest

import ascend_dump

torch = pytest.importorskip("torch")

Update = Callable[[torch.nn.Module, torch.Tensor], None]


def train(path: Path, update: Update, *, steps: str = "0-1") -> Path:
    """Two layers, and a state of the size of the first weight that `update` may change after the backward pass."""
    torch.manual_seed(0)
    network = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Tanh(), torch.nn.Linear(4, 2))
    state, inputs = torch.zeros(4, 4), torch.randn(3, 8, 4).unbind()
    with ascend_dump.capture(network, path=path, steps=steps, mode="all"):
        for step in range(3):
            network(inputs[step]).square().mean().backward()
            with torch.no_grad():
                update(network, state)
            for parameter in network.parameters():
                parameter.grad = None
    return path


def descend(network: torch.nn.Module, *frozen: str) -> None:
    for name, parameter in network.named_parameters():
        if name not in frozen:
            parameter.sub_(parameter.grad, alpha=0.1)


def average(network: torch.nn.Module, state: torch.Tensor) -> None:
    descend(network)
    state.mul_(0.9).add_(network[0].weight, alpha=0.1)


def test_an_average_that_is_never_updated(tmp_path: Path) -> None:
    actual = train(tmp_path / "actual", lambda network, state: descend(network))
    found = ascend_dump.compare(actual, train(tmp_path / "reference", average))
    [origin] = found.origins
    assert (origin.kind, origin.step) == ("structure", 0)
    assert origin.source.startswith(__file__)
    assert "updates a tensor from outside in the reference only, for later steps" in origin.evidence


@pytest.mark.parametrize("decay", [0.9, 0.999, 0.9999])
def test_an_average_that_is_never_updated_and_that_is_evaluated(tmp_path: Path, decay: float) -> None:
    """The update of an average may be smaller than the rounding of a long sum."""

    def evaluate(network: torch.nn.Module, state: torch.Tensor) -> None:
        if not state.any():
            state.copy_(network[0].weight)
        descend(network)
        state.mul_(decay).add_(network[0].weight, alpha=1 - decay)
        torch.nn.functional.linear(torch.ones(2, 4), state).sum()

    def evaluate_only(network: torch.nn.Module, state: torch.Tensor) -> None:
        if not state.any():
            state.copy_(network[0].weight)
        descend(network)
        torch.nn.functional.linear(torch.ones(2, 4), state).sum()

    reference = train(tmp_path / "reference", evaluate)
    found = ascend_dump.compare(train(tmp_path / "actual", evaluate_only), reference)
    assert found.verdict == "different"
    assert found.origins[0].source.startswith(__file__)
    assert ascend_dump.compare(train(tmp_path / "same", evaluate), reference).verdict == "equal"


def test_an_update_in_place_that_changes_no_more_than_rounding_is_none(tmp_path: Path) -> None:
    def scaled(factor: float) -> Update:
        def update(network: torch.nn.Module, state: torch.Tensor) -> None:
            if not state.any():
                state.copy_(network[0].weight)
            if factor != 1.0:
                state.mul_(factor)
            torch.nn.functional.linear(torch.ones(2, 4), state).sum()

        return update

    reference = train(tmp_path / "reference", scaled(1.0), steps="0")
    found = ascend_dump.compare(train(tmp_path / "actual", scaled(1 + 2**-23), steps="0"), reference)
    assert not found.origins


def test_a_recording_that_ends_before_the_update_proves_nothing(tmp_path: Path) -> None:
    actual = train(tmp_path / "actual", lambda network, state: descend(network), steps="0")
    assert ascend_dump.compare(actual, train(tmp_path / "reference", average, steps="0")).origins == ()


def test_a_parameter_that_is_frozen_is_named(tmp_path: Path) -> None:
    actual = train(tmp_path / "actual", lambda network, state: descend(network, "0.weight"))
    found = ascend_dump.compare(actual, train(tmp_path / "reference", lambda network, state: descend(network)))
    [origin] = found.origins
    assert "updates 0.weight in the reference only, for later steps" in origin.evidence


def test_a_count_of_steps_is_no_state(tmp_path: Path) -> None:
    def counted(network: torch.nn.Module, state: torch.Tensor) -> None:
        state[:1, :1].add_(1)
        descend(network)

    actual = train(tmp_path / "actual", counted)
    found = ascend_dump.compare(actual, train(tmp_path / "reference", lambda network, state: descend(network)))
    assert found.origins == ()


@pytest.mark.parametrize("lost", [False, True])
def test_a_product_out_of_place_that_loses_the_state_is_one_origin(tmp_path: Path, lost: bool) -> None:
    """Where nothing is lost, the state is assigned, and no origin is left."""

    def run(path: Path, *, in_place: bool) -> Path:
        torch.manual_seed(0)
        network = torch.nn.Sequential(*(torch.nn.Linear(4, 4) for _ in range(3)))
        momentum = [torch.zeros_like(parameter) for parameter in network.parameters()]
        inputs = torch.randn(3, 8, 4)
        with ascend_dump.capture(network, path=path, steps="0-2", mode="all"):
            for step in range(3):
                network(inputs[step]).square().mean().backward()
                with torch.no_grad():
                    for number, parameter in enumerate(network.parameters()):
                        if in_place:
                            momentum[number].mul_(0.9).add_(parameter.grad)
                        else:
                            product = momentum[number].mul(0.9).add_(parameter.grad)
                            momentum[number] = momentum[number] if lost else product
                        parameter.sub_(momentum[number], alpha=0.1)
                        parameter.grad = None
        return path

    found = ascend_dump.compare(run(tmp_path / "a", in_place=False), run(tmp_path / "b", in_place=True))
    if not lost:
        assert found.origins == ()
        return
    [origin] = found.origins
    assert origin.kind == "wiring"
    assert any(text.startswith("with it: ") for text in origin.evidence)
    assert any(text.startswith("reads a tensor from outside here, add_") for text in origin.evidence)


def test_updates_that_one_side_alone_records_are_not_compared(tmp_path: Path) -> None:
    actual = train(tmp_path / "actual", lambda network, state: None, steps="0")
    found = ascend_dump.compare(
        actual, train(tmp_path / "reference", lambda network, state: descend(network), steps="0")
    )
    assert found.origins == ()
    assert found.aligned == ("not compared: updates of 4 parameters, which only the reference records",)


class OwnBatchNorm(torch.nn.BatchNorm1d):
    """A batch norm by hand. way: it stores new statistics "in place", in "other memory", or they are "lost"."""

    way = "in place"

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        mean, variance = x.mean(0), x.var(0, unbiased=False)
        with torch.no_grad():
            new = self.running_mean.lerp(mean, self.momentum)
            unbiased = self.running_var.lerp(variance * len(x) / (len(x) - 1), self.momentum)
            if self.way == "in place":
                self.running_mean.copy_(new)
                self.running_var.copy_(unbiased)
            elif self.way == "other memory":
                self.running_mean, self.running_var = new, unbiased
        return (x - mean) * torch.rsqrt(variance + self.eps) * self.weight + self.bias


def normalise(path: Path, way: str, data: str) -> Path:
    torch.manual_seed(0)
    norm = torch.nn.BatchNorm1d(4) if way == "library" else OwnBatchNorm(4)
    norm.way = way
    network = torch.nn.Sequential(torch.nn.Linear(4, 4), norm, torch.nn.Linear(4, 2))
    torch.manual_seed(1)
    with ascend_dump.capture(network, path=path, steps="0-2", data=data):
        for inputs in torch.randn(3, 8, 4).unbind():
            network(inputs)
    return path


@pytest.mark.parametrize("data", ["tensor", "stats"])
def test_a_running_mean_that_a_norm_by_hand_never_stores(tmp_path: Path, data: str) -> None:
    reference = normalise(tmp_path / "reference", "library", data)
    [origin] = ascend_dump.compare(normalise(tmp_path / "actual", "lost", data), reference).origins
    assert (origin.module, origin.step) == ("1", 0)
    assert "updates a tensor from outside in the reference only, for later steps" in origin.evidence


@pytest.mark.parametrize("data", ["tensor", "stats"])
@pytest.mark.parametrize("way", ["in place", "other memory"])
def test_a_norm_by_hand_may_store_its_running_mean_anywhere(tmp_path: Path, way: str, data: str) -> None:
    reference = normalise(tmp_path / "reference", "library", data)
    assert not ascend_dump.compare(normalise(tmp_path / "actual", way, data), reference).origins


def lion(path: Path, way: str, data: str) -> Path:
    """The optimizer Lion: its momentum is updated after the parameters, by `lerp_`, or by a copy of a new tensor."""
    torch.manual_seed(0)
    network = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Tanh(), torch.nn.Linear(8, 8))
    momenta = {name: torch.zeros_like(parameter) for name, parameter in network.named_parameters()}
    with ascend_dump.capture(network, path=path, steps="0-2", mode="all", data=data):
        for inputs in torch.randn(3, 8, 8).unbind():
            network(inputs).square().mean().backward()
            with torch.no_grad():
                for name, parameter in network.named_parameters():
                    momentum, gradient = momenta[name], parameter.grad
                    if way == "text":
                        mixed = 0.9 * momentum + 0.1 * gradient
                        parameter.copy_(parameter - 1e-3 * (torch.sign(mixed) + 0.1 * parameter))
                        momentum.copy_(0.99 * momentum + 0.01 * gradient)
                        continue
                    parameter.mul_(1 - 1e-4)
                    parameter.add_((momentum * 0.9 + gradient * 0.1).sign_(), alpha=-1e-3)
                    if way == "in place":
                        momentum.lerp_(gradient, 0.01)
            network.zero_grad()
    return path


@pytest.mark.parametrize("data", ["tensor", "stats"])
def test_a_state_that_one_program_copies_in_place_of_updating_it(tmp_path: Path, data: str) -> None:
    actual = lion(tmp_path / "actual", "in place", data)
    assert not ascend_dump.compare(actual, lion(tmp_path / "text", "text", data)).origins
    [origin] = ascend_dump.compare(actual, lion(tmp_path / "lost", "lost", data)).origins
    assert "updates a tensor from outside here only, for later steps" in "".join(origin.evidence)
