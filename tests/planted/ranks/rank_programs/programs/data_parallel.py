"""Data parallelism with DistributedDataParallel, and by hand where a norm needs the whole batch."""

import contextlib
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.nn.functional import all_reduce
from torch.nn.parallel import DistributedDataParallel

from rank_programs.common import STEPS, Context, Fault, Net, batch, flip, program, seeded, squared


def wrapped(ctx: Context, net: nn.Module, **settings: Any) -> nn.Module:
    return net if ctx.single else DistributedDataParallel(net, **settings)


@program(
    "ddp",
    lr=Fault("another learning rate on rank 1", rules="replicas shard-update", update=True),
    eps=Fault("another eps of the norm on rank 1", at=r"norm"),
    weights=Fault("other weights of one layer on rank 1 after DDP was made", at=r"\bmid\b", rules="replicas"),
    skip=Fault("rank 1 skips an optimizer step", rules="replicas shard-update collective-order", update=True),
    zero=Fault("rank 1 skips a zero_grad", alone=False, kinds="input|parameter", at=r"aten::add_|\.grad"),
    order=Fault("rank 1 reads the rows of rank 0", alone=False, kinds="input", at=r"inlet"),
    bit=Fault("a bit of a weight flips on rank 1 after a step", rules="replicas", at=r"outlet"),
    scale=Fault("rank 1 multiplies its loss"),
)
def ddp(ctx: Context) -> None:
    net = seeded(Net)
    model = wrapped(ctx, net)
    if ctx.planted("weights"):
        net.mid.weight.data.mul_(1.5)
    if ctx.planted("eps"):
        net.norm.eps = 0.4
    optimizer = torch.optim.SGD(net.parameters(), lr=0.5 if ctx.planted("lr") else 0.2, momentum=0.9)
    with ctx.capture(model):
        for step in range(STEPS):
            x, y = ctx.rows(*batch(step), rank=0 if ctx.planted("order") else None)
            loss = squared(model(x), y)  # planted: order
            if ctx.planted("scale"):
                loss = loss * 4  # planted: scale
            loss.backward()  # planted: zero
            if not (ctx.planted("skip") and step == 1):
                optimizer.step()  # planted: lr, skip, update
            if not (ctx.planted("zero") and step == 0):
                optimizer.zero_grad()  # planted: zero
            if ctx.planted("bit") and step == 0:
                flip(net.outlet.weight)
            ctx.loss(loss)
    ctx.end(net.named_parameters())


@program(
    "ddp_accumulate",
    unsynchronised=Fault("all micro-batches run in no_sync", rank=None, rules="replicas", update=True, at=r"allreduce"),
    lost=Fault("the gradient of the first micro-batch is cleared", rank=None, alone=False, update=True, at=r"\.grad"),
    lost_one=Fault("rank 1 clears the gradient of its first micro-batch", at=r"zero_"),
    undivided=Fault("rank 1 does not divide its loss by the number of micro-batches"),
)
def ddp_accumulate(ctx: Context) -> None:
    net = seeded(Net)
    model = wrapped(ctx, net)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.2, momentum=0.9)
    with ctx.capture(model, options={"step": "optimizer"}):
        for step in range(STEPS):
            # One rank takes the same halves of the batch that the ranks have together.
            parts = [batch(2 * step), batch(2 * step + 1)]
            for number, whole in enumerate(parts):
                x, y = ctx.rows(*whole)
                is_last = number == 1 and not ctx.planted("unsynchronised")
                is_quiet = not ctx.single and not is_last
                with model.no_sync() if is_quiet else contextlib.nullcontext():  # type: ignore[operator]
                    loss = squared(model(x), y)
                    if not ctx.planted("undivided"):
                        loss = loss / 2  # planted: undivided
                    loss.backward()  # planted: unsynchronised, lost, undivided
                if number == 0 and (ctx.planted("lost") or ctx.planted("lost-one")):
                    for parameter in net.parameters():
                        parameter.grad.zero_()  # planted: lost, lost-one
                ctx.loss(loss)
            optimizer.step()  # planted: update
            optimizer.zero_grad()
    ctx.end(net.named_parameters())


@program(
    "ddp_autocast",
    tolerance=1e-2,
    clip=Fault("rank 1 clips to another norm", rules="replicas shard-update", update=True),
    temperature=Fault("rank 1 divides by another temperature"),
    decay=Fault("another weight decay on rank 1", rules="replicas shard-update", update=True),
)
def ddp_autocast(ctx: Context) -> None:
    net = seeded(Net)
    model = wrapped(ctx, net)
    decay = 0.8 if ctx.planted("decay") else 0.01
    optimizer = torch.optim.SGD(net.parameters(), lr=0.3, momentum=0.5, weight_decay=decay)
    temperature = 5.0 if ctx.planted("temperature") else 1.25
    with ctx.capture(model):
        for step in range(STEPS):
            x, y = ctx.rows(*batch(step))
            with torch.autocast("cpu", dtype=torch.bfloat16):
                out = model(x)
                scaled = out / temperature  # planted: temperature
            loss = squared(scaled.float(), y)
            loss.backward()
            bound = 0.001 if ctx.planted("clip") and step else 0.5
            nn.utils.clip_grad_norm_(net.parameters(), bound)  # planted: clip
            optimizer.step()  # planted: decay, update
            optimizer.zero_grad()
            ctx.loss(loss)
    ctx.end(net.named_parameters())


