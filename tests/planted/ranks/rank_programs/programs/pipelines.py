"""Pipelines: stages on ranks, with torch.distributed.pipelining and with messages by hand."""

from __future__ import annotations

from collections import OrderedDict

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.pipelining import PipelineStage, ScheduleGPipe
from torch.nn import functional as F

from rank_programs.common import STEPS, Context, Fault, batch, program, seeded, squared, tokens

WIDTH, LAYERS, PARTS = 16, 4, 2


class Residual(nn.Module):
    """A layer of a pipeline."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.mix = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.mix(self.norm(x)).tanh()


def layers_of(ctx: Context) -> nn.Sequential:
    """Return the layers of this rank, by their names in the whole model."""
    whole = seeded(lambda: nn.Sequential(*(Residual() for _ in range(LAYERS))))
    each = LAYERS // ctx.world
    # Neighbours exchange their stages.
    place = ctx.rank ^ 1 if ctx.planted("swapped") else ctx.rank
    mine = OrderedDict((str(number), whole[number]) for number in range(place * each, (place + 1) * each))
    stage = nn.Sequential(mine)
    if ctx.planted("weights"):
        first = next(iter(stage.children()))
        first.mix.weight.data = first.mix.weight.data.flip(0)
    if ctx.planted("eps"):
        for layer in stage.children():
            layer.norm.eps = 0.8
    return stage


@program(
    "pipelining",
    swapped=Fault("neighbours exchange their stages", rank=None, alone=False, at=r"norm|mix"),
    weights=Fault("the stage of rank 1 loads other weights", alone=False, at=r"mix", kinds="parameter"),
    eps=Fault("another eps of the norms of rank 1", alone=False, at=r"norm"),
    rate=Fault("another learning rate on rank 1", alone=False, update=True),
    zero=Fault("rank 1 does not clear its gradients", alone=False, at=r"norm|mix"),
    scale=Fault(
        "gradients of rank 1 are not divided by the number of micro-batches",
        alone=False,
        at=r"\.grad",
        update=True,
    ),
)
def pipelining(ctx: Context) -> None:
    layers = layers_of(ctx)
    optimizer = torch.optim.SGD(layers.parameters(), lr=0.9 if ctx.planted("rate") else 0.3, momentum=0.9)
    if not ctx.single:
        stage = PipelineStage(layers, ctx.rank, ctx.world, torch.device("cpu"))
        schedule = ScheduleGPipe(stage, PARTS, loss_fn=squared, scale_grads=not ctx.planted("scale"))
    with ctx.capture(layers, options={"step": "optimizer"}):
        for step in range(STEPS):
            x, y = batch(step, WIDTH, WIDTH)
            if ctx.single:
                losses = []
                for part, target in zip(x.chunk(PARTS), y.chunk(PARTS), strict=True):
                    losses.append(squared(layers(part), target))
                    losses[-1].backward()
                for parameter in layers.parameters():
                    parameter.grad.div_(PARTS)
            elif ctx.rank == 0:
                schedule.step(x)  # planted: scale
            elif ctx.rank < ctx.world - 1:
                schedule.step()  # planted: scale
            else:
                schedule.step(target=y, losses=[])  # planted: scale
            optimizer.step()  # planted: rate, update
            if not (ctx.planted("zero") and step == 0):
                optimizer.zero_grad()  # planted: zero
    ctx.end(ctx.collect(layers.named_parameters()))


class Stage(nn.Module):
    """Layers with an embedding on the first rank, and on the last rank a head that is tied to it."""

    def __init__(self, ctx: Context, *, with_tokens: bool) -> None:
        super().__init__()
        self.ctx, self.with_tokens = ctx, with_tokens
        self.first, self.last = ctx.rank == 0, ctx.rank == ctx.world - 1
        self.layers = layers_of(ctx)
        if with_tokens and (self.first or self.last):
            numbers = torch.Generator().manual_seed(6 if ctx.planted("seed") and self.last else 5)
            self.table = nn.Parameter(torch.randn(32, WIDTH, generator=numbers) / 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.with_tokens and self.first:
            x = F.embedding(x, self.table)
        x = self.layers(x)
        if self.with_tokens and self.last:
            x = F.linear(x, self.table)
        return x

    def loss(self, out: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        if self.with_tokens:
            return F.cross_entropy(out.flatten(0, 1), target.flatten())
        return squared(out, target)


def step_of(ctx: Context, stage: Stage, x: torch.Tensor, y: torch.Tensor, shape: tuple[int, ...]) -> None:
    """Run all micro-batches forward, then all backward."""
    inputs, outputs = [], []
    parts, targets = list(x.chunk(PARTS)), list(y.chunk(PARTS))
    if ctx.planted("targets"):
        targets.reverse()
    for number in range(PARTS):
        if stage.first:
            given = parts[number]
        else:
            given = torch.empty(shape)
            dist.recv(given, ctx.rank - 1)
            given.requires_grad_()
            if ctx.planted("again") and number:
                given = inputs[0].detach().clone().requires_grad_()  # planted: again
        out = stage(given)  # planted: again
        inputs.append(given)
        if not stage.last:
            sent = out.detach()
            if ctx.planted("sent"):
                sent = sent * 0.5  # planted: sent
            dist.send(sent, ctx.rank + 1)
            outputs.append(out)
        else:
            loss = stage.loss(out, targets[number])  # planted: targets
            outputs.append(loss / (1 if ctx.planted("undivided") else PARTS))  # planted: undivided
    for number, out in enumerate(outputs):
        if stage.last:
            out.backward()  # planted: undivided
        else:
            gradient = torch.empty_like(out)
            dist.recv(gradient, ctx.rank + 1)
            out.backward(gradient)
        if ctx.planted("lost") and number == 0:
            stage.zero_grad()  # planted: lost
        if not stage.first:
            gradient = inputs[number].grad
            if ctx.planted("scaled"):
                gradient = gradient * 4  # planted: scaled
            if not (ctx.planted("unsent") and number == PARTS - 1):
                dist.send(gradient, ctx.rank - 1)  # planted: unsent


@program(
    "messages",
    sent=Fault("rank 0 halves the activations that it sends", rank=0, alone=False),
    again=Fault("rank 1 uses the first micro-batch twice", alone=False, at=r"recv|clone"),
    targets=Fault(
        "the last rank exchanges the targets of its micro-batches", rank=None, alone=False, kinds="input", at=r"mse"
    ),
    undivided=Fault("the loss is not divided by the number of micro-batches", rank=None, alone=False),
    # No operator runs when a gradient is set to None, so that the dump shows the sum that is missing after it.
    lost=Fault("rank 1 loses the gradient of a micro-batch", alone=False, update=True, at=r"zero|(norm|mix)/add_"),
    unsent=Fault(
        "rank 1 does not send the gradient of its last micro-batch",
        rules="collective-order",
        hangs=True,
        at=r"recv|send",
    ),
    scaled=Fault("rank 1 scales the gradient that it sends", alone=False),
    swapped=Fault("neighbours exchange their stages", rank=None, alone=False, at=r"norm|mix"),
)
def messages(ctx: Context) -> None:
    stage = Stage(ctx, with_tokens=False)
    optimizer = torch.optim.SGD(stage.parameters(), lr=0.3, momentum=0.9)
    with ctx.capture(stage, options={"step": "optimizer"}):
        for step in range(STEPS):
            x, y = batch(step, WIDTH, WIDTH)
            step_of(ctx, stage, x, y, (8 // PARTS, WIDTH))
            optimizer.step()  # planted: update
            optimizer.zero_grad()
    ctx.end(ctx.collect(stage.named_parameters()))


@program(
    "pipeline_tied",
    unreduced=Fault(
        "the gradients of the tied table are not added up", rank=None, rules="replicas", at=r"table", update=True
    ),
    seed=Fault("the last rank begins with another table", rank=None, rules="replicas", at=r"table", kinds="parameter"),
    halved=Fault(
        "the sum of the gradients of the table is halved", rank=None, alone=False, at=r"table|div_", update=True
    ),
    rate=Fault("rank 0 learns at another rate", rank=0, rules="replicas shard-update", at=r"table", update=True),
)
def pipeline_tied(ctx: Context) -> None:
    stage = Stage(ctx, with_tokens=True)
    ends = None if ctx.single else dist.new_group([0, ctx.world - 1])
    optimizer = torch.optim.SGD(stage.parameters(), lr=1.5 if ctx.planted("rate") else 0.5, momentum=0.9)
    with ctx.capture(stage, options={"step": "optimizer"}):
        for step in range(STEPS):
            ids, targets = tokens(step)
            step_of(ctx, stage, ids, targets, (8 // PARTS, 8, WIDTH))
            if not ctx.single and (stage.first or stage.last) and not ctx.planted("unreduced"):
                dist.all_reduce(stage.table.grad, group=ends)  # planted: unreduced
                if ctx.planted("halved"):
                    stage.table.grad.div_(2)  # planted: halved
            optimizer.step()  # planted: rate, update
            optimizer.zero_grad()
    ctx.end(ctx.collect(stage.named_parameters()))
