"""Norms, losses and optimizers that are written by hand in place of those of PyTorch, right and wrong."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("rapidfuzz")

import torch
from torch import Tensor, nn
from torch.nn import functional

import ascend_dump

ROWS, WIDTH, CLASSES, RATE, DECAY, BETAS, EPS = 1000, 16, 5, 3e-3, 0.1, (0.9, 0.95), 1e-8


class Norm(nn.Module):
    """A root mean square norm by a mean of squares, or by the norm of a vector."""

    by_vector_norm = False
    eps = 1e-6

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(1 + 0.1 * torch.randn(WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        if self.by_vector_norm:
            square = torch.linalg.vector_norm(x, dim=-1, keepdim=True).square() / WIDTH
            return self.weight * (x / (square + self.eps).sqrt())
        return self.weight * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps))


class Layer(nn.Module):
    """A norm before a feed-forward network, beside a residual."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = Norm()
        self.up, self.down = nn.Linear(WIDTH, 2 * WIDTH, bias=False), nn.Linear(2 * WIDTH, WIDTH, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.down(functional.silu(self.up(self.norm(x))))


class AdamW:
    """AdamW by hand.

    way: "formula", "text" (makes new averages), or "folded" (divides by the bias of the roots at the end)
    """

    def __init__(self, parameters: Any, way: str, decay: float = DECAY, eps_factor: float = 1.0) -> None:
        self.parameters, self.way, self.decay, self.eps_factor = list(parameters), way, decay, eps_factor
        self.states: dict[Tensor, tuple[Tensor, Tensor]] = {}
        self.steps = 0

    def zero_grad(self) -> None:
        for parameter in self.parameters:
            parameter.grad = None

    @torch.no_grad()
    def step(self) -> None:
        self.steps += 1
        first, second = 1 - BETAS[0] ** self.steps, 1 - BETAS[1] ** self.steps
        for parameter in self.parameters:
            gradient, decay = parameter.grad, self.decay if parameter.dim() > 1 else 0.0
            mean, square = self.states.setdefault(parameter, (torch.zeros_like(parameter), torch.zeros_like(parameter)))
            if self.way == "text":
                mean.copy_(BETAS[0] * mean + (1 - BETAS[0]) * gradient)
                square.copy_(BETAS[1] * square + (1 - BETAS[1]) * gradient**2)
            else:
                mean.mul_(BETAS[0]).add_(gradient, alpha=1 - BETAS[0])
                square.mul_(BETAS[1]).addcmul_(gradient, gradient, value=1 - BETAS[1])
            if self.way != "folded":
                parameter -= RATE * decay * parameter
                parameter -= RATE * (mean / first) / ((square / second) ** 0.5 + EPS)
            else:
                parameter.mul_(1 - RATE * decay)
                root = square.sqrt().add_(EPS * self.eps_factor * second**0.5)
                parameter.addcdiv_(mean, root, value=-RATE * second**0.5 / first)


def library_optimizer(parameters: Any) -> Any:
    """Return AdamW without decay of vectors."""
    every = list(parameters)
    groups = [
        {"params": [parameter for parameter in every if (parameter.dim() > 1) is is_matrix], "weight_decay": decay}
        for is_matrix, decay in ((True, DECAY), (False, 0.0))
    ]
    return torch.optim.AdamW(groups, RATE, BETAS, EPS, foreach=False)


def library_loss(logits: Tensor, labels: Tensor) -> Tensor:
    return functional.cross_entropy(logits, labels)


def loss_in_parts(logits: Tensor, labels: Tensor) -> Tensor:
    sums = [functional.cross_entropy(*part, reduction="sum") for part in zip(logits.split(400), labels.split(400))]
    return sum(sums, torch.zeros(())) / len(labels)


def train(
    path: Path,
    change: Callable[[Any], object] = lambda network: None,
    optimizer: Callable[[Any], Any] = library_optimizer,
    loss: Callable[[Tensor, Tensor], Tensor] = library_loss,
) -> str:
    torch.manual_seed(0)
    network = nn.Sequential(*(Layer() for _ in range(4)), nn.Linear(WIDTH, CLASSES, bias=False))
    change(network)
    steps = optimizer(network.parameters())
    batches = [(torch.randn(ROWS, WIDTH), torch.randint(0, CLASSES, (ROWS,))) for _ in range(2)]
    with ascend_dump.capture(network, path=path, mode="all", quiet=True, steps="0|1"):
        for data, labels in batches:
            steps.zero_grad()
            value = loss(network(data), labels)
            value.backward()
            torch.nn.utils.clip_grad_norm_(network.parameters(), 1.0, foreach=False)
            steps.step()
    return str(path)


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> str:
    return train(tmp_path_factory.mktemp("reference"))


def norms(eps: float) -> Callable[[Any], None]:
    def change(network: Any) -> None:
        for layer in network[:4]:
            layer.norm.by_vector_norm = True
        network[1].norm.eps = eps

    return change


def test_gradients_of_a_norm_by_vector_norm_cancel_and_agree(reference: str, tmp_path: Path) -> None:
    """Both sides multiply other factors. Their products agree, but not relative to each of their small elements."""
    comparison = ascend_dump.compare(train(tmp_path, norms(1e-6)), reference)
    assert comparison.origins == ()
    assert comparison.verdict == "noise", comparison.counts
    product = next(
        pair
        for pair in comparison.pairs
        if pair.actual is not None and (pair.actual.op_name, pair.actual.io) == ("1.norm/mul_7", "output")
    )
    assert "rounding of the inputs" in product.reason


def test_another_eps_of_a_norm_by_vector_norm_is_the_origin(reference: str, tmp_path: Path) -> None:
    origins = ascend_dump.compare(train(tmp_path, norms(1e-2)), reference).origins
    assert origins[0].module == "1.norm"


class OffsetNorm(Norm):
    """A norm whose weight is stored without the one that is added to it."""

    def forward(self, x: Tensor) -> Tensor:
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps) * (1.0 + self.weight)


