"""Training on two ranks of gloo, or on one rank with the whole batch: `RANKS=1|2 against_one.py DIRECTORY NAME...`.

A name is a kind of training, and after a dot a mistake.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from scenarios import start
from torch import nn

import ascend_dump

WIDTH, ROWS, STEPS = 8, 8, 2


def is_wrong(ways: str, mistake: str) -> bool:
    """Return True on the second rank if it makes this mistake."""
    return ways == mistake and dist.get_rank() == 1


class Centred(nn.Module):
    """A linear layer whose results are centred over the rows of all ranks; "local" takes those of one rank."""

    def __init__(self, ways: str) -> None:
        super().__init__()
        self.ways = ways
        self.inner = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.inner(x)
        mean = x.detach().mean(0)
        if dist.get_world_size() > 1 and self.ways != "local":
            dist.all_reduce(mean)
            mean = mean / dist.get_world_size()
        return x - mean


def rows_of(step: int) -> torch.Tensor:
    whole = torch.randn(ROWS, WIDTH, generator=torch.Generator().manual_seed(step))
    return whole.chunk(dist.get_world_size())[dist.get_rank()].clone()


def means(ways: str, path: Path) -> None:
    """Gradients are averaged in memory of their own. The second rank exchanges two of them ("exchanged"), or does not
    copy one back ("kept"). All ranks take the largest one ("largest").
    """
    model = nn.Sequential(nn.Linear(WIDTH, WIDTH), Centred(ways), nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WIDTH))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.9)
    parameters = [*model.parameters()]
    order = [*parameters]
    if is_wrong(ways, "exchanged"):
        order[4], order[5] = order[5], order[4]
    with ascend_dump.capture(model, path=path, steps=f"0-{STEPS - 1}", strict=True, quiet=True):
        for step in range(STEPS):
            x = rows_of(step)
            (model(x) - x).square().mean().backward()
            for parameter in order if dist.get_world_size() > 1 else ():
                assert parameter.grad is not None
                mean = parameter.grad / dist.get_world_size()
                dist.all_reduce(mean, dist.ReduceOp.MAX if ways == "largest" else dist.ReduceOp.SUM)
                if not (is_wrong(ways, "kept") and parameter is parameters[-1]):
                    parameter.grad.copy_(mean)
            optimizer.step()
            optimizer.zero_grad()


def parts(ways: str, path: Path) -> None:
    """Each rank updates its part of all parameters by its part of the clipped gradient. The second rank does not divide
    the sum over ranks ("undivided"), or sends its part as it was before the update ("old").
    """
    model = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.Linear(WIDTH, WIDTH))
    parameters = [*model.parameters()]
    ranks, rank = dist.get_world_size(), dist.get_rank()
    own = torch.cat([parameter.detach().flatten() for parameter in parameters]).chunk(ranks)[rank].clone()
    with ascend_dump.capture(model, path=path, steps=f"0-{STEPS - 1}", strict=True, quiet=True):
        for step in range(STEPS):
            x = rows_of(step)
            (model(x) - x).square().mean().backward()
            gradient = torch.cat([parameter.grad.flatten() for parameter in parameters if parameter.grad is not None])
            if ranks > 1:
                part = torch.empty_like(own)
                dist.reduce_scatter_tensor(part, gradient)
                if not is_wrong(ways, "undivided"):
                    part.div_(ranks)
                gradient = part
            squares = gradient.square().sum()
            if ranks > 1:
                dist.all_reduce(squares)
            gradient.mul_((0.1 / squares.sqrt()).clamp(max=1.0))
            sent = own.clone() if is_wrong(ways, "old") else own
            own.sub_(gradient, alpha=2.0)
            whole = own
            if ranks > 1:
                received = [torch.empty_like(own) for _ in range(ranks)]
                dist.all_gather(received, sent)
                whole = torch.cat(received)
            for parameter, value in zip(parameters, whole.split([parameter.numel() for parameter in parameters])):
                parameter.data.copy_(value.view_as(parameter))
            model.zero_grad()


class Gathered(torch.autograd.Function):
    """The rows of all ranks. Backward adds up their gradients over the ranks, or only cuts out those of one ("cut")."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, ways: str) -> torch.Tensor:
        ctx.ways = ways
        whole = x.new_empty(len(x) * dist.get_world_size(), *x.shape[1:])
        dist.all_gather_into_tensor(whole, x.contiguous())
        return whole

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, None]:
        own = gradients[0].chunk(dist.get_world_size())[dist.get_rank()]
        if ctx.ways != "cut":
            own = torch.empty_like(own)
            dist.reduce_scatter_tensor(own, gradients[0].contiguous())
        return own, None


def pairs(ways: str, path: Path) -> None:
    """Each rank compares its rows with those of all ranks. Weights of the rows are those of the first rank, or of the
    second one ("source").
    """
    model = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    ranks, rank = dist.get_world_size(), dist.get_rank()
    with ascend_dump.capture(model, path=path, steps=f"0-{STEPS - 1}", strict=True, quiet=True):
        for step in range(STEPS):
            own = model(rows_of(step))
            weights = torch.arange(ROWS).add(step)
            weights = weights.cos() if rank else weights.sin()
            if ranks > 1:
                dist.broadcast(weights, 1 if ways == "source" else 0)
            rows = own.sin()
            whole = rows if ranks == 1 else Gathered.apply(rows, ways)
            scores = (own @ whole.T).square().mean(1)
            (scores * weights.chunk(ranks)[rank]).mean().backward()
            for parameter in model.parameters() if ranks > 1 else ():
                assert parameter.grad is not None
                dist.all_reduce(parameter.grad)
                parameter.grad /= ranks
            optimizer.step()
            optimizer.zero_grad()


if __name__ == "__main__":
    kinds = {"means": means, "parts": parts, "pairs": pairs}

    def run(name: str, directory: Path) -> None:
        kind, _, ways = name.partition(".")
        kinds[kind](ways, directory)

    start(int(os.environ["RANKS"]), run)
