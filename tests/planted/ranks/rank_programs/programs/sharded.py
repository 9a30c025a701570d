"""Sharded parameters with DTensor: FSDP2, HSDP and tensor parallelism."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, SequenceParallel, parallelize_module
from torch.nn import functional as F

from rank_programs.common import STEPS, Context, Fault, Net, batch, flip, program, seeded, squared


def local(value: Any) -> torch.Tensor:
    return value.to_local() if isinstance(value, DTensor) else value


def full(model: nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    for name, value in model.named_parameters():
        yield name, value.full_tensor() if isinstance(value, DTensor) else value


def train(ctx: Context, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """Train a sharded network on parts of the batch."""
    with ctx.capture(model):
        for step in range(STEPS):
            x, y = ctx.rows(*batch(step))
            loss = squared(model(x), y)
            if ctx.planted("loss"):
                loss = loss * 3  # planted: loss
            loss.backward()
            if ctx.planted("gradient"):
                local(model.mid.weight.grad).mul_(3)  # planted: gradient
            if ctx.planted("norm"):
                parts = [local(value.grad) for value in model.parameters()]
                total = torch.stack([part.square().sum() for part in parts]).sum().sqrt()  # planted: norm
                for part in parts:
                    part.mul_((0.02 / total).clamp(max=1.0))  # planted: norm
            else:
                nn.utils.clip_grad_norm_(model.parameters(), 0.02)  # planted: norm
            if not (ctx.planted("skip") and step == 1):
                optimizer.step()  # planted: rate, skip, update, momentum
            optimizer.zero_grad()
            if ctx.planted("bit") and step == 0:
                flip(local(model.mid.weight))
            ctx.loss(loss)
    ctx.end(full(model))


@program(
    "fsdp2",
    rate=Fault("another learning rate on rank 1", rules="shard-update", update=True),
    norm=Fault("each rank clips by the norm of its shards", rank=None, rules="shard-update", at=r"clip"),
    gradient=Fault("rank 1 scales its shard of a gradient", at=r"mul_"),
    skip=Fault("rank 1 skips an update", rules="shard-update collective-order", update=True),
    bit=Fault("a bit of a shard flips on rank 1", rules="replicas shard-update", at=r"\bmid\b|split_with_sizes"),
    loss=Fault("rank 1 scales its loss"),
)
def fsdp2(ctx: Context) -> None:
    model = seeded(Net)
    if not ctx.single:
        mesh = init_device_mesh("cpu", (ctx.world,))
        fully_shard(model.mid, mesh=mesh)
        fully_shard(model, mesh=mesh)
    optimizer = torch.optim.SGD(model.parameters(), lr=6.0 if ctx.planted("rate") else 2.0, momentum=0.9)
    train(ctx, model, optimizer)


@program(
    "hsdp",
    ranks=(4,),
    drift=Fault(
        "the shards of rank 2 differ from those of its replica", rank=2, rules="replicas", ranks=(4,), at=r"outlet"
    ),
    rate=Fault("another learning rate on rank 3", rank=3, rules="replicas shard-update", update=True, ranks=(4,)),
    loss=Fault("rank 1 scales its loss", ranks=(4,)),
    momentum=Fault("another momentum on rank 2", rank=2, rules="replicas shard-update", update=True, ranks=(4,)),
    gradient=Fault("rank 1 scales its shard of a gradient", at=r"mul_", rules="replicas", ranks=(4,)),
)
def hsdp(ctx: Context) -> None:
    model = seeded(Net)
    if not ctx.single:
        mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard"))
        fully_shard(model.mid, mesh=mesh)
        fully_shard(model, mesh=mesh)
    if ctx.planted("drift"):
        local(model.outlet.weight).detach().numpy()[:] *= 1.5
    momentum = 0.1 if ctx.planted("momentum") else 0.9
    optimizer = torch.optim.SGD(model.parameters(), lr=6.0 if ctx.planted("rate") else 2.0, momentum=momentum)
    train(ctx, model, optimizer)


class Perceptron(nn.Module):
    """A norm, a perceptron to be cut, and a last norm."""

    def __init__(self, ctx: Context) -> None:
        super().__init__()
        self.ctx = ctx
        self.first = nn.LayerNorm(16)
        self.up, self.down = nn.Linear(16, 32), nn.Linear(32, 16)
        self.last = nn.LayerNorm(16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = F.silu(self.up(self.first(x)))
        if self.ctx.planted("activation"):
            h = h * 0.5  # planted: activation
        h = self.down(h)
        return self.last(x + h)


def cut(ctx: Context, model: nn.Module, plan: dict[str, Any]) -> None:
    if not ctx.single:
        parallelize_module(model, init_device_mesh("cpu", (ctx.world,)), plan)


def plant_weights(ctx: Context, model: Any) -> None:
    """Change weights on one rank in memory, as a bad checkpoint does."""
    if ctx.planted("shard"):
        part = local(model.up.weight).detach().numpy()
        part[:] = part[::-1].copy()
    if ctx.planted("norm"):
        local(model.last.weight).detach().numpy()[:] = 1.7
    if ctx.planted("bias"):
        local(model.down.bias).detach().numpy()[:] += 0.8


def train_whole(ctx: Context, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """Train on the same rows on all ranks."""
    with ctx.capture(model):
        for step in range(STEPS):
            x, y = (value.view(8, 4, 16) for value in batch(step, 64, 64))
            out = model(x)
            out = out.full_tensor() if isinstance(out, DTensor) else out
            loss = squared(out, y)
            loss.backward()
            if ctx.planted("gradient"):
                local(model.last.weight.grad).add_(0.05)  # planted: gradient
            if ctx.planted("gradients"):
                local(model.down.weight.grad).neg_()  # planted: gradients
            optimizer.step()  # planted: update, rate
            optimizer.zero_grad()
            ctx.loss(loss)
    ctx.end(full(model))


@program(
    "dtensor_tensor_parallel",
    shard=Fault("rank 1 loads its columns in another order", alone=False, at=r"\bup\b"),
    norm=Fault("other weights of a norm on rank 1", rules="replicas", at=r"\blast([./]|$)"),
    bias=Fault("another replicated bias on rank 1", rules="replicas", at=r"\bdown\b"),
    gradient=Fault("rank 1 adds to the gradient of a norm", at=r"add_", rules="replicas"),
    activation=Fault("rank 1 scales its part of the activation"),
    rate=Fault("another learning rate on rank 1", rules="replicas shard-update", update=True),
)
def dtensor_tensor_parallel(ctx: Context) -> None:
    model = seeded(lambda: Perceptron(ctx))
    cut(ctx, model, {"up": ColwiseParallel(), "down": RowwiseParallel()})
    plant_weights(ctx, model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.9 if ctx.planted("rate") else 0.3, momentum=0.9)
    train_whole(ctx, model, optimizer)


@program(
    "dtensor_sequence_parallel",
    norm=Fault("other weights of a norm on rank 1", rules="replicas", at=r"\blast([./]|$)"),
    gradients=Fault("rank 1 turns round the gradient of its rows", at=r"neg_"),
    gradient=Fault("rank 1 adds to the gradient of a norm", at=r"add_", rules="replicas"),
    eps=Fault("another eps of a norm on rank 1", at=r"\bfirst([./]|$)"),
)
def dtensor_sequence_parallel(ctx: Context) -> None:
    model = seeded(lambda: Perceptron(ctx))
    if ctx.planted("eps"):
        model.first.eps = 0.5
    sequence: Any = Shard(1)
    plan = {
        "first": SequenceParallel(),
        "up": ColwiseParallel(input_layouts=sequence, output_layouts=Shard(-1)),
        "down": RowwiseParallel(output_layouts=sequence, use_local_output=False),
        "last": SequenceParallel(),
    }
    cut(ctx, model, plan)
    plant_weights(ctx, model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.3, momentum=0.9)
    if not ctx.single:
        model.register_forward_pre_hook(lambda _, given: (replicated(given[0]).redistribute(placements=[Shard(1)]),))
    train_whole(ctx, model, optimizer)


def replicated(x: torch.Tensor) -> DTensor:
    mesh = init_device_mesh("cpu", (torch.distributed.get_world_size(),))
    return DTensor.from_local(x, mesh, [Replicate()], run_check=False)
