"""Attention over a sequence of which each rank has a part: a ring, and an exchange of heads (Ulysses)."""

from __future__ import annotations

import math

import torch
import torch.distributed as dist
from torch import nn

from rank_programs.collectives import Exchange, Shift
from rank_programs.common import STEPS, Context, Fault, batch, program, seeded, squared

WIDTH, HEADS, LENGTH = 16, 4, 8
DEPTH = WIDTH // HEADS


class Ring(nn.Module):
    """Causal attention that passes keys and values round a ring."""

    def __init__(self, ctx: Context) -> None:
        super().__init__()
        self.ctx = ctx
        self.qkv, self.proj = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        ctx = self.ctx
        rows, length, _ = x.shape
        parts = self.qkv(x).view(rows, length, 3, HEADS, DEPTH).permute(2, 0, 3, 1, 4)
        q, pairs = parts[0], parts[1:]
        positions = torch.arange(length)
        out = torch.zeros_like(q)
        total = torch.full((rows, HEADS, length, 1), -1e9)
        hops = ctx.world - 1 if ctx.planted("hop") else ctx.world
        for hop in range(hops):
            k, v = pairs[0], pairs[1]  # planted: stale, neighbour
            origin = (ctx.rank - hop) % ctx.world
            if ctx.planted("mask") and hop == 1:
                origin = 0 if ctx.rank > 1 else ctx.world - 1
            late = positions + origin * length > (positions + ctx.rank * length)[:, None]  # planted: mask
            scores = (q @ k.transpose(-1, -2) / math.sqrt(DEPTH)).masked_fill(late, -1e9)  # planted: mask
            if ctx.planted("scale") and hop == 0:
                scores = scores * 3  # planted: scale
            mass = scores.logsumexp(-1, keepdim=True)
            merged = torch.logaddexp(total, mass)
            weight = (total - merged).exp()
            if ctx.planted("merge"):
                weight = torch.ones_like(weight)  # planted: merge
            out = out * weight + (scores - merged).exp() @ v  # planted: merge, hop
            total = merged
            if hop + 1 < ctx.world:
                by = 2 if ctx.planted("neighbour") else 1
                received = Shift.apply(pairs, by)  # planted: neighbour, hop
                # The old keys stay in use, but the received ones keep their place in the backward pass.
                pairs = pairs + 0 * received if ctx.planted("stale") else received  # planted: stale
        return x + self.proj(out.transpose(1, 2).reshape(rows, length, WIDTH))


class Ulysses(nn.Module):
    """Attention that exchanges parts of the sequence for heads, and back."""

    def __init__(self, ctx: Context) -> None:
        super().__init__()
        self.ctx = ctx
        self.qkv, self.proj = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        ctx, world = self.ctx, self.ctx.world
        rows, length, _ = x.shape
        heads = HEADS // world
        parts = self.qkv(x).view(rows, length, 3, world, heads, DEPTH).permute(3, 2, 0, 4, 1, 5)
        if ctx.planted("heads"):
            parts = parts.roll(1, 0)  # planted: heads
        whole = Exchange.apply(parts, None, None)  # planted: heads
        whole = whole.permute(1, 2, 3, 0, 4, 5)
        if ctx.planted("interleaved"):
            whole = whole.transpose(3, 4)  # planted: interleaved
        q, k, v = whole.reshape(3, rows, heads, world * length, DEPTH)  # planted: interleaved
        scale = 1.0 if ctx.planted("scale") else math.sqrt(DEPTH)
        late = torch.ones(world * length, world * length).triu(1).bool()
        scores = (q @ k.transpose(-1, -2) / scale).masked_fill(late, -1e9)  # planted: scale
        out = scores.softmax(-1) @ v
        out = out.view(rows, heads, world, length, DEPTH).permute(2, 0, 1, 3, 4)
        out = Exchange.apply(out, None, None)  # planted: back
        if ctx.planted("back"):
            out = out.flip(0)  # planted: back
        return x + self.proj(out.permute(1, 3, 0, 2, 4).reshape(rows, length, WIDTH))  # planted: back


def train(ctx: Context, model: nn.Module) -> None:
    """Train on parts of the sequence; gradients are averaged."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.4, momentum=0.9)
    with ctx.capture(model):
        for step in range(STEPS):
            x, y = (value.view(8, LENGTH, WIDTH)[:4] for value in batch(step, LENGTH * WIDTH, LENGTH * WIDTH))
            x, y = ctx.rows(x, y, axis=1)
            loss = squared(model(x), y)
            loss.backward()
            for name, parameter in () if ctx.single else model.named_parameters():
                if not (ctx.planted("unreduced") and name.endswith("proj.bias")):
                    dist.all_reduce(parameter.grad)  # planted: unreduced
                    parameter.grad /= ctx.world  # planted: unreduced
            optimizer.step()  # planted: update
            optimizer.zero_grad()
            ctx.loss(loss)
    ctx.end(model.named_parameters())


@program(
    "ring",
    neighbour=Fault("keys are sent two places on", rank=None, alone=False, at=r"send|recv", ranks=(4,)),
    mask=Fault("rank 1 masks the keys of a hop as if they came from elsewhere", at=r"masked_fill", alone=False),
    hop=Fault("the last hop is left out", rank=None, alone=False, at=r"send|recv"),
    scale=Fault("rank 1 scales the scores of its own block"),
    merge=Fault("rank 1 does not scale the sum before it adds a block", at=r"ones_like"),
    stale=Fault("rank 1 uses its own keys instead of the received ones"),
    unreduced=Fault(
        "the gradient of one bias is not reduced", rank=None, rules="replicas", at=r"proj\.bias", update=True
    ),
)
def ring(ctx: Context) -> None:
    train(ctx, seeded(lambda: nn.Sequential(Ring(ctx), nn.LayerNorm(WIDTH), Ring(ctx))))


@program(
    "ulysses",
    heads=Fault("rank 1 sends its heads to the next ranks", at=r"roll|alltoall"),
    interleaved=Fault("received parts of the sequence are interleaved", rank=None, alone=False),
    scale=Fault("rank 1 scales its scores otherwise"),
    back=Fault("rank 1 puts received heads in the wrong order", at=r"flip"),
    unreduced=Fault(
        "the gradient of one bias is not reduced", rank=None, rules="replicas", at=r"proj\.bias", update=True
    ),
)
def ulysses(ctx: Context) -> None:
    train(ctx, seeded(lambda: nn.Sequential(Ulysses(ctx), nn.LayerNorm(WIDTH), Ulysses(ctx))))
