"""Averages of weights, tied embeddings, and one rank that owns the weights."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F

from rank_programs.collectives import average_gradients
from rank_programs.common import STEPS, Context, Fault, Net, batch, program, seeded, squared, tokens


@program(
    "ema",
    decay=Fault("another decay of the average on rank 1", rules="replicas shard-update"),
    left=Fault("rank 1 leaves one tensor out of the average", at=r"\bmid\b"),
    early=Fault("rank 1 averages before the optimizer", rules="replicas shard-update"),
    exchanged=Fault(
        "rank 1 exchanges two reductions of the same size",
        rules="collective-order replicas disagreement",
        at=r"norm\.(weight|bias)|allreduce",
    ),
    stale=Fault(
        "rank 1 does not take over the averaged gradient of one parameter", rules="replicas", at=r"outlet\.bias"
    ),
)
def ema(ctx: Context) -> None:
    net = seeded(Net)
    averages = {name: value.detach().clone() for name, value in net.named_parameters()}
    optimizer = torch.optim.SGD(net.parameters(), lr=0.3, momentum=0.9)
    weight = 0.7 if ctx.planted("decay") else 0.1

    def average() -> None:
        for name, value in net.named_parameters():
            if not (ctx.planted("left") and name == "mid.weight"):
                averages[name].lerp_(value.detach(), weight)  # planted: decay, left, early

    with ctx.capture(net):
        for step in range(STEPS):
            x, y = ctx.rows(*batch(step))
            loss = squared(net(x), y)
            loss.backward()
            parameters = [] if ctx.single else list(net.parameters())
            if ctx.planted("exchanged"):
                parameters[2], parameters[3] = parameters[3], parameters[2]
            for parameter in parameters:
                mean = parameter.grad / ctx.world
                dist.all_reduce(mean)  # planted: exchanged
                if not (ctx.planted("stale") and parameter is net.outlet.bias):
                    parameter.grad.copy_(mean)  # planted: stale
            if ctx.planted("early"):
                average()  # planted: early
            optimizer.step()
            if not ctx.planted("early"):
                average()  # planted: early
            optimizer.zero_grad()
            ctx.loss(loss)
    ctx.end([*net.named_parameters(), *((f"average {name}", value) for name, value in averages.items())])


class Tied(nn.Module):
    """A language model whose head is its embedding."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(32, 16)
        self.mixing = nn.Linear(16, 16)
        self.norm = nn.LayerNorm(16)

    def forward(self, ids: torch.Tensor, scale: float) -> torch.Tensor:
        h = self.table(ids)
        before = h.cumsum(1) / torch.arange(1, ids.shape[1] + 1)[:, None]
        h = self.norm(h + self.mixing(before).tanh())
        return F.linear(h, self.table.weight) * scale  # planted: scale


@program(
    "tied",
    twice=Fault(
        "the gradient of the tied weight is reduced twice", rank=None, rules="gradient-factor", update=True, at=r"table"
    ),
    left=Fault("the gradient of the tied weight is not reduced", rank=None, rules="replicas", at=r"table", update=True),
    scale=Fault("another scale of the logits on rank 1"),
    seed=Fault("rank 1 begins with another seed", rules="replicas", kinds="parameter"),
    divided=Fault(
        "the gradient of the tied weight is divided twice", rank=None, rules="gradient-factor", at=r"table", update=True
    ),
)
def tied(ctx: Context) -> None:
    model = seeded(Tied, 12 if ctx.planted("seed") else 11)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.5)
    scale = 1.0 if ctx.planted("scale") else 0.25
    with ctx.capture(model):
        for step in range(STEPS):
            ids, targets = ctx.rows(*tokens(step))
            loss = F.cross_entropy(model(ids, scale).flatten(0, 1), targets.flatten())
            loss.backward()
            for name, parameter in () if ctx.single else model.named_parameters():
                is_tied = name.startswith("table")
                if is_tied and ctx.planted("left"):
                    continue
                dist.all_reduce(parameter.grad)  # planted: left
                if is_tied and ctx.planted("twice"):
                    dist.all_reduce(parameter.grad)  # planted: twice
                parameter.grad /= ctx.world  # planted: left, divided, twice
                if is_tied and ctx.planted("divided"):
                    parameter.grad /= ctx.world  # planted: divided
            optimizer.step()  # planted: update
            optimizer.zero_grad()
            ctx.loss(loss)
    ctx.end(model.named_parameters())


