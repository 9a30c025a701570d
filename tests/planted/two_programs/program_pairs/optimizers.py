"""Optimizers: those of PyTorch, and the same by hand with the faults of a port."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn

Maker = Callable[[nn.Module], Any]


def _groups(model: nn.Module, weight_decay: float, groups: str) -> list[dict[str, Any]]:
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    if groups == "one":
        return [{"params": trained, "weight_decay": weight_decay}]
    if groups == "no_head":
        return [{"params": trained[:-1], "weight_decay": weight_decay}]
    vectors = [parameter for parameter in trained if parameter.dim() < 2]
    matrices = [parameter for parameter in trained if parameter.dim() >= 2]
    first = {"params": matrices, "weight_decay": weight_decay}
    return [first, {"params": vectors, "weight_decay": weight_decay if groups == "decay_all" else 0.0}]


def adamw(
    lr: float = 1e-2,
    betas: tuple[float, float] = (0.9, 0.95),
    eps: float = 1e-8,
    weight_decay: float = 0.1,
    groups: str = "two",
    **options: Any,
) -> Maker:
    """Return a maker of AdamW, with no decay of vectors unless `groups` says otherwise."""

    def make(model: nn.Module) -> torch.optim.Optimizer:
        return torch.optim.AdamW(_groups(model, weight_decay, groups), lr=lr, betas=betas, eps=eps, **options)

    return make


def adam(lr: float = 1e-2, betas: tuple[float, float] = (0.9, 0.95), weight_decay: float = 0.1) -> Maker:
    """Return a maker of Adam, whose decay is part of the gradient."""

    def make(model: nn.Module) -> torch.optim.Optimizer:
        return torch.optim.Adam(_groups(model, weight_decay, "two"), lr=lr, betas=betas)

    return make


def sgd(
    lr: float = 0.1, momentum: float = 0.9, weight_decay: float = 0.0, groups: str = "one", **options: Any
) -> Maker:
    """Return a maker of SGD with momentum."""

    def make(model: nn.Module) -> torch.optim.Optimizer:
        return torch.optim.SGD(_groups(model, weight_decay, groups), lr=lr, momentum=momentum, **options)

    return make


class _ByHand:
    def __init__(self, groups: list[dict[str, Any]], lr: float) -> None:
        self.param_groups = [{**group, "lr": lr} for group in groups]
        self.state: dict[Tensor, list[Tensor]] = {}
        self.steps = 0

    def zero_grad(self) -> None:
        for parameter, _, _ in self._parameters():
            parameter.grad = None

    def _parameters(self) -> Iterable[tuple[Tensor, float, float]]:
        for group in self.param_groups:
            for parameter in group["params"]:
                yield parameter, group["lr"], group["weight_decay"]


class HandAdamW(_ByHand):
    """AdamW, one parameter at a time."""

    def __init__(
        self, groups: list[dict[str, Any]], lr: float, betas: tuple[float, float], eps: float, flaw: str
    ) -> None:
        super().__init__(groups, lr)
        self.betas, self.eps, self.flaw = betas, eps, flaw

    @torch.no_grad()
    def step(self) -> None:
        self.steps += 1
        for parameter, lr, decay in self._parameters():
            if parameter.grad is None:
                continue
            gradient = parameter.grad
            if self.flaw == "adam_coupled":
                gradient = gradient + decay * parameter  # planted: adam_coupled
            elif self.flaw == "adam_decay_sign":
                parameter.mul_(1 + lr * decay)  # planted: adam_decay_sign
            elif self.flaw == "adam_decay_rate":
                parameter.mul_(1 - decay)  # planted: adam_decay_rate
            else:
                parameter.mul_(1 - lr * decay)
            mean, square = self.state.setdefault(parameter, [torch.zeros_like(parameter) for _ in range(2)])
            self._update(parameter, gradient, mean, square, lr)

    def _update(self, parameter: Tensor, gradient: Tensor, mean: Tensor, square: Tensor, lr: float) -> None:
        first, second = self.betas
        if self.flaw == "adam_lost_mean":
            mean = mean.mul(first).add(gradient, alpha=1 - first)  # planted: adam_lost_mean
        else:
            mean.mul_(first).add_(gradient, alpha=1 - first)
        if self.flaw == "adam_second_beta":
            square.mul_(first).addcmul_(gradient, gradient, value=1 - second)  # planted: adam_second_beta
        elif self.flaw == "adam_absolute":
            square.mul_(second).add_(gradient.abs(), alpha=1 - second)  # planted: adam_absolute
        else:
            square.mul_(second).addcmul_(gradient, gradient, value=1 - second)
        corrected = mean / (1 - first**self.steps)
        if self.flaw == "adam_uncorrected":
            corrected = mean * 1.0  # planted: adam_uncorrected
        if self.flaw == "adam_eps_inside":
            root = torch.sqrt(square / (1 - second**self.steps) + 1e-4)  # planted: adam_eps_inside
        elif self.flaw == "adam_no_root":
            root = square / (1 - second**self.steps) + 1e-3  # planted: adam_no_root
        else:
            root = square.sqrt() / math.sqrt(1 - second**self.steps) + self.eps
        parameter.sub_(lr * corrected / root)


class HandSGD(_ByHand):
    """SGD with momentum, one parameter at a time."""

    def __init__(self, groups: list[dict[str, Any]], lr: float, momentum: float, flaw: str) -> None:
        super().__init__(groups, lr)
        self.momentum, self.flaw = momentum, flaw

    @torch.no_grad()
    def step(self) -> None:
        self.steps += 1
        for parameter, lr, decay in self._parameters():
            if parameter.grad is None:
                continue
            gradient = parameter.grad + decay * parameter if decay else parameter.grad
            if parameter not in self.state:
                self.state[parameter] = [torch.zeros_like(parameter)]
            (velocity,) = self.state[parameter]
            if self.flaw == "sgd_lost_momentum":
                velocity = velocity.mul(self.momentum).add(gradient)  # planted: sgd_lost_momentum
            elif self.flaw == "sgd_dampened":
                velocity.mul_(self.momentum).add_(gradient, alpha=1 - self.momentum)  # planted: sgd_dampened
            else:
                velocity.mul_(self.momentum).add_(gradient)
            if self.flaw == "sgd_nesterov":
                velocity = gradient + self.momentum * velocity  # planted: sgd_nesterov
            parameter.add_(velocity, alpha=-lr)


def hand_adamw(
    lr: float = 1e-2,
    betas: tuple[float, float] = (0.9, 0.95),
    eps: float = 1e-8,
    weight_decay: float = 0.1,
    groups: str = "two",
    flaw: str = "",
) -> Maker:
    """Return a maker of AdamW by hand."""
    return lambda model: HandAdamW(_groups(model, weight_decay, groups), lr, betas, eps, flaw)


def hand_sgd(
    lr: float = 0.1, momentum: float = 0.9, weight_decay: float = 0.0, groups: str = "one", flaw: str = ""
) -> Maker:
    """Return a maker of SGD by hand."""
    return lambda model: HandSGD(_groups(model, weight_decay, groups), lr, momentum, flaw)
