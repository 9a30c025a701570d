"""Tensor parallelism by hand, as in Megatron: columns and rows, norms of sequence parts, a vocabulary in parts."""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F

from rank_programs.collectives import Copy, Gather, Scatter, Sum, place, size
from rank_programs.common import STEPS, Context, Fault, batch, program, seeded, squared, tokens

WIDTH, HIDDEN, HEADS = 16, 32, 4


def part(whole: torch.Tensor, axis: int, group: Any, number: int | None = None) -> nn.Parameter:
    chunks = whole.detach().chunk(size(group), axis)
    return nn.Parameter(chunks[place(group) if number is None else number].clone())


class Columns(nn.Module):
    """A linear layer of which each rank has some outputs."""

    def __init__(self, ctx: Context, whole: nn.Linear, group: Any = None, blocks: int = 1) -> None:
        super().__init__()
        self.ctx, self.group = ctx, group
        number = (place(group) + 1) % size(group) if ctx.planted("shard") else None
        weights = [part(block, 0, group, number) for block in whole.weight.chunk(blocks)]
        biases = [part(block, 0, group, number) for block in whole.bias.chunk(blocks)]
        self.weight, self.bias = nn.Parameter(torch.cat(weights)), nn.Parameter(torch.cat(biases))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = Copy.apply(x, self.group, self.ctx.planted("backward"))  # planted: backward
        return F.linear(x, self.weight, self.bias)  # planted: shard


class Rows(nn.Module):
    """A linear layer of which each rank has some inputs."""

    def __init__(self, ctx: Context, whole: nn.Linear, group: Any = None) -> None:
        super().__init__()
        self.ctx, self.group = ctx, group
        self.weight = part(whole.weight, 1, group)
        self.bias = nn.Parameter(whole.bias.detach().clone())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.ctx.planted("bias"):
            return Sum.apply(F.linear(x, self.weight, self.bias), self.group)  # planted: bias
        out = F.linear(x, self.weight)  # planted: bias
        if not self.ctx.planted("forward"):
            out = Sum.apply(out, self.group)  # planted: forward, double
        if self.ctx.planted("double"):
            out = Sum.apply(out, self.group)  # planted: double
        return out + self.bias  # planted: forward, double, bias


