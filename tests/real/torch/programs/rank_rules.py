"""Two ranks on gloo that run different operators, on purpose or by mistake.

rank_rules.py DIRECTORY NAME...     run these scenarios one after the other, each captured to DIRECTORY/NAME

A name is a kind of parallelism, such as `data`, and after a dot the way in which the second rank differs.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from scenarios import start
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.nn.functional import all_to_all_single
from torch.distributed.tensor import DTensor

import ascend_dump

RANKS = 2
WIDTH = 8
STEPS = 2


class Padded(nn.Module):
    """A model that masks padded rows, and skips the mask where no row is padded."""

    def __init__(self, ways: str) -> None:
        super().__init__()
        self.ways = ways
        self.up, self.down = nn.Linear(WIDTH, 16), nn.Linear(16, WIDTH)

    def forward(self, x: torch.Tensor, padding: torch.Tensor) -> torch.Tensor:
        if padding.any():
            x = x * (1 - padding.to(x.dtype)[:, None])
        x = self.up(x)
        if self.ways == "scaled" and dist.get_rank() == 1:
            x = x * 1.001
        if self.ways == "copied" and dist.get_rank() == 1:
            x = x * 1.001
        if self.ways == "copied":
            x = x.clone()
        return self.down(x.relu())


def data(ways: str, path: Path) -> None:
    """Healthy: "padding" (a mask on one rank), "clipped" (each rank clips its own gradients), "logged", "averaged",
    "same bits" (beside "bit", which flips one bit on the second rank). The optimizer of the second rank lacks a
    parameter ("lacking"), or runs in one step only ("skipped").
    """
    model = Padded(ways)
    rows = torch.Generator().manual_seed(dist.get_rank())
    is_second = dist.get_rank() == 1
    updated = list(model.parameters())[: 3 if ways == "lacking" and is_second else 4]
    optimizer = torch.optim.SGD(updated, lr=0.1)
    total, mean = torch.zeros(()), [parameter.detach().clone() for parameter in model.parameters()]
    with ascend_dump.capture(model, path=path, steps="0-1", strict=True, quiet=True):
        for step in range(STEPS):
            x = torch.randn(4, WIDTH, generator=rows)
            padding = torch.tensor([False, False, False, ways == "padding" and is_second])
            loss = (model(x, padding) - x).square().mean()
            loss.backward()
            gradients = [parameter.grad for parameter in model.parameters() if parameter.grad is not None]
            if ways == "logged" and is_second:
                total.add_(loss.detach())
                total *= 0.5
            if ways == "clipped" and is_second:
                for gradient in gradients:
                    gradient.mul_(0.25)
            if ways == "gradient" and is_second:
                gradients[2].view(-1)[3] *= 3
            for gradient in gradients:
                dist.all_reduce(gradient)
                if not (ways == "undivided" and gradient is gradients[1]):
                    gradient /= RANKS
            if not (ways == "skipped" and is_second and step == 0):
                optimizer.step()
            optimizer.zero_grad()
            if ways == "averaged" and is_second:
                for average, parameter in zip(mean, model.parameters()):
                    average.mul_(0.9).add_(parameter.detach(), alpha=0.1)
            if ways in ("bit", "same bits"):
                # Numpy writes to the memory, so no operator is recorded. The lowest bit of the mantissa changes.
                model.up.weight.detach().numpy().reshape(-1)[3:4].view("i4")[:] ^= ways == "bit" and is_second
            if ways == "parameter" and is_second:
                model.up.weight.data.view(-1)[3] += 0.5


class Experts(nn.Module):
    """One expert on each rank. Rank 1 sends tokens to the wrong one ("routing"), or expects one too many ("room")."""

    def __init__(self, ways: str) -> None:
        super().__init__()
        self.ways = ways
        self.gate, self.expert = nn.Linear(WIDTH, RANKS), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        weights = self.gate(x).softmax(-1)
        expert = weights.argmax(-1)
        if self.ways == "routing" and dist.get_rank() == 1:
            expert = (expert + 1) % RANKS
        order = expert.argsort(stable=True)
        counts = torch.bincount(expert, minlength=RANKS)
        received = torch.empty_like(counts)
        dist.all_to_all_single(received, counts)
        sent, got = counts.tolist(), received.tolist()
        if self.ways == "room" and dist.get_rank() == 1:
            got[0] += 1
        tokens = all_to_all_single(x.new_empty(sum(got), WIDTH), x[order], got, sent)
        if len(tokens):
            tokens = self.expert(tokens)
            got[0] -= self.ways == "room" and dist.get_rank() == 1
            tokens = tokens[: sum(got)]
        results = all_to_all_single(x.new_empty(sum(sent), WIDTH), tokens, sent, got)
        return torch.zeros_like(results).index_copy(0, order, results) * weights.gather(1, expert[:, None])


def experts(ways: str, path: Path) -> None:
    """Healthy: "idle" (no token reaches the second rank)."""
    model = Experts(ways)
    if ways == "idle":
        with torch.no_grad():
            model.gate.bias.copy_(torch.tensor([100.0, 0.0]))
    rows = torch.Generator().manual_seed(dist.get_rank())
    with ascend_dump.capture(model, path=path, steps="0-1", strict=True, quiet=True), torch.no_grad():
        for _ in range(STEPS):
            model(torch.randn(6, WIDTH, generator=rows))


def routed(ways: str, path: Path) -> None:
    """Training with experts that begin equal on both ranks. Not reduced are gradients of the gate ("gate"), or of one
    bias behind the experts ("bias").
    """
    model = nn.Sequential(nn.Linear(WIDTH, WIDTH), Experts(""), nn.Linear(WIDTH, WIDTH))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    left_out = {"gate": "1.gate", "bias": "2.bias"}.get(ways, "none")
    rows = torch.Generator().manual_seed(dist.get_rank())
    with ascend_dump.capture(model, path=path, steps="0-1", strict=True, quiet=True):
        for _ in range(STEPS):
            x = torch.randn(16, WIDTH, generator=rows)
            (model(x) - x).square().mean().backward()
            for name, parameter in model.named_parameters():
                if "expert" not in name and not name.startswith(left_out):
                    dist.all_reduce(parameter.grad)
            optimizer.step()
            optimizer.zero_grad()


class Tables(nn.Module):
    """One table of embeddings on each rank: ranks look up the numbers of all ranks, and exchange what they found."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.top = nn.Embedding(8, WIDTH), nn.Linear(RANKS * WIDTH, 1)

    def forward(self, numbers: torch.Tensor) -> torch.Tensor:
        rows = self.table(numbers[:, dist.get_rank()])
        return self.top(
            all_to_all_single(torch.empty_like(rows), rows).view(RANKS, -1, WIDTH).transpose(0, 1).flatten(1)
        )


