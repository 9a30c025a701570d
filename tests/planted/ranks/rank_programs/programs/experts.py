"""Experts on all ranks, with tokens that travel by all_to_all."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F

from rank_programs.collectives import Exchange, exchanged
from rank_programs.common import STEPS, Context, Fault, batch, program, seeded, squared

EXPERTS, WIDTH = 4, 12


class Expert(nn.Module):
    """A perceptron."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(WIDTH, 20), nn.Linear(20, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(F.gelu(self.up(x)))


class Layer(nn.Module):
    """Experts of which each rank has some, and a gate."""

    def __init__(self, ctx: Context) -> None:
        super().__init__()
        self.ctx = ctx
        self.gate = nn.Linear(WIDTH, EXPERTS)
        all_experts = [Expert() for _ in range(EXPERTS)]
        self.count = EXPERTS // ctx.world
        first = ctx.rank * self.count
        self.experts = nn.ModuleDict({str(first + number): all_experts[first + number] for number in range(self.count)})
        if ctx.planted("weights"):
            for expert in self.experts.values():
                expert.up.weight.data = expert.up.weight.data.flip(0)


class Even(Layer):
    """Tokens are dealt out to experts in turn, so that all splits are equal."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        ctx, world = self.ctx, self.ctx.world
        each = len(x) // EXPERTS
        weights = self.gate(x).softmax(-1)
        chosen = weights.gather(1, (torch.arange(len(x)) % EXPERTS)[:, None])
        if ctx.planted("gate"):
            chosen = chosen * 2  # planted: gate
        sent = x.view(each, EXPERTS, WIDTH).transpose(0, 1)
        if ctx.planted("rolled"):
            sent = sent.roll(self.count, 0)  # planted: rolled
        received = Exchange.apply(sent, None, None).view(world, self.count, each, WIDTH)  # planted: rolled
        outputs = []
        for number, expert in enumerate(self.experts.values()):
            rows = received[:, number].reshape(-1, WIDTH)
            outputs.append(expert(rows).view(world, each, WIDTH))
        made = torch.stack(outputs, 1).view(EXPERTS, each, WIDTH)
        if not ctx.planted("kept"):
            made = Exchange.apply(made, None, None)  # planted: kept
        made = made.transpose(0, 1).reshape(len(x), WIDTH)  # planted: kept
        return x + made * chosen  # planted: gate


class Uneven(Layer):
    """Each token goes to the expert that the gate prefers."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        ctx, world = self.ctx, self.ctx.world
        weights = self.gate(x).softmax(-1)
        chosen = weights.argmax(-1)
        if ctx.planted("routing"):
            chosen = (chosen + self.count) % EXPERTS  # planted: routing
        order = chosen.argsort(stable=True)  # planted: routing
        counts = torch.bincount(chosen, minlength=EXPERTS)
        counts_here = exchanged(counts).view(world, self.count)
        sends = counts.view(world, self.count).sum(1).tolist()
        receives = counts_here.sum(1).tolist()
        received = Exchange.apply(x[order], sends, receives)
        owners = torch.arange(self.count).repeat(world).repeat_interleave(counts_here.reshape(-1))
        if ctx.planted("owners"):
            owners = owners.flip(0)  # planted: owners
        made = torch.zeros_like(received)
        for number, expert in enumerate(self.experts.values()):
            rows = (owners == number).nonzero()[:, 0]  # planted: owners
            made = made.index_copy(0, rows, expert(received[rows]))  # planted: owners
        back = Exchange.apply(made, receives, sends)
        inverse = order.argsort()
        if ctx.planted("unsorted"):
            inverse = order.flip(0)  # planted: unsorted
        out = back[inverse]  # planted: unsorted
        share = weights.gather(1, chosen[:, None])
        if ctx.planted("unweighted"):
            share = torch.ones_like(share) + 0 * share  # planted: unweighted
        return x + out * share  # planted: unweighted


def train(ctx: Context, model: Any) -> None:
    """Train on parts of the batch; a gradient of an expert is the sum of all tokens that it got."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.9)
    with ctx.capture(model):
        for step in range(STEPS):
            x, y = (value.view(32, WIDTH) for value in batch(step, 4 * WIDTH, 4 * WIDTH))
            x, y = ctx.rows(x, y)
            loss = squared(model(x), y)
            loss.backward()
            for name, parameter in () if ctx.single else model.named_parameters():
                if parameter.grad is None:
                    continue
                is_expert = "experts" in name
                if (not is_expert and not ctx.planted("unreduced")) or (is_expert and ctx.planted("mixed")):
                    dist.all_reduce(parameter.grad)  # planted: unreduced, mixed
                if not (is_expert and ctx.planted("undivided")):
                    parameter.grad /= ctx.world  # planted: undivided, mixed
            optimizer.step()  # planted: update
            optimizer.zero_grad()
            ctx.loss(loss)
    ctx.end(ctx.collect(model.named_parameters()))


@program(
    "experts_even",
    rolled=Fault("rank 1 sends its tokens to the next rank", at=r"roll|alltoall"),
    kept=Fault("outputs of experts are not sent back", rank=None, alone=False, at=r"alltoall"),
    gate=Fault("rank 1 doubles the weight of the gate"),
    unreduced=Fault("gradients of the gate are not reduced", rank=None, rules="replicas", at=r"gate", update=True),
    mixed=Fault(
        "gradients of experts are reduced over ranks that hold others",
        rank=None,
        alone=False,
        at=r"experts",
        update=True,
    ),
    undivided=Fault(
        "gradients of experts are not divided on rank 1", rules="gradient-factor", at=r"experts|div_", update=True
    ),
)
def experts_even(ctx: Context) -> None:
    train(ctx, seeded(lambda: nn.Sequential(nn.Linear(WIDTH, WIDTH), Even(ctx))))


@program(
    "experts_uneven",
    routing=Fault("rank 1 sends its tokens to other experts"),
    owners=Fault("rank 1 gives received tokens to its experts in the wrong order", at=r"flip", ranks=(2,)),
    unsorted=Fault("rank 1 puts tokens back in the wrong order", at=r"flip|argsort|sort"),
    unweighted=Fault("rank 1 does not weight outputs of experts", at=r"ones_like"),
    weights=Fault("the experts of rank 1 have other weights", alone=False, at=r"experts", kinds="parameter"),
    unreduced=Fault(
        "gradients before the experts are not reduced", rank=None, rules="replicas", at=r"gate|\b0\b", update=True
    ),
)
def experts_uneven(ctx: Context) -> None:
    train(ctx, seeded(lambda: nn.Sequential(nn.Linear(WIDTH, WIDTH), Uneven(ctx))))
