"""Optimizers over ranks: states in parts, and replicas that are averaged now and then."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel

from rank_programs.collectives import gathered
from rank_programs.common import STEPS, Context, Fault, Net, batch, program, seeded, squared


@program(
    "zero_redundancy",
    rate=Fault("rank 1 updates its part at another rate", rules="shard-update replicas", update=True),
    decay=Fault("another weight decay on rank 1", rules="shard-update replicas", update=True),
    stale=Fault("rank 1 puts back the weights of one layer after the update", at=r"\bmid\b", rules="replicas"),
    gradient=Fault("rank 1 halves gradients after they are reduced", at=r"\.grad", rules="replicas"),
)
def zero_redundancy(ctx: Context) -> None:
    net = seeded(Net)
    rate, decay = (0.1 if ctx.planted("rate") else 0.02), (5.0 if ctx.planted("decay") else 0.05)
    if ctx.single:
        model, optimizer = net, torch.optim.AdamW(net.parameters(), lr=rate, weight_decay=decay, eps=1e-3)
    else:
        model = DistributedDataParallel(net)
        optimizer = ZeroRedundancyOptimizer(net.parameters(), torch.optim.AdamW, lr=rate, weight_decay=decay, eps=1e-3)
    with ctx.capture(model):
        for step in range(STEPS):
            x, y = ctx.rows(*batch(step))
            loss = squared(model(x), y)
            loss.backward()
            if ctx.planted("gradient"):
                for parameter in net.parameters():
                    parameter.grad.mul_(0.1)  # planted: gradient
            before = net.mid.weight.detach().clone() if ctx.planted("stale") else None  # planted: stale
            optimizer.step()  # planted: rate, decay, update
            if before is not None and step == 1:
                net.mid.weight.data.copy_(before)  # planted: stale
            optimizer.zero_grad()
            ctx.loss(loss)
    ctx.end(net.named_parameters())


@program(
    "zero2",
    offset=Fault("rank 1 updates the part of its neighbour", alone=False),
    maximum=Fault(
        "gradients are scattered as maximum, not as sum", rank=None, alone=False, at=r"reduce_scatter", update=True
    ),
    undivided=Fault(
        "rank 1 does not divide its part of the gradients", rules="gradient-factor shard-update", at=r"div_"
    ),
    stale=Fault("rank 1 gathers its part before the update", at=r"clone|allgather", rules="shard-update"),
    norm=Fault("each rank clips by the norm of its part", rank=None, rules="shard-update", at=r"sqrt|clamp"),
    rate=Fault("another learning rate on rank 1", rules="shard-update", update=True),
    alone=Fault("rank 1 does not take part in the reduction of the norm", rules="collective-order", hangs=True),
    rows=Fault(
        "one parameter is written from the wrong place of the flat buffer on rank 1",
        at=r"outlet\.bias",
        rules="replicas",
    ),
)
def zero2(ctx: Context) -> None:
    net = seeded(Net)
    shapes = [(name, value.shape, value.numel()) for name, value in net.named_parameters()]
    total = sum(count for *_, count in shapes)
    length = -(-total // ctx.world)
    padding = length * ctx.world - total
    flat = torch.cat([*(value.detach().reshape(-1) for value in net.parameters()), torch.zeros(padding)])
    place = 0 if ctx.planted("offset") else ctx.rank
    mine = flat[place * length : (place + 1) * length].clone()
    momentum = torch.zeros_like(mine)
    rate = 0.8 if ctx.planted("rate") else 0.2
    with ctx.capture(net):
        for step in range(STEPS):
            x, y = ctx.rows(*batch(step))
            loss = squared(net(x), y)
            loss.backward()
            gradients = torch.cat([*(value.grad.reshape(-1) for value in net.parameters()), torch.zeros(padding)])
            part = torch.empty_like(mine)
            if ctx.single:
                part = gradients
            else:
                op = dist.ReduceOp.MAX if ctx.planted("maximum") else dist.ReduceOp.SUM
                dist.reduce_scatter_tensor(part, gradients, op=op)  # planted: maximum
                if not ctx.planted("undivided"):
                    part.div_(ctx.world)  # planted: undivided, maximum
            squares = part.square().sum()  # planted: norm
            if not ctx.single and not ctx.planted("norm") and not (ctx.planted("alone") and step == 1):
                dist.all_reduce(squares)  # planted: norm, alone
            factor = (0.1 / squares.sqrt()).clamp(max=1.0)  # planted: norm
            part.mul_(factor)  # planted: norm, undivided
            momentum.mul_(0.9).add_(part)  # planted: norm, update
            kept = mine.clone() if ctx.planted("stale") else None  # planted: stale
            mine.sub_(momentum, alpha=rate)  # planted: rate, update, offset
            whole = gathered(mine if kept is None else kept, 0)  # planted: stale, offset
            start = 0
            for name, shape, count in shapes:
                first = start - 3 if ctx.planted("rows") and name == "outlet.bias" else start
                value = whole[first : first + count].view(shape)  # planted: rows
                net.get_parameter(name).data.copy_(value)  # planted: rows, update
                start += count
            net.zero_grad()
            ctx.loss(loss)
    ctx.end(net.named_parameters())


@program(
    "local_sgd",
    one=False,
    left=Fault("one parameter is left out of the average", rank=None, rules="replicas", at=r"mid\.weight"),
    undivided=Fault(
        "one average is not divided", rank=None, alone=True, rules="gradient-factor", at=r"norm\.weight|div_"
    ),
    ignored=Fault("rank 1 does not take over the average", rules="replicas"),
    rate=Fault("another learning rate on rank 1", rules="shard-update replicas"),
    momentum=Fault("another momentum on rank 1", rules="shard-update replicas"),
)
def local_sgd(ctx: Context) -> None:
    model = seeded(Net)
    rate, momentum = (0.6 if ctx.planted("rate") else 0.1), (0.0 if ctx.planted("momentum") else 0.9)
    optimizer = torch.optim.SGD(model.parameters(), lr=rate, momentum=momentum)
    with ctx.capture(model, "0-4"):
        for step in range(5):
            x, y = ctx.rows(*batch(step))
            loss = squared(model(x), y)
            loss.backward()
            optimizer.step()  # planted: rate, momentum
            optimizer.zero_grad()
            for name, parameter in model.named_parameters() if step % 2 else ():
                if ctx.planted("left") and name == "mid.weight":
                    continue
                value = parameter.detach().clone()
                dist.all_reduce(value)  # planted: left, undivided
                if not (ctx.planted("undivided") and name == "norm.weight"):
                    value.div_(ctx.world)  # planted: undivided, left
                if not ctx.planted("ignored"):
                    parameter.data.copy_(value)  # planted: ignored, left, undivided
            ctx.loss(loss)
    ctx.end(model.named_parameters())


@program(
    "diloco",
    undivided=Fault("rank 1 does not divide the outer gradient", rules="replicas gradient-factor", at=r"div_"),
    outer=Fault("another outer learning rate on rank 1", rules="replicas shard-update", update=True),
    reset=Fault("rank 1 does not return to the common weights before the outer step", rules="replicas"),
    unreduced=Fault("outer gradients of biases are not reduced", rank=None, rules="replicas", at=r"bias", update=True),
)
def diloco(ctx: Context) -> None:
    model = seeded(Net)
    inner = torch.optim.SGD(model.parameters(), lr=0.3)
    outer = torch.optim.SGD(model.parameters(), lr=0.2 if ctx.planted("outer") else 0.7, momentum=0.9, nesterov=True)
    common = [parameter.detach().clone() for parameter in model.parameters()]
    with ctx.capture(model):
        for step in range(STEPS):
            x, y = ctx.rows(*batch(step))
            loss = squared(model(x), y)
            loss.backward()
            inner.step()
            inner.zero_grad()
            for (name, parameter), before in zip(model.named_parameters(), common, strict=True):
                change = before - parameter.detach()
                if not ctx.single and not (ctx.planted("unreduced") and name.endswith("bias")):
                    dist.all_reduce(change)  # planted: unreduced
                    if not ctx.planted("undivided"):
                        change.div_(ctx.world)  # planted: undivided, unreduced
                parameter.grad = change
                if not ctx.planted("reset"):
                    parameter.data.copy_(before)  # planted: reset
            outer.step()  # planted: outer, update
            outer.zero_grad()
            for parameter, before in zip(model.parameters(), common, strict=True):
                before.copy_(parameter.detach())  # planted: update
            ctx.loss(loss)
    ctx.end(model.named_parameters())