class Block(nn.Module):
    """Attention and a perceptron in parts."""

    def __init__(self, ctx: Context, group: Any = None) -> None:
        super().__init__()
        self.ctx, self.group = ctx, group
        self.first, self.second = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv = Columns(ctx, nn.Linear(WIDTH, 3 * WIDTH), group, 3)
        self.proj = Rows(ctx, nn.Linear(WIDTH, WIDTH), group)
        self.up = Columns(ctx, nn.Linear(WIDTH, HIDDEN), group)
        self.down = Rows(ctx, nn.Linear(HIDDEN, WIDTH), group)

    def attention(self, x: torch.Tensor) -> torch.Tensor:
        rows, length, _ = x.shape
        q, k, v = (
            value.view(rows, length, HEADS // size(self.group), -1).transpose(1, 2)
            for value in self.qkv(x).chunk(3, -1)
        )
        scale = math.sqrt(WIDTH // HEADS)
        if self.ctx.planted("scale"):
            scale = 0.25
        scores = q @ k.transpose(-1, -2) / scale  # planted: scale
        out = scores.softmax(-1) @ v
        return self.proj(out.transpose(1, 2).reshape(rows, length, -1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attention(self.first(x))
        return x + self.down(F.gelu(self.up(self.second(x))))


def whole_of(ctx: Context, name: str, value: torch.Tensor, group: Any = None) -> torch.Tensor:
    """Return the whole of a parameter of a block, in the order of its parts on the ranks."""
    if ".up." in name or ".qkv." in name:
        if ".qkv." not in name:
            return ctx.whole(value, 0, group)
        return torch.cat([ctx.whole(block.contiguous(), 0, group) for block in value.chunk(3)])
    if name.endswith(("proj.weight", "down.weight")):
        return ctx.whole(value, 1, group)
    return value


def sequence_batch(step: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return inputs and targets of (rows, length, WIDTH)."""
    x, y = batch(step, 8 * WIDTH, 8 * WIDTH)
    return x.view(-1, 8, WIDTH), y.view(-1, 8, WIDTH)


@program(
    "megatron",
    forward=Fault(
        "no layer sums its outputs over the ranks",
        rank=None,
        update=True,
        at=r"allreduce|\b(proj|down)\b",
        rules="replicas unreduced-term",
    ),
    backward=Fault(
        "no layer sums the gradients of its inputs over the ranks",
        rank=None,
        update=True,
        rules="replicas unreduced-term",
        at=r"Copy|allreduce|\.(first|second)\b",
    ),
    double=Fault("outputs are summed twice", rank=None, alone=False, at=r"allreduce|\b(proj|down)\b"),
    bias=Fault("each rank adds the bias before the sum", rank=None, alone=False, at=r"allreduce|\b(proj|down)\b"),
    shard=Fault("rank 1 loads the column shard of its neighbour", alone=False, at=r"qkv|\bup\b", ranks=(4,)),
    scale=Fault("rank 1 scales its scores otherwise"),
    norm=Fault("another weight of a norm on rank 1", rules="replicas", at=r"1\.second"),
    eps=Fault("another eps of a norm on rank 1", at=r"0\.first"),
)
def megatron(ctx: Context) -> None:
    model = seeded(lambda: nn.Sequential(Block(ctx), Block(ctx)))
    if ctx.planted("norm"):
        model[1].second.weight.data.fill_(1.6)
    if ctx.planted("eps"):
        model[0].first.eps = 0.6
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2, momentum=0.9)
    with ctx.capture(model):
        for step in range(STEPS):
            x, y = sequence_batch(step)
            loss = squared(model(x), y)
            loss.backward()  # planted: backward
            optimizer.step()  # planted: update
            optimizer.zero_grad()
            ctx.loss(loss)
    ctx.end((name, whole_of(ctx, f".{name}", value)) for name, value in model.named_parameters())


class Sequence(nn.Module):
    """A perceptron in parts between norms that each see a part of the sequence."""

    def __init__(self, ctx: Context) -> None:
        super().__init__()
        self.ctx = ctx
        self.first, self.last = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        up, down = nn.Linear(WIDTH, HIDDEN), nn.Linear(HIDDEN, WIDTH)
        self.up_weight, self.up_bias = part(up.weight, 0, None), part(up.bias, 0, None)
        self.down_weight, self.down_bias = part(down.weight, 1, None), nn.Parameter(down.bias.detach().clone())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = Gather.apply(self.first(x), None, self.ctx.planted("cut"))  # planted: cut
        if self.ctx.planted("order"):
            h = h.roll(2, 0)  # planted: order
        h = F.gelu(F.linear(h, self.up_weight, self.up_bias))  # planted: order
        h = F.linear(h, self.down_weight)
        h = Scatter.apply(h, None) + self.down_bias
        return self.last(x + h)


@program(
    "sequence_parallel",
    unreduced=Fault(
        "gradients of the norms are not summed over the ranks",
        rank=None,
        rules="replicas",
        update=True,
        at=r"\b(first|last)[./]|down_bias",
    ),
    averaged=Fault(
        "gradients of the norms are averaged instead of summed",
        rank=None,
        alone=False,
        update=True,
        at=r"\b(first|last)[./]|down_bias",
    ),
    cut=Fault(
        "the backward of the gather only cuts",
        rank=None,
        update=True,
        at=r"first[./]|Gather|reduce_scatter|chunk|split|slice",
    ),
    order=Fault("rank 1 rolls the gathered sequence", at=r"roll"),
    part=Fault("rank 1 takes the part of the sequence of rank 0", alone=False, kinds="input", at=r"first[./]"),
    eps=Fault("another eps of the last norm on rank 1", at=r"\blast([./]|$)"),
)
def sequence_parallel(ctx: Context) -> None:
    model = seeded(lambda: Sequence(ctx))
    if ctx.planted("eps"):
        model.last.eps = 0.7
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2, momentum=0.9)
    with ctx.capture(model):
        for step in range(STEPS):
            x, y = (value.transpose(0, 1).contiguous() for value in sequence_batch(step))
            mine = (0 if ctx.planted("part") else ctx.rank) if not ctx.single else 0
            x, y = ctx.rows(x, rank=mine)[0], ctx.rows(y)[0]
            loss = squared(model(x), y) / ctx.world  # planted: part
            loss.backward()  # planted: cut
            for name, parameter in model.named_parameters():
                if not ctx.single and name.startswith(("first", "last", "down_bias")) and not ctx.planted("unreduced"):
                    dist.all_reduce(parameter.grad)  # planted: unreduced, averaged
                    if ctx.planted("averaged"):
                        parameter.grad /= ctx.world  # planted: averaged
            optimizer.step()  # planted: update
            optimizer.zero_grad()
            ctx.loss(loss * ctx.world)
    axes = {"up_weight": 0, "up_bias": 0, "down_weight": 1}
    ctx.end((name, ctx.whole(value, axes[name]) if name in axes else value) for name, value in model.named_parameters())


class Vocabulary(nn.Module):
    """A language model whose embedding, head and cross entropy have a part of the vocabulary on each rank."""

    def __init__(self, ctx: Context) -> None:
        super().__init__()
        self.ctx = ctx
        self.count = 32 // ctx.world
        self.table = part(torch.randn(32, WIDTH), 0, None)
        self.norm = nn.LayerNorm(WIDTH)
        self.head = part(torch.randn(32, WIDTH) / 4, 0, None)

    def embed(self, ids: torch.Tensor) -> torch.Tensor:
        start = self.ctx.rank * self.count
        if self.ctx.planted("offset"):
            start = start - 1
        local = ids - start  # planted: offset
        outside = (local < 0) | (local >= self.count)
        rows = F.embedding(local.clamp(0, self.count - 1), self.table)
        if not self.ctx.planted("mask"):
            rows = rows.masked_fill(outside[..., None], 0.0)  # planted: mask
        if self.ctx.planted("embedding"):
            return rows
        return Sum.apply(rows, None)  # planted: embedding, mask

    def cross_entropy(self, x: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        x = Copy.apply(x, None, self.ctx.planted("gradient"))  # planted: gradient
        logits = F.linear(x, self.head)
        largest = logits.detach().amax(-1)
        if not self.ctx.single:
            dist.all_reduce(largest, op=dist.ReduceOp.MAX)
        shifted = logits - largest[..., None]
        total = shifted.exp().sum(-1)
        if not self.ctx.planted("denominator"):
            total = Sum.apply(total, None)  # planted: denominator
        local = targets - self.ctx.rank * self.count
        outside = (local < 0) | (local >= self.count)
        picked = shifted.gather(-1, local.clamp(0, self.count - 1)[..., None])[..., 0]
        picked = picked.masked_fill(outside, 0.0)
        if not self.ctx.planted("target"):
            picked = Sum.apply(picked, None)  # planted: target
        return (total.log() - picked).mean()  # planted: denominator, target

    def forward(self, ids: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return self.cross_entropy(self.norm(self.embed(ids)), targets)  # planted: embedding


@program(
    "vocabulary",
    offset=Fault("rank 1 begins its part of the vocabulary one token early", alone=False),
    mask=Fault("rank 1 does not mask the tokens of others", at=r"masked_fill|allreduce"),
    embedding=Fault(
        "embeddings are not summed over the ranks",
        rank=None,
        at=r"norm|allreduce|embedding",
        update=True,
        rules="replicas unreduced-term",
    ),
    denominator=Fault("the denominator is not summed over the ranks", rank=None, update=True, at=r"allreduce"),
    target=Fault(
        "the logit of the target is not summed over the ranks",
        rank=None,
        update=True,
        at=r"allreduce|gather|masked_fill",
    ),
    gradient=Fault(
        "gradients before the head are not summed over the ranks",
        rank=None,
        rules="replicas",
        at=r"norm|Copy|allreduce",
        update=True,
    ),
)
def vocabulary(ctx: Context) -> None:
    model = seeded(lambda: Vocabulary(ctx))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.9)
    with ctx.capture(model):
        for step in range(STEPS):
            loss = model(*tokens(step))
            loss.backward()  # planted: gradient
            optimizer.step()  # planted: update
            optimizer.zero_grad()
            ctx.loss(loss)
    ctx.end((name, value if "norm" in name else ctx.whole(value)) for name, value in model.named_parameters())


@program(
    "tp_dp",
    ranks=(4,),
    wrong_group=Fault(
        "gradients are averaged over the tensor-parallel group", rank=None, rules="replicas", update=True, ranks=(4,)
    ),
    world=Fault(
        "gradients are averaged over all ranks",
        rank=None,
        alone=False,
        update=True,
        ranks=(4,),
        at=r"(up|qkv|down|proj)",
    ),
    undivided=Fault(
        "one gradient is not divided", rank=None, rules="gradient-factor", at=r"up\.weight", update=True, ranks=(4,)
    ),
    missing=Fault(
        "one gradient is not reduced over the data-parallel group",
        rank=None,
        rules="replicas",
        at=r"qkv\.bias",
        update=True,
        ranks=(4,),
    ),
    rate=Fault(
        "the ranks of rank 3 learn at another rate", rank=3, rules="replicas shard-update", update=True, ranks=(4,)
    ),
)
def tp_dp(ctx: Context) -> None:
    tensor_group = data_group = None
    if not ctx.single:
        mesh = torch.distributed.init_device_mesh("cpu", (2, 2), mesh_dim_names=("data", "tensor"))
        tensor_group, data_group = mesh["tensor"].get_group(), mesh["data"].get_group()
    model = seeded(lambda: nn.Sequential(Block(ctx, tensor_group), nn.Linear(WIDTH, WIDTH)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.6 if ctx.planted("rate") else 0.2, momentum=0.9)
    groups = {"wrong-group": tensor_group, "world": None}
    with ctx.capture(model):
        for step in range(STEPS):
            x, y = sequence_batch(step)
            if not ctx.single:
                x, y = ctx.rows(x, y, rank=place(data_group), of=2)
            loss = squared(model(x), y)
            loss.backward()
            group = next((groups[key] for key in groups if ctx.planted(key)), data_group)
            for name, parameter in model.named_parameters():
                if ctx.single or (ctx.planted("missing") and name == "0.qkv.bias"):
                    continue
                dist.all_reduce(parameter.grad, group=group)  # planted: wrong-group, world, missing
                if not (ctx.planted("undivided") and name == "0.up.weight"):
                    parameter.grad /= size(group)  # planted: undivided, world, missing
            optimizer.step()  # planted: rate, update
            optimizer.zero_grad()
            ctx.loss(loss)
    ctx.end((name, whole_of(ctx, f".{name}", value, tensor_group)) for name, value in model.named_parameters())