class TwoHeads(nn.Module):
    """A body with two heads, of which a call uses one."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Linear(12, 16)
        self.first, self.second = nn.Linear(16, 6), nn.Linear(16, 6)

    def forward(self, x: torch.Tensor, number: int) -> torch.Tensor:
        h = self.body(x).relu()
        return self.second(h) if number else self.first(h)


@program(
    "ddp_unused",
    head=Fault("rank 1 uses the other head in a step", at=r"(second|first)[./]", alone=False),
    left=Fault("the optimizer of rank 1 lacks a head", at=r"second", rules="replicas no-gradient", update=True),
    dampening=Fault("rank 1 sets another dampening", rules="replicas shard-update", update=True),
)
def ddp_unused(ctx: Context) -> None:
    net = seeded(TwoHeads)
    model = wrapped(ctx, net, find_unused_parameters=True)
    parameters = [value for name, value in net.named_parameters() if not (ctx.planted("left") and "second" in name)]
    dampening = 0.7 if ctx.planted("dampening") else 0.0
    optimizer = torch.optim.SGD(parameters, lr=0.3, momentum=0.8, dampening=dampening)
    with ctx.capture(model):
        for step in range(STEPS):
            x, y = ctx.rows(*batch(step))
            number = step % 2
            if ctx.planted("head") and step == 0:
                number = 1
            loss = squared(model(x, number), y)  # planted: head
            loss.backward()
            optimizer.step()  # planted: left, dampening, update
            net.zero_grad()
            ctx.loss(loss)
    ctx.end(net.named_parameters())


def average(ctx: Context, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
    """A communication hook that averages gradients."""
    gradients = bucket.buffer()
    if ctx.planted("half"):
        gradients.mul_(0.25)  # planted: half
    if ctx.planted("silent"):
        done: torch.futures.Future[torch.Tensor] = torch.futures.Future()
        done.set_result(gradients)  # planted: silent
        return done
    if not ctx.planted("undivided"):
        gradients.div_(ctx.world)  # planted: undivided
    op = dist.ReduceOp.MAX if ctx.planted("maximum") else dist.ReduceOp.SUM
    work = dist.all_reduce(gradients, op=op, async_op=True)  # planted: maximum, silent
    return work.get_future().then(lambda future: future.value()[0])


@program(
    "ddp_hook",
    undivided=Fault("the hook does not divide", rank=None, alone=False, update=True, at=r"div_|\.grad"),
    half=Fault("the hook of rank 1 scales its gradients", at=r"mul_"),
    silent=Fault("the hook reduces nothing", rank=None, rules="replicas", update=True),
    maximum=Fault("the hook takes the maximum", rank=None, alone=False, update=True, at=r"allreduce|\.grad"),
)
def ddp_hook(ctx: Context) -> None:
    net = seeded(Net)
    model = wrapped(ctx, net)
    if isinstance(model, DistributedDataParallel):
        model.register_comm_hook(ctx, average)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.2, momentum=0.9)
    with ctx.capture(model):
        for step in range(STEPS):
            x, y = ctx.rows(*batch(step))
            loss = squared(model(x), y)
            loss.backward()
            optimizer.step()  # planted: update
            optimizer.zero_grad()
            ctx.loss(loss)
    ctx.end(net.named_parameters())


class WholeBatchNorm(nn.Module):
    """A batch norm over the batches of all ranks, with running statistics."""

    running_mean: torch.Tensor
    running_var: torch.Tensor

    def __init__(self, ctx: Context, width: int) -> None:
        super().__init__()
        self.ctx = ctx
        self.weight, self.bias = nn.Parameter(torch.ones(width)), nn.Parameter(torch.zeros(width))
        self.register_buffer("running_mean", torch.zeros(width))
        self.register_buffer("running_var", torch.ones(width))

    def _mean(self, value: torch.Tensor) -> torch.Tensor:
        if self.ctx.single or self.ctx.planted("local"):
            return value  # planted: local
        total = all_reduce(value)  # planted: local
        if self.ctx.planted("divisor"):
            return total / (self.ctx.world + 2)  # planted: divisor
        return total / self.ctx.world  # planted: divisor, local

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        mean = self._mean(x.mean(0))  # planted: local
        centred = x - mean
        if self.ctx.planted("uncentred"):
            centred = x - x.mean(0) + 0 * mean  # planted: uncentred
        variance = self._mean(centred.square().mean(0))  # planted: local
        momentum = 0.7 if self.ctx.planted("momentum") else 0.2
        with torch.no_grad():
            self.running_mean.lerp_(mean, momentum)  # planted: momentum
            self.running_var.lerp_(variance, momentum)  # planted: momentum
        return centred * (variance + 1e-5).rsqrt() * self.weight + self.bias


@program(
    "sync_batch_norm",
    local=Fault("the norm uses the batch of each rank", rank=None, alone=False),
    momentum=Fault(
        "another momentum of the running statistics on rank 1", at=r"running", rules="replicas shard-update"
    ),
    divisor=Fault("rank 1 divides the mean by another number"),
    uncentred=Fault("rank 1 subtracts the mean of its own rows"),
)
def sync_batch_norm(ctx: Context) -> None:
    net = seeded(lambda: nn.Sequential(nn.Linear(12, 24), WholeBatchNorm(ctx, 24), nn.Tanh(), nn.Linear(24, 6)))
    model = wrapped(ctx, net, broadcast_buffers=False)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.2, momentum=0.9)
    with ctx.capture(model):
        for step in range(STEPS):
            x, y = ctx.rows(*batch(step))
            loss = squared(model(x), y)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            ctx.loss(loss)
    ctx.end([*net.named_parameters(), *net.named_buffers()])
