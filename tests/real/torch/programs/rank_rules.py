"""Two ranks on gloo that run different operators, on purpose or by mistake.

rank_rules.py DIRECTORY NAME...     run these scenarios one after the other, each captured to DIRECTORY/NAME

A name is a kind of parallelism, such as `data`, and after a dot the way in which the second rank differs.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from scenarios import start
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.nn.functional import all_to_all_single
from torch.distributed.tensor import DTensor

import ascend_dump

RANKS = 2
WIDTH = 8
STEPS = 2


class Padded(nn.Module):
    """A model that masks padded rows, and skips the mask where no row is padded."""

    def __init__(self, ways: str) -> None:
        super().__init__()
        self.ways = ways
        self.up, self.down = nn.Linear(WIDTH, 16), nn.Linear(16, WIDTH)

    def forward(self, x: torch.Tensor, padding: torch.Tensor) -> torch.Tensor:
        if padding.any():
            x = x * (1 - padding.to(x.dtype)[:, None])
        x = self.up(x)
        if self.ways == "scaled" and dist.get_rank() == 1:
            x = x * 1.001
        return self.down(x.relu())


def data(ways: str, path: Path) -> None:
    """Healthy: "padding" (a mask on one rank), "clipped" (each rank clips its own gradients), "logged", "averaged"."""
    model = Padded(ways)
    rows = torch.Generator().manual_seed(dist.get_rank())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    total, mean = torch.zeros(()), [parameter.detach().clone() for parameter in model.parameters()]
    is_second = dist.get_rank() == 1
    with ascend_dump.capture(model, path=path, steps="0-1", strict=True, quiet=True):
        for _ in range(STEPS):
            x = torch.randn(4, WIDTH, generator=rows)
            padding = torch.tensor([False, False, False, ways == "padding" and is_second])
            loss = (model(x, padding) - x).square().mean()
            loss.backward()
            gradients = [parameter.grad for parameter in model.parameters() if parameter.grad is not None]
            if ways == "logged" and is_second:
                total.add_(loss.detach())
                total *= 0.5
            if ways == "clipped" and is_second:
                for gradient in gradients:
                    gradient.mul_(0.25)
            if ways == "gradient" and is_second:
                gradients[2].view(-1)[3] *= 3
            for gradient in gradients:
                dist.all_reduce(gradient)
                if not (ways == "undivided" and gradient is gradients[1]):
                    gradient /= RANKS
            optimizer.step()
            optimizer.zero_grad()
            if ways == "averaged" and is_second:
                for average, parameter in zip(mean, model.parameters()):
                    average.mul_(0.9).add_(parameter.detach(), alpha=0.1)
            if ways == "parameter" and is_second:
                model.up.weight.data.view(-1)[3] += 0.5


class Experts(nn.Module):
    """One expert on each rank. Rank 1 sends tokens to the wrong one if `ways` is "routing"."""

    def __init__(self, ways: str) -> None:
        super().__init__()
        self.ways = ways
        self.gate, self.expert = nn.Linear(WIDTH, RANKS), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        weights = self.gate(x).softmax(-1)
        expert = weights.argmax(-1)
        if self.ways == "routing" and dist.get_rank() == 1:
            expert = (expert + 1) % RANKS
        order = expert.argsort(stable=True)
        counts = torch.bincount(expert, minlength=RANKS)
        received = torch.empty_like(counts)
        dist.all_to_all_single(received, counts)
        sent, got = counts.tolist(), received.tolist()
        tokens = all_to_all_single(x.new_empty(sum(got), WIDTH), x[order], got, sent)
        if len(tokens):
            tokens = self.expert(tokens)
        results = all_to_all_single(x.new_empty(sum(sent), WIDTH), tokens, sent, got)
        return torch.zeros_like(results).index_copy(0, order, results) * weights.gather(1, expert[:, None])


def experts(ways: str, path: Path) -> None:
    """Healthy: "idle" (no token reaches the second rank)."""
    model = Experts(ways)
    if ways == "idle":
        with torch.no_grad():
            model.gate.bias.copy_(torch.tensor([100.0, 0.0]))
    rows = torch.Generator().manual_seed(dist.get_rank())
    with ascend_dump.capture(model, path=path, steps="0-1", strict=True, quiet=True), torch.no_grad():
        for _ in range(STEPS):
            model(torch.randn(6, WIDTH, generator=rows))


def shards(ways: str, path: Path) -> None:
    """Parts of parameters. On the second rank: "rate" (learning rate), "norm" (clips by the norm of its own part)."""
    model = nn.Sequential(nn.Linear(WIDTH, 16), nn.ReLU(), nn.Linear(16, WIDTH))
    fully_shard(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    rows = torch.Generator().manual_seed(dist.get_rank())
    with ascend_dump.capture(model, path=path, steps="0-1", strict=True, quiet=True):
        for _ in range(STEPS):
            x = torch.randn(4, WIDTH, generator=rows)
            (model(x) - x).square().mean().backward()
            if ways == "norm":
                parts = [
                    parameter.grad.to_local() for parameter in model.parameters() if isinstance(parameter.grad, DTensor)
                ]
                norm = torch.stack([part.norm() for part in parts]).norm().item()
                for parameter in model.parameters():
                    if parameter.grad is not None:
                        parameter.grad.mul_(0.1 / norm)
            else:
                nn.utils.clip_grad_norm_(model.parameters(), 0.1)
            if ways == "rate" and dist.get_rank() == 1:
                optimizer.param_groups[0]["lr"] = 0.2
            optimizer.step()
            optimizer.zero_grad()


class Summed(torch.autograd.Function):
    """The sum over ranks; its gradient is that of each term."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        total = x.clone()
        dist.all_reduce(total)
        return total

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        return gradient


class Halves(nn.Module):
    """Two linear layers, of which each rank has one half; their input and the bias at the end are whole."""

    def __init__(self) -> None:
        super().__init__()
        self.start = nn.Parameter(torch.ones(WIDTH))
        self.up, self.down = nn.Linear(WIDTH, 8), nn.Linear(8, WIDTH, bias=False)
        self.end = nn.Parameter(torch.randn(WIDTH))
        torch.manual_seed(1 + dist.get_rank())
        for part in (self.up.weight, self.down.weight):
            nn.init.normal_(part)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return Summed.apply(self.down(self.up(x * self.start).relu())) + self.end


def tensor(ways: str, path: Path) -> None:
    """Tensor parallelism. "norm": each rank clips by the norm of its own gradients."""
    model = Halves()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    rows = torch.Generator().manual_seed(0)
    with ascend_dump.capture(model, path=path, steps="0-1", strict=True, quiet=True):
        for _ in range(STEPS):
            x = torch.randn(4, WIDTH, generator=rows)
            (model(x) - x).square().mean().backward()
            assert model.start.grad is not None
            dist.all_reduce(model.start.grad)
            if ways == "norm":
                nn.utils.clip_grad_norm_(model.parameters(), 0.1)
            optimizer.step()
            optimizer.zero_grad(set_to_none=False)


SCENARIOS = {"data": data, "experts": experts, "shards": shards, "tensor": tensor}


def run(name: str, directory: Path) -> None:
    kind, _, ways = name.partition(".")
    SCENARIOS[kind](ways, directory)


if __name__ == "__main__":
    start(RANKS, run)