@program(
    "server",
    broadcast=Fault("one weight is not sent back", rank=None, rules="replicas", at=r"mid\.weight"),
    scatter=Fault(
        "the rows of the first rank are sent twice, and the last ones to no rank",
        rank=0,
        alone=False,
        at=r"scatter",
        kinds="input",
    ),
    weight=Fault("rank 0 forgets its own gradients", rank=0, alone=False, update=True),
    count=Fault("rank 0 divides by another number", rank=0, alone=False, update=True),
    silent=Fault("rank 1 does not send one of its gradients", rules="collective-order", hangs=True),
    corrupted=Fault("rank 1 adds noise to a gradient that it sends", at=r"add_"),
)
def server(ctx: Context) -> None:
    model = seeded(Net)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.3, momentum=0.5)
    rows = 8 // ctx.world
    with ctx.capture(model):
        for step in range(STEPS):
            x, y = batch(step)
            if not ctx.single:
                whole = torch.cat([x, y], 1).chunk(ctx.world)
                if ctx.planted("scatter"):
                    whole = (whole[0], *whole[:-1])
                mine = torch.empty(rows, 18)
                dist.scatter(mine, [part.contiguous() for part in whole] if ctx.rank == 0 else None)  # planted: scatter
                x, y = mine[:, :12], mine[:, 12:]  # planted: scatter
            loss = squared(model(x), y)
            loss.backward()
            for name, parameter in model.named_parameters():
                gradient = parameter.grad
                if ctx.planted("corrupted") and name == "norm.weight":
                    gradient.add_(torch.linspace(-1, 1, 24))  # planted: corrupted
                if ctx.planted("silent") and step == 1 and name == "mid.bias":
                    continue
                if not ctx.single:
                    received = [torch.empty_like(gradient) for _ in range(ctx.world)] if ctx.rank == 0 else None
                    dist.gather(gradient, received)  # planted: silent
                    if received is not None:
                        first = 1 if ctx.planted("weight") else 0
                        total = torch.stack(received[first:]).sum(0)  # planted: weight
                        parameter.grad = total / (1 if ctx.planted("count") else ctx.world)  # planted: count
            if ctx.rank == 0:
                optimizer.step()  # planted: update
            optimizer.zero_grad()
            for name, parameter in () if ctx.single else model.named_parameters():
                if not (ctx.planted("broadcast") and name == "mid.weight"):
                    dist.broadcast(parameter.data, 0)  # planted: broadcast
            ctx.loss(loss)
    ctx.end(model.named_parameters())


@program(
    "frozen",
    seed=Fault("the frozen layer has other weights on rank 1", rules="replicas", at=r"inlet"),
    sign=Fault("rank 1 turns round the averaged gradient of one weight", at=r"mul_", rules="replicas"),
    slope=Fault("rank 1 uses another slope", at=r"leaky_relu"),
    clip=Fault("rank 1 clips gradients by value after they are averaged", rules="replicas", at=r"clamp"),
)
def frozen(ctx: Context) -> None:
    net = seeded(Net)
    head = nn.LeakyReLU(0.9 if ctx.planted("slope") else 0.05)
    model = nn.Sequential(net, head)
    net.inlet.requires_grad_(False)
    if ctx.planted("seed"):
        net.inlet.weight.data = net.inlet.weight.data.flip(0)
    optimizer = torch.optim.Adam([value for value in net.parameters() if value.requires_grad], lr=0.02, eps=1e-3)
    with ctx.capture(model):
        for step in range(STEPS):
            x, y = ctx.rows(*batch(step))
            loss = squared(model(x), y)  # planted: slope
            loss.backward()
            average_gradients(net.parameters())
            if ctx.planted("sign"):
                net.outlet.weight.grad *= -2  # planted: sign
            if ctx.planted("clip"):
                nn.utils.clip_grad_value_(net.parameters(), 0.003)  # planted: clip
            optimizer.step()
            optimizer.zero_grad()
            ctx.loss(loss)
    ctx.end(net.named_parameters())
