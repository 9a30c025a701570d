"""Data parallelism whose loss needs other ranks: gathered features, and rewards that one rank knows."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F

from rank_programs.collectives import Gather, average_gradients, gathered
from rank_programs.common import STEPS, Context, Fault, batch, program, seeded


class Towers(nn.Module):
    """Two encoders of pairs."""

    def __init__(self) -> None:
        super().__init__()
        self.left, self.right = nn.Linear(12, 16), nn.Linear(6, 16)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return F.normalize(self.left(x), dim=-1), F.normalize(self.right(y).tanh(), dim=-1)


@program(
    "contrastive",
    offset=Fault("labels do not begin at the rows of the rank", at=r"arange", alone=False),
    detached=Fault(
        "features of other ranks have no gradient",
        rank=None,
        alone=False,
        update=True,
        at=r"right|reduce_scatter|all_?gather|detach",
    ),
    order=Fault("rank 1 exchanges the halves of the gathered features", at=r"roll"),
    temperature=Fault("another temperature on rank 1"),
    unreduced=Fault("the gradient of one encoder is not reduced", rank=None, rules="replicas", at=r"left", update=True),
)
def contrastive(ctx: Context) -> None:
    model = seeded(Towers)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.9)
    temperature = 1.5 if ctx.planted("temperature") else 0.2
    with ctx.capture(model):
        for step in range(STEPS):
            left, right = model(*ctx.rows(*batch(step)))
            if ctx.planted("detached"):
                parts = list(gathered(right.detach(), 0).chunk(ctx.world))  # planted: detached
                parts[ctx.rank] = right
                others = torch.cat(parts)  # planted: detached
            else:
                others = Gather.apply(right, None, False)  # planted: detached
            if ctx.planted("order"):
                others = others.roll(4, 0)  # planted: order
            logits = left @ others.T / temperature  # planted: temperature, order
            start = 1 if ctx.planted("offset") else len(left) * ctx.rank
            labels = torch.arange(start, start + len(left))  # planted: offset
            loss = F.cross_entropy(logits, labels)  # planted: offset
            loss.backward()  # planted: detached
            if not ctx.single:
                for name, parameter in model.named_parameters():
                    if not (ctx.planted("unreduced") and name.startswith("left")):
                        dist.all_reduce(parameter.grad)  # planted: unreduced
                        parameter.grad /= ctx.world  # planted: unreduced
            optimizer.step()  # planted: update
            optimizer.zero_grad()
            ctx.loss(loss)
    ctx.end(model.named_parameters())


def rewards_of(actions: torch.Tensor, step: int) -> torch.Tensor:
    """Return the rewards of all actions of the whole batch; only rank 0 calls it."""
    return ((actions * 7 + torch.arange(len(actions)) * 3 + step) % 5).float()


@program(
    "policy",
    broadcast=Fault("rewards are not broadcast", rank=None, alone=False, update=True, at=r"broadcast|rewards"),
    source=Fault("rewards are broadcast from the last rank, which has none", rank=None, alone=False, at=r"broadcast"),
    baseline=Fault("the baseline is the mean of the rewards of each rank", rank=None, alone=False),
    scale=Fault("rank 1 doubles its advantages"),
    rows=Fault("rank 1 takes the rewards of other rows", alone=False, at=r"slice|chunk|split"),
    entropy=Fault("another weight of the entropy on rank 1"),
)
def policy(ctx: Context) -> None:
    model = seeded(lambda: nn.Sequential(nn.Linear(12, 20), nn.Tanh(), nn.Linear(20, 5)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.3, momentum=0.9)
    weight = 2.0 if ctx.planted("entropy") else 0.05
    with ctx.capture(model):
        for step in range(STEPS):
            x = batch(step)[0]
            scores = model(ctx.rows(x)[0]).log_softmax(-1)
            actions = torch.from_numpy(np.random.default_rng(step).integers(0, 5, len(x)))
            rewards = rewards_of(actions, step) if ctx.rank == 0 else torch.zeros(len(x))
            if not ctx.single and not ctx.planted("broadcast"):
                source = ctx.world - 1 if ctx.planted("source") else 0
                dist.broadcast(rewards, source)  # planted: broadcast, source
            mine = ctx.rows(actions)[0]
            own = rewards.chunk(ctx.world)[ctx.rank]  # planted: rows
            if ctx.planted("rows"):
                own = rewards.chunk(ctx.world)[0]  # planted: rows
            baseline = own.mean()  # planted: baseline, rows, broadcast
            if not ctx.single and not ctx.planted("baseline"):
                dist.all_reduce(baseline)  # planted: baseline
                baseline /= ctx.world  # planted: baseline
            advantages = own - baseline  # planted: broadcast, baseline, rows
            if ctx.planted("scale"):
                advantages = advantages * 2.5  # planted: scale
            chosen = scores.gather(1, mine[:, None])[:, 0]
            entropy = -(scores.exp() * scores).sum(-1).mean()
            loss = -(chosen * advantages).mean() - weight * entropy  # planted: entropy
            loss.backward()
            average_gradients(model.parameters())
            optimizer.step()  # planted: update
            optimizer.zero_grad()
            ctx.loss(loss)
    ctx.end(model.named_parameters())


class Gan(nn.Module):
    """A generator and a discriminator; a call returns the loss of the discriminator."""

    def __init__(self) -> None:
        super().__init__()
        self.generator = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 12))
        self.critic = nn.Sequential(nn.Linear(12, 16), nn.LeakyReLU(0.2), nn.Linear(16, 1))

    def forward(self, real: torch.Tensor, noise: torch.Tensor) -> torch.Tensor:
        false = self.generator(noise).detach()
        return F.softplus(-self.critic(real)).mean() + F.softplus(self.critic(false)).mean()


@program(
    "gan",
    critic=Fault(
        "the gradients of the critic are not reduced", rank=None, rules="replicas", at=r"critic|allreduce", update=True
    ),
    cleared=Fault(
        "rank 1 keeps the critic's gradients of the generator's step", alone=False, update=True, at=r"critic"
    ),
    label=Fault("rank 1 trains the generator towards the wrong label"),
    betas=Fault(
        "other betas of the generator's optimizer on rank 1",
        rules="replicas shard-update",
        update=True,
        at=r"generator",
    ),
    bit=Fault("a bit of the generator flips on rank 1", rules="replicas", at=r"generator"),
)
def gan(ctx: Context) -> None:
    model = seeded(Gan)
    generator, critic = model.generator, model.critic
    betas = (0.1, 0.5) if ctx.planted("betas") else (0.5, 0.9)
    making = torch.optim.Adam(generator.parameters(), lr=0.02, betas=betas, eps=1e-3)
    judging = torch.optim.SGD(critic.parameters(), lr=0.2)
    with ctx.capture(model):
        for step in range(STEPS):
            real, noise = ctx.rows(*batch(step))
            loss: Any = model(real, noise)
            loss.backward()  # planted: cleared
            if not ctx.planted("critic"):
                average_gradients(critic.parameters())  # planted: critic
            judging.step()  # planted: critic, update
            critic.zero_grad()
            out = critic(generator(noise))
            if ctx.planted("label"):
                made = F.softplus(out).mean()  # planted: label
            else:
                made = F.softplus(-out).mean()  # planted: label
            made.backward()
            average_gradients(generator.parameters())
            making.step()  # planted: betas, update
            generator.zero_grad()
            if not ctx.planted("cleared"):
                critic.zero_grad()  # planted: cleared
            if ctx.planted("bit") and step == 0:
                model.generator[0].weight.detach().numpy().reshape(-1)[:1].view("i4")[:] ^= 1 << 23
            ctx.loss(loss)
    ctx.end(model.named_parameters())