class WithoutOffset(Norm):
    """The same norm by hand, which multiplies in the other order and lacks the addition."""

    def forward(self, x: Tensor) -> Tensor:
        square = torch.linalg.vector_norm(x, dim=-1, keepdim=True).square() / WIDTH
        return self.weight * (x / (square + self.eps).sqrt())


def test_a_lost_addition_is_named_though_the_factors_are_in_the_other_order(tmp_path: Path) -> None:
    def norm(kind: type[Norm]) -> Callable[[Any], None]:
        return lambda network: setattr(network[1], "norm", kind())

    sides = (train(tmp_path / kind.__name__, norm(kind)) for kind in (WithoutOffset, OffsetNorm))
    [origin] = ascend_dump.compare(*sides).origins
    assert (origin.module, origin.op_type) == ("1.norm", "aten::add")
    assert origin.evidence[0] == "aten::add runs in the reference only"


@pytest.mark.parametrize("way", ["formula", "text", "folded"])
def test_adam_by_hand_is_no_origin(reference: str, tmp_path: Path, way: str) -> None:
    """A product in place and a product that is subtracted are no pair; a root is no state because an eps is added."""
    comparison = ascend_dump.compare(
        train(tmp_path, optimizer=lambda parameters: AdamW(parameters, way=way)), reference
    )
    assert comparison.origins == ()
    assert comparison.verdict != "different", comparison.counts


@pytest.mark.parametrize(("way", "changed"), [("formula", {"decay": 3.0}), ("folded", {"eps_factor": 1e6})])
def test_a_fault_of_adam_by_hand_is_an_origin(reference: str, tmp_path: Path, way: str, changed: Any) -> None:
    comparison = ascend_dump.compare(
        train(tmp_path, optimizer=lambda parameters: AdamW(parameters, way=way, **changed)), reference
    )
    assert comparison.verdict == "different"
    assert Path((comparison.origins[0].source or "").split(":")[0]).name in (Path(__file__).name, "adamw.py")


def test_a_loss_in_parts_of_the_batch_is_no_origin(reference: str, tmp_path: Path) -> None:
    comparison = ascend_dump.compare(train(tmp_path, loss=loss_in_parts), reference)
    assert comparison.origins == ()
    assert comparison.verdict in ("noise", "unmatched"), comparison.counts


def test_a_wrong_loss_in_parts_of_the_batch_is_an_origin(reference: str, tmp_path: Path) -> None:
    comparison = ascend_dump.compare(
        train(tmp_path, loss=lambda logits, labels: 1.5 * loss_in_parts(logits, labels)), reference
    )
    assert comparison.verdict == "different"
    assert comparison.origins


def test_a_number_that_only_one_side_computes_for_a_log_is_no_origin(reference: str, tmp_path: Path) -> None:
    def loss(logits: Tensor, labels: Tensor) -> Tensor:
        labels.clamp(min=0)
        return loss_in_parts(logits, labels)

    comparison = ascend_dump.compare(train(tmp_path, loss=loss), reference)
    assert comparison.origins == ()
    assert comparison.verdict != "different", comparison.counts


class UnfoldedConvolution(nn.Conv2d):
    """A convolution by a product with the parts of its input."""

    factor = 1.0

    def forward(self, x: Tensor) -> Tensor:
        product = self.weight.flatten(1) @ functional.unfold(x, 3, padding=1)
        return self.factor * product.view(len(x), -1, *x.shape[2:]) + self.bias[:, None, None]


def train_before_norm(path: Path, layer: Callable[..., Any], optimizer: Callable[[Any], Any]) -> str:
    torch.manual_seed(0)
    network = nn.Sequential(layer(3, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(), nn.Conv2d(4, 2, 1))
    torch.manual_seed(1)
    steps = optimizer(network.parameters())
    with ascend_dump.capture(network, path=path, quiet=True, steps="0"):
        network(torch.randn(4, 3, 12, 12)).square().mean().backward()
        steps.step()
    return str(path)


def test_a_gradient_of_rounding_that_only_optimizers_without_partners_read_is_no_origin(tmp_path: Path) -> None:
    """The gradient of a bias before a norm is zero in exact arithmetic, so its rounding is that of terms of a sum."""
    reference = train_before_norm(tmp_path / "reference", nn.Conv2d, library_optimizer)
    hand = partial(AdamW, way="text")
    assert not ascend_dump.compare(train_before_norm(tmp_path / "right", UnfoldedConvolution, hand), reference).origins

    def wrong(*arguments: Any, **named: Any) -> UnfoldedConvolution:
        layer = UnfoldedConvolution(*arguments, **named)
        layer.factor = 1.5
        return layer

    found = ascend_dump.compare(train_before_norm(tmp_path / "wrong", wrong, hand), reference)
    assert found.origins[0].module == "0"