def tables(_: str, path: Path) -> None:
    """Training of two tables that begin equal."""
    model = Tables()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    numbers = torch.Generator().manual_seed(0)
    with ascend_dump.capture(model, path=path, steps="0-1", strict=True, quiet=True):
        for _ in range(STEPS):
            (model(torch.randint(0, 8, (8, RANKS), generator=numbers)) - dist.get_rank()).square().mean().backward()
            for parameter in model.top.parameters():
                dist.all_reduce(parameter.grad)
            optimizer.step()
            optimizer.zero_grad()


def shards(ways: str, path: Path) -> None:
    """Parts of parameters.

    On the second rank: "rate" (learning rate), "norm" (clips by the norm of its part), "bit" (a bit of its part flips).
    """
    model = nn.Sequential(nn.Linear(WIDTH, 16), nn.ReLU(), nn.Linear(16, WIDTH))
    fully_shard(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    rows = torch.Generator().manual_seed(dist.get_rank())
    with ascend_dump.capture(model, path=path, steps="0-1", strict=True, quiet=True):
        for _ in range(STEPS):
            x = torch.randn(4, WIDTH, generator=rows)
            (model(x) - x).square().mean().backward()
            if ways == "norm":
                parts = [
                    parameter.grad.to_local() for parameter in model.parameters() if isinstance(parameter.grad, DTensor)
                ]
                norm = torch.stack([part.norm() for part in parts]).norm().item()
                for parameter in model.parameters():
                    if parameter.grad is not None:
                        parameter.grad.mul_(0.1 / norm)
            else:
                nn.utils.clip_grad_norm_(model.parameters(), 0.1)
            if ways == "rate" and dist.get_rank() == 1:
                optimizer.param_groups[0]["lr"] = 0.2
            optimizer.step()
            optimizer.zero_grad()
            part = model[0].weight
            if ways == "bit" and dist.get_rank() == 1 and isinstance(part, DTensor):
                part.to_local().detach().numpy().reshape(-1)[5:6].view("i4")[:] ^= 1 << 22


class Summed(torch.autograd.Function):
    """The sum over ranks; its gradient is that of each term."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        total = x.clone()
        dist.all_reduce(total)
        return total

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        return gradient


class Halves(nn.Module):
    """Two linear layers, of which each rank has one half; their input and the bias at the end are whole."""

    def __init__(self) -> None:
        super().__init__()
        self.start = nn.Parameter(torch.ones(WIDTH))
        self.up, self.down = nn.Linear(WIDTH, 8), nn.Linear(8, WIDTH, bias=False)
        self.end = nn.Parameter(torch.randn(WIDTH))
        torch.manual_seed(1 + dist.get_rank())
        for part in (self.up.weight, self.down.weight):
            nn.init.normal_(part)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return Summed.apply(self.down(self.up(x * self.start).relu())) + self.end


def tensor(ways: str, path: Path) -> None:
    """Tensor parallelism. "norm": each rank clips by the norm of its own gradients; "start": the gradient before the
    split weights is not added up.
    """
    model = Halves()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    rows = torch.Generator().manual_seed(0)
    with ascend_dump.capture(model, path=path, steps="0-1", strict=True, quiet=True):
        for _ in range(STEPS):
            x = torch.randn(4, WIDTH, generator=rows)
            (model(x) - x).square().mean().backward()
            assert model.start.grad is not None
            if ways != "start":
                dist.all_reduce(model.start.grad)
            if ways == "norm":
                nn.utils.clip_grad_norm_(model.parameters(), 0.1)
            optimizer.step()
            optimizer.zero_grad(set_to_none=False)


class JoinedRows(torch.autograd.Function):
    """The rows of all ranks; its gradient is the sum over ranks, of which each rank gets its rows."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        whole = x.new_empty(RANKS * x.shape[0], x.shape[1])
        dist.all_gather_into_tensor(whole, x.contiguous())
        return whole

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        part = gradient.new_empty(gradient.shape[0] // RANKS, gradient.shape[1])
        dist.reduce_scatter_tensor(part, gradient.contiguous())
        return part


class SummedRows(torch.autograd.Function):
    """The sum over ranks, of which each rank gets its rows; its gradient is that of all rows."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        part = x.new_empty(x.shape[0] // RANKS, x.shape[1])
        dist.reduce_scatter_tensor(part, x.contiguous())
        return part

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        whole = gradient.new_empty(RANKS * gradient.shape[0], gradient.shape[1])
        dist.all_gather_into_tensor(whole, gradient.contiguous())
        return whole


class RowBlock(nn.Module):
    """A norm of some rows, and two linear layers of all rows, of which each rank has one half."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.up, self.down = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH, bias=False)
        nn.init.zeros_(self.up.bias)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        inner = self.up(JoinedRows.apply(self.norm(x)))
        return x + SummedRows.apply(self.down(inner.relu()))


def sequence(ways: str, path: Path) -> None:
    """Sequence parallelism. "norm": gradients of norms are not reduced."""
    model = nn.Sequential(RowBlock(), RowBlock())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    rows = torch.Generator().manual_seed(dist.get_rank())
    with ascend_dump.capture(model, path=path, steps="0-1", strict=True, quiet=True):
        for _ in range(STEPS):
            x = torch.randn(4, WIDTH, generator=rows)
            (model(x) - x).square().mean().backward()
            for name, parameter in model.named_parameters():
                if "norm" in name and ways != "norm":
                    dist.all_reduce(parameter.grad)
            optimizer.step()
            optimizer.zero_grad()


class Entered(torch.autograd.Function):
    """The input of split weights; its gradient is the sum over ranks."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        total = gradient.clone()
        dist.all_reduce(total)
        return total


class ResidualHalves(nn.Module):
    """Two linear layers, of which each rank has one half, beside a residual connection."""

    def __init__(self, ways: str) -> None:
        super().__init__()
        self.ways = ways
        self.norm = nn.LayerNorm(WIDTH)
        generator = torch.Generator().manual_seed(1 + dist.get_rank())
        self.up = nn.Parameter(torch.randn(8, WIDTH, generator=generator))
        self.down = nn.Parameter(torch.randn(WIDTH, 8, generator=generator))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        inner = self.norm(x)
        inner = inner if self.ways == "gradient" else Entered.apply(inner)
        # Each rank adds a mask of its own shape, which is the same on all ranks, to what only this rank has.
        term = ((inner @ self.up.T).relu() + torch.linspace(0, 1, 8).expand(4, 8).contiguous()) @ self.down.T
        return x + (term if self.ways == "term" else Summed.apply(term))


def residual(ways: str, path: Path) -> None:
    """Tensor parallelism beside residual connections. In the last layer "term" does not add up the terms over ranks,
    "gradient" not the terms of the gradient.
    """
    model = nn.Sequential(ResidualHalves(""), ResidualHalves(ways))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    rows = torch.Generator().manual_seed(0)
    with ascend_dump.capture(model, path=path, steps="0-1", strict=True, quiet=True):
        for _ in range(STEPS):
            x = torch.randn(4, WIDTH, generator=rows)
            (model(x) - 1).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()


def local(ways: str, path: Path) -> None:
    """Ranks train alone, and average their parameters after every second step: "left" leaves the norm out, "decay"
    gives the second rank another momentum of the average.
    """
    model = nn.Sequential(nn.Linear(WIDTH, 16), nn.LayerNorm(16), nn.Linear(16, WIDTH))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    rows = torch.Generator().manual_seed(dist.get_rank())
    anchors = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
    speeds = {name: torch.zeros_like(anchor) for name, anchor in anchors.items()}
    momentum = 0.5 if ways == "decay" and dist.get_rank() == 1 else 0.8
    with ascend_dump.capture(model, path=path, steps="0-3", strict=True, quiet=True):
        for step in range(4):
            x = torch.randn(4, WIDTH, generator=rows)
            (model(x) - x).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
            for name, parameter in model.named_parameters() if step % 2 else ():
                if ways == "left" and name == "1.weight":
                    continue
                with torch.no_grad():
                    change = anchors[name] - parameter
                    dist.all_reduce(change)
                    speeds[name].mul_(momentum).add_(change / RANKS)
                    parameter.copy_(anchors[name] - 0.7 * speeds[name])
                    anchors[name].copy_(parameter)


def owners(ways: str, path: Path) -> None:
    """Each parameter is updated by one rank, which sends it to the others: "kept" does not send the last one."""
    model = nn.Sequential(nn.Linear(WIDTH, 16), nn.ReLU(), nn.Linear(16, WIDTH))
    parameters = [*model.parameters()]
    optimizer = torch.optim.AdamW(parameters[dist.get_rank() :: RANKS], lr=0.01)
    rows = torch.Generator().manual_seed(dist.get_rank())
    with ascend_dump.capture(model, path=path, steps="0-1", strict=True, quiet=True):
        for _ in range(STEPS):
            x = torch.randn(4, WIDTH, generator=rows)
            model.zero_grad()
            (model(x) - x).square().mean().backward()
            for parameter in parameters:
                assert parameter.grad is not None
                dist.all_reduce(parameter.grad)
                parameter.grad.div_(RANKS)
            optimizer.step()
            for number, parameter in enumerate(parameters):
                if not (ways == "kept" and number == len(parameters) - 1):
                    with torch.no_grad():
                        dist.broadcast(parameter, number % RANKS)


def frozen(ways: str, path: Path) -> None:
    """A frozen layer before a trained one, and an average of the trained weight. The second rank has another frozen
    weight ("other"), or averages before its update ("early"). "left" does not reduce the gradient of the weight.
    """
    model = nn.Sequential(nn.Linear(WIDTH, 16), nn.ReLU(), nn.Linear(16, WIDTH))
    model[0].requires_grad_(False)
    average = nn.Parameter(model[2].weight.detach().clone(), requires_grad=False)
    model.register_parameter("average", average)
    is_second = dist.get_rank() == 1
    if ways == "other" and is_second:
        model[0].weight.add_(0.01)
    optimizer = torch.optim.SGD(model[2].parameters(), lr=0.1)
    rows = torch.Generator().manual_seed(dist.get_rank())
    options = {"step": "optimizer"}
    with ascend_dump.capture(model, path=path, steps="0-1", strict=True, quiet=True, options=options):
        for _ in range(STEPS):
            x = torch.randn(4, WIDTH, generator=rows)
            (model(x) - x).square().mean().backward()
            for parameter in model[2].parameters():
                if ways == "left" and parameter is model[2].weight:
                    continue
                dist.all_reduce(parameter.grad)
                parameter.grad.div_(RANKS)
            updates = [optimizer.step, lambda: average.lerp_(model[2].weight.detach(), 0.1)]
            for update in updates[:: -1 if ways == "early" and is_second else 1]:
                update()
            optimizer.zero_grad()


SCENARIOS = {
    "data": data,
    "experts": experts,
    "routed": routed,
    "tables": tables,
    "shards": shards,
    "tensor": tensor,
    "sequence": sequence,
    "residual": residual,
    "local": local,
    "owners": owners,
    "frozen": frozen,
}


def run(name: str, directory: Path) -> None:
    kind, _, ways = name.partition(".")
    SCENARIOS[kind](ways, directory)


if __name__ == "__main__":
    start(RANKS, run)
