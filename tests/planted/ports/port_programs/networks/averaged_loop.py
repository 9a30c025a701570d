"""AdamW of two groups with clipping, warm-up and averaged weights, and a port that does all of this by hand."""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn
from torch.nn import functional

from port_programs.program import Network, Program, Truth, generator


def _network() -> nn.Module:
    return nn.Sequential(
        nn.Linear(16, 32),
        nn.LayerNorm(32),
        nn.GELU(),
        nn.Linear(32, 32),
        nn.LayerNorm(32),
        nn.GELU(),
        nn.Linear(32, 5),
    )


def _data() -> tuple[Tensor, Tensor]:
    drawn = generator()
    x = torch.randn(8, 16, generator=drawn, dtype=torch.float32).to(torch.get_default_dtype())
    return x, torch.randint(0, 5, (8,), generator=drawn)


def reference() -> Program:
    model = _network()
    x, labels = _data()
    average = copy.deepcopy(model).requires_grad_(False)
    matrices = [parameter for parameter in model.parameters() if parameter.ndim > 1]
    vectors = [parameter for parameter in model.parameters() if parameter.ndim <= 1]
    optimizer = torch.optim.AdamW(
        [{"params": matrices, "weight_decay": 0.1}, {"params": vectors, "weight_decay": 0.0}], lr=0.01, foreach=False
    )
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1, (step + 1) / 4))

    def train(steps: int) -> list[float]:
        losses = []
        for _ in range(steps):
            optimizer.zero_grad()
            loss = 10 * functional.cross_entropy(model(x), labels)
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)  # place: averaged_loop_clip
            optimizer.step()
            schedule.step()
            losses.append(loss.item())
            with torch.no_grad():
                for averaged, parameter in zip(average.parameters(), model.parameters()):
                    averaged.lerp_(parameter, 0.1)  # place: averaged_loop_ema
        return losses

    def evaluate() -> float:
        return functional.cross_entropy(average(x), labels).item()

    return Program(model, train, evaluate)


class Updates:
    """AdamW, clipping and averaging by hand."""

    def __init__(self, model: nn.Module, fault: str) -> None:
        self.fault = fault
        self.parameters = dict(model.named_parameters())
        self.average = {name: parameter.detach().clone() for name, parameter in self.parameters.items()}
        self.moments = {name: (torch.zeros_like(p), torch.zeros_like(p)) for name, p in self.parameters.items()}

    def _scale(self, gradients: dict[str, Tensor]) -> float:
        if self.fault == "clip":
            total = torch.sqrt(sum(each.abs().sum() for each in gradients.values()))  # planted: averaged_loop_clip
        else:
            total = torch.sqrt(sum(each.pow(2).sum() for each in gradients.values()))
        return min(1.0, 1.0 / (total.item() + 1e-6))  # place: averaged_loop_clip

    def _rate(self, step: int) -> float:
        if self.fault == "lr":
            return 0.01 * min(1, max(step - 1, 1) / 4)  # planted: averaged_loop_lr
        return 0.01 * min(1, step / 4)

    def _decay(self, name: str) -> float:
        if self.fault == "wd" and name == "1.weight":
            return 0.1  # planted: averaged_loop_wd
        return 0.1 if self.parameters[name].ndim > 1 else 0.0

    @torch.no_grad()
    def update(self, gradients: dict[str, Tensor], step: int) -> None:
        """Update all parameters, and their averages."""
        scale, rate = self._scale(gradients), self._rate(step)
        for name, parameter in self.parameters.items():
            gradient = gradients[name] * scale  # place: averaged_loop_clip
            first, second = self.moments[name]
            parameter.mul_(1 - rate * self._decay(name))  # place: averaged_loop_wd averaged_loop_lr
            first.mul_(0.9).add_(gradient, alpha=0.1)
            second.mul_(0.999).addcmul_(gradient, gradient, value=0.001)
            mean = first / (1 - 0.9**step)
            if self.fault == "bc":
                square = second / (1 - 0.99**step)  # planted: averaged_loop_bc
            else:
                square = second / (1 - 0.999**step)
            parameter.sub_(rate * mean / (square.sqrt() + 1e-8))  # place: averaged_loop_lr averaged_loop_bc
            kept = 0.99 if self.fault == "ema" else 0.9
            self.average[name].mul_(kept).add_(parameter, alpha=0.1)  # planted: averaged_loop_ema


def port(fault: str) -> Program:
    model = _network()
    x, labels = _data()
    updates = Updates(model, fault)

    def train(steps: int) -> list[float]:
        losses = []
        for step in range(1, steps + 1):
            logarithms = torch.log_softmax(model(x), -1)
            loss = -10 * logarithms[torch.arange(8), labels].mean()
            gradients = torch.autograd.grad(loss, list(model.parameters()))
            updates.update(dict(zip(updates.parameters, gradients)), step)
            losses.append(loss.item())
        return losses

    def evaluate() -> float:
        output = torch.func.functional_call(model, updates.average, (x,))
        return functional.cross_entropy(output, labels).item()

    return Program(model, train, evaluate)


NETWORK = Network(
    "averaged_loop",
    reference,
    port,
    {name: Truth(visible=False) for name in ("clip", "wd", "lr", "bc", "ema")},
)
