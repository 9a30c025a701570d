"""Differences that end in the first step of a training, and are computed from again in later steps."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import ascend_dump

torch = pytest.importorskip("torch")
pytest.importorskip("rapidfuzz")
functional = torch.nn.functional

_RATE, _BETAS, _DECAY = 0.01, (0.9, 0.999), 0.1


def network() -> Any:
    torch.manual_seed(0)
    layers = torch.nn.Linear(16, 32), torch.nn.LayerNorm(32), torch.nn.GELU(), torch.nn.Linear(32, 5)
    return torch.nn.Sequential(*layers)


def data() -> tuple[Any, Any]:
    generator = torch.Generator().manual_seed(3)
    return torch.randn(8, 16, generator=generator), torch.randint(0, 5, (8,), generator=generator)


def reference(path: Path) -> Path:
    """Train with AdamW of PyTorch, on ten times the loss."""
    layers, (x, y) = network(), data()
    optimizer = torch.optim.AdamW(layers.parameters(), lr=_RATE, weight_decay=_DECAY, foreach=False)
    with ascend_dump.capture(layers, path=path, steps="all", quiet=True):
        for _ in range(3):
            optimizer.zero_grad()
            loss = 10 * functional.cross_entropy(layers(x), y)
            loss.backward()
            torch.nn.utils.clip_grad_norm_(layers.parameters(), 1.0)
            optimizer.step()
            loss.item()
    return path


def by_hand(path: Path, *, rate: float = _RATE, factor: float = -10.0) -> Path:
    """Train with AdamW in own code. The loss is a mean of negative terms, times a negative factor."""
    layers, (x, y) = network(), data()
    states = [(torch.zeros_like(one), torch.zeros_like(one)) for one in layers.parameters()]
    with ascend_dump.capture(layers, path=path, steps="all", quiet=True):
        for step in range(1, 4):
            loss = factor * torch.log_softmax(layers(x), -1)[torch.arange(8), y].mean()
            gradients = torch.autograd.grad(loss, list(layers.parameters()))
            norm = torch.sqrt(sum(one.pow(2).sum() for one in gradients))
            share = min(1.0, 1.0 / (norm.item() + 1e-6))
            with torch.no_grad():
                for parameter, whole, (first, second) in zip(layers.parameters(), gradients, states):
                    gradient = whole * share
                    parameter.mul_(1 - rate * _DECAY)
                    first.mul_(_BETAS[0]).add_(gradient, alpha=1 - _BETAS[0])
                    second.mul_(_BETAS[1]).addcmul_(gradient, gradient, value=1 - _BETAS[1])
                    mean, size = first / (1 - _BETAS[0] ** step), second / (1 - _BETAS[1] ** step)
                    parameter.sub_(rate * mean / (size.sqrt() + 1e-8))
            loss.item()
    return path


def named(found: Any) -> list[str]:
    return [origin.pair.record.op_name for origin in found.origins]


def test_a_factor_in_another_place_is_no_origin_in_later_steps(tmp_path: Path) -> None:
    """In later steps no tensor of the part with the factor is compared, and the part leads to the loss."""
    found = ascend_dump.compare(by_hand(tmp_path / "a"), reference(tmp_path / "b"))
    assert not found.origins
    assert set(found.counts) <= {"equal", "noise", "unmatched"}


def test_a_fault_of_the_update_is_named_instead_of_the_factor(tmp_path: Path) -> None:
    found = ascend_dump.compare(by_hand(tmp_path / "a", rate=2 * _RATE), reference(tmp_path / "b"))
    assert found.verdict == "different"
    assert "mean_0" not in named(found)
    assert all(origin.pair.record.phase == "other" for origin in found.origins)


def test_a_wrong_factor_is_found(tmp_path: Path) -> None:
    """The gradient of the loss is the product with the factor."""
    found = ascend_dump.compare(by_hand(tmp_path / "a", factor=-11.0), reference(tmp_path / "b"))
    assert (found.verdict, named(found)[0]) == ("different", "mul_1")


def velocity(path: Path, *, negated: bool, rates: tuple[float, ...] = (0.0, _RATE, _RATE), noise: float = 0.8) -> Path:
    """Train a network to tell the velocity of a diffusion.

    negated  the share of the data is negated and added; else it is subtracted
    rates    the learning rates of the steps
    noise    the share of the noise
    """
    torch.manual_seed(0)
    layers, x, other = torch.nn.Linear(16, 16), *torch.randn(2, 8, 16)
    share = torch.tensor([[0.36]])
    with ascend_dump.capture(layers, path=path, steps="all", quiet=True):
        for rate in rates:
            result = layers(noise * x)
            if negated:
                target = torch.sqrt(1 - share) * other + -1 * torch.sqrt(share) * x
                loss = (result - target).pow(2).mean()
            else:
                loss = functional.mse_loss(result, torch.sqrt(1 - share) * other - torch.sqrt(share) * x)
            gradients = torch.autograd.grad(loss, list(layers.parameters()))
            with torch.no_grad():
                for parameter, gradient in zip(layers.parameters(), gradients):
                    parameter.sub_(rate * gradient)
    return path


def test_a_difference_that_ended_is_no_origin_where_another_one_explains_its_readers(tmp_path: Path) -> None:
    """In the second step the network has other weights, so that what reads the negated share differs."""
    actual = velocity(tmp_path / "a", negated=True, rates=(_RATE, _RATE, _RATE))
    found = ascend_dump.compare(actual, velocity(tmp_path / "b", negated=False))
    assert found.verdict == "different"
    assert [origin.pair.record.op_type for origin in found.origins] == ["aten::mul"]
    assert found.origins[0].pair.record.attrs.get("phase", found.origins[0].pair.record.phase) == "other"
    assert "0.0 in the reference" in " ".join(found.origins[0].evidence)


def test_a_share_that_is_negated_is_no_origin(tmp_path: Path) -> None:
    actual = velocity(tmp_path / "a", negated=True)
    assert not ascend_dump.compare(actual, velocity(tmp_path / "b", negated=False)).origins


def moments(path: Path, *, start: str) -> Path:
    """Train with an average of gradients.

    start: "zeros" if it begins as zeros, and weights are written in place; "number" if it begins as the number 0, and
    the data of weights are written; "weights" if it begins as the weights
    """
    layers, (x, y) = network(), data()
    averages: list[Any] = []
    make = {"zeros": torch.zeros_like, "weights": torch.clone, "number": lambda _: 0}[start]
    with ascend_dump.capture(layers, path=path, steps="all", quiet=True):
        for _ in range(2):
            loss = functional.cross_entropy(layers(x), y)
            gradients = torch.autograd.grad(loss, list(layers.parameters()))
            for number, (parameter, gradient) in enumerate(zip(layers.parameters(), gradients)):
                with torch.no_grad():
                    averages += [make(parameter)] if number == len(averages) else []
                    if start == "number":
                        averages[number] = 0.9 * averages[number] + 0.1 * gradient
                        parameter.data -= 0.1 * averages[number]
                    else:
                        averages[number].mul_(0.9).add_(gradient, alpha=0.1)
                        parameter.sub_(0.1 * averages[number])
    return path


def test_an_average_that_begins_as_a_number_is_no_origin(tmp_path: Path) -> None:
    found = ascend_dump.compare(moments(tmp_path / "a", start="number"), moments(tmp_path / "b", start="zeros"))
    assert not found.origins


def test_an_average_that_begins_as_the_weights_is_found(tmp_path: Path) -> None:
    found = ascend_dump.compare(moments(tmp_path / "a", start="weights"), moments(tmp_path / "b", start="zeros"))
    assert found.verdict == "different"
    assert found.origins
