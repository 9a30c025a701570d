"""NAdam with a cosine schedule, clipped values and averaged weights, and a port of it on one flat vector."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from port_programs.program import Network, Program, Truth, generator, normal, shaken

_RATE, _LAST_RATE, _PERIOD, _DECAY, _LIMIT, _DELTA = 5e-3, 5e-4, 6, 0.05, 0.3, 0.5


def _network() -> nn.Module:
    layers = (nn.Conv1d(2, 12, 5, padding=2), nn.GroupNorm(3, 12), nn.GELU(), nn.Flatten(), nn.Linear(96, 3))
    return shaken(nn.Sequential(*layers)).train()


def _data() -> tuple[Tensor, Tensor]:
    drawn = generator()
    return normal(drawn, 5, 2, 8), normal(drawn, 5, 3)


def reference() -> Program:
    model = _network()
    x, wanted = _data()
    average = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.9))
    optimizer = torch.optim.NAdam(
        model.parameters(), lr=_RATE, weight_decay=_DECAY, decoupled_weight_decay=True, foreach=False
    )
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, _PERIOD, _LAST_RATE)
    criterion = nn.HuberLoss(reduction="sum", delta=_DELTA)

    def train(steps: int) -> list[float]:
        losses = []
        for _ in range(steps):
            loss = criterion(model(x), wanted)  # place: flat_loop_huber flat_loop_reduction
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_value_(model.parameters(), _LIMIT)  # place: flat_loop_clip
            optimizer.step()
            schedule.step()
            average.update_parameters(model)  # place: flat_loop_average
            losses.append(loss.item())
        return losses

    def evaluate() -> float:
        return criterion(average(x), wanted).item()

    return Program(model, train, evaluate)


class FlatNAdam:
    """NAdam on a vector of all parameters, which are views of it."""

    def __init__(self, model: nn.Module, fault: str) -> None:
        self.fault = fault
        self.parameters = list(model.parameters())
        self.values = nn.utils.parameters_to_vector(self.parameters).detach().clone()
        nn.utils.vector_to_parameters(self.values, self.parameters)
        self.first, self.second = torch.zeros_like(self.values), torch.zeros_like(self.values)
        self.average = self.values.clone()
        self.product = 1.0

    def _rate(self, step: int) -> float:
        passed = step + 1 if self.fault == "schedule" else step
        return _LAST_RATE + (_RATE - _LAST_RATE) * (1 + math.cos(math.pi * passed / _PERIOD)) / 2

    @staticmethod
    def _momentum(step: int) -> float:
        return 0.9 * (1 - 0.5 * 0.96 ** (step * 0.004))

    def update(self, gradient: Tensor, step: int) -> None:
        """Update values by the gradient; steps begin with 0."""
        rate = self._rate(step)
        if self.fault == "clip":
            gradient = gradient * min(1.0, _LIMIT / float(gradient.norm()))  # planted: flat_loop_clip
        else:
            gradient = gradient.clamp(-_LIMIT, _LIMIT)
        if self.fault == "decay":
            gradient = gradient + _DECAY * self.values  # planted: flat_loop_decay
        else:
            self.values.mul_(1 - rate * _DECAY)  # planted: flat_loop_schedule
        self.first += (gradient - self.first) / 10  # place: flat_loop_clip flat_loop_decay
        self.second += (gradient * gradient - self.second) / 1000  # place: flat_loop_clip flat_loop_decay
        now, later = self._momentum(step + 1), self._momentum(step + 2)
        self.product *= now
        deviation = (self.second / (1 - 0.999 ** (step + 1))).sqrt() + 1e-8
        share_of_gradient = rate * (1 - now) / (1 - self.product)
        share_of_mean = rate * later / (1 - self.product * (1 if self.fault == "momentum" else later))
        moved = share_of_gradient * gradient + share_of_mean * self.first  # planted: flat_loop_momentum
        self.values.sub_(moved / deviation)  # planted: flat_loop_momentum flat_loop_schedule
        if step == 0 and self.fault != "average":
            self.average.copy_(self.values)  # place: flat_loop_average
        else:
            self.average.mul_(0.9).add_(self.values, alpha=0.1)  # planted: flat_loop_average


def port(fault: str) -> Program:
    model = _network()
    optimizer = FlatNAdam(model, fault)
    x, wanted = _data()
    delta = 1.0 if fault == "huber" else _DELTA

    def loss_of(output: Tensor) -> Tensor:
        distance = (output - wanted).abs()
        small = distance.clamp(max=delta)  # planted: flat_loop_huber
        terms = small * (distance - small / 2)  # planted: flat_loop_huber
        return terms.mean() if fault == "reduction" else terms.sum()  # planted: flat_loop_reduction

    def train(steps: int) -> list[float]:
        losses = []
        for step in range(steps):
            loss = loss_of(model(x))  # place: flat_loop_huber flat_loop_reduction
            gradients = torch.autograd.grad(loss, optimizer.parameters)
            optimizer.update(torch.cat([gradient.flatten() for gradient in gradients]), step)
            losses.append(loss.item())
        return losses

    def evaluate() -> float:
        nn.utils.vector_to_parameters(optimizer.average, optimizer.parameters)
        return functional.huber_loss(model(x), wanted, reduction="sum", delta=_DELTA).item()

    return Program(model, train, evaluate)


NETWORK = Network(
    "flat_loop",
    reference,
    port,
    {name: Truth(visible=False) for name in ("schedule", "clip", "decay", "momentum", "average", "huber", "reduction")},
)
