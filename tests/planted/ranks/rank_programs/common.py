"""The registry of programs and faults, and what a program gets to know about its rank."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F

STEPS = 3
BATCH = 8


@dataclass(frozen=True)
class Fault:
    """A planted fault and its truth.

    what    the mistake, in words
    rank    the rank that makes it; None if all ranks do
    alone   True if the dump of the broken run alone shows it: ranks disagree, or a collective contradicts the others
    rules   names of rules of `triage` that are right wherever they point, separated by spaces
    at      pattern of operator, module or tensor that is right in every way of looking
    kinds   pattern of kinds of origins that are right
    update  True if against one rank the update of a parameter may be named
    ranks   numbers of ranks with which it is a fault
    hangs   True if the program does not end; it is then stopped, and only looked at alone
    """

    what: str
    rank: int | None = 1
    alone: bool = True
    rules: str = ""
    at: str = ""
    kinds: str = ""
    update: bool = False
    ranks: tuple[int, ...] = (2, 4)
    hangs: bool = False


@dataclass(frozen=True)
class Program:
    """A healthy program.

    main       runs one rank
    ranks      numbers of ranks that it can have
    one        True if one rank can compute the same from the whole batch
    tolerance  largest relative difference between the same on one rank and on several
    imports    a module to import before processes are forked
    """

    name: str
    main: Callable[[Context], None]
    ranks: tuple[int, ...]
    one: bool
    tolerance: float
    imports: str
    faults: dict[str, Fault] = field(default_factory=dict)

    @property
    def file(self) -> Path:
        return Path(self.main.__code__.co_filename)


PROGRAMS: dict[str, Program] = {}


def program(
    name: str,
    *,
    ranks: tuple[int, ...] = (2, 4),
    one: bool = True,
    tolerance: float = 5e-5,
    imports: str = "",
    **faults: Fault,
) -> Callable[[Callable[[Context], None]], Callable[[Context], None]]:
    """Register a program with its faults. In names of faults `_` stands for `-`."""

    def register(main: Callable[[Context], None]) -> Callable[[Context], None]:
        named = {key.replace("_", "-"): fault for key, fault in faults.items()}
        PROGRAMS[name] = Program(name, main, ranks, one, tolerance, imports, named)
        return main

    return register


class Context:
    """One rank of one run."""

    def __init__(self, rank: int, world: int, fault: str, of: Fault | None, path: str | None) -> None:
        self.rank, self.world, self.path = rank, world, path
        self._fault, self._of = fault, of
        self.results: dict[str, torch.Tensor] = {}
        self._losses: list[torch.Tensor] = []

    @property
    def single(self) -> bool:
        return self.world == 1

    def planted(self, name: str) -> bool:
        """Return True if this fault is planted, and this rank makes it."""
        return self._of is not None and self._fault == name and self._of.rank in (None, self.rank)

    def capture(
        self, model: nn.Module, steps: str = f"0-{STEPS - 1}", **settings: Any
    ) -> contextlib.AbstractContextManager[Any]:
        """Return the capture of the model; without a path nothing is recorded, and the tool is not imported."""
        if self.path is None:
            return contextlib.nullcontext()
        import ascend_dump

        return ascend_dump.capture(model, path=self.path, steps=steps, quiet=True, strict=True, **settings)

    def rows(
        self, *tensors: torch.Tensor, rank: int | None = None, of: int | None = None, axis: int = 0
    ) -> list[torch.Tensor]:
        """Return the part of each tensor that a rank gets, as a data loader does: no operator of PyTorch runs."""
        place = self.rank if rank is None else rank
        return [torch.from_numpy(np.split(tensor.numpy(), of or self.world, axis)[place].copy()) for tensor in tensors]

    def group_mean(self, value: torch.Tensor) -> torch.Tensor:
        value = value.detach().clone().float()
        if not self.single:
            dist.all_reduce(value)
        return value / self.world

    def loss(self, value: torch.Tensor) -> None:
        """Note the loss of a step."""
        self._losses.append(value.detach().clone().float())

    def end(self, parameters: Iterable[tuple[str, torch.Tensor]], *, mean_loss: bool = True) -> None:
        """Note the results after the last step. Parameters have to be whole ones."""
        if self._losses:
            losses = torch.stack([loss.reshape(()) for loss in self._losses])
            self.results["loss"] = self.group_mean(losses) if mean_loss else losses
        for name, value in parameters:
            self.results[name] = value.detach().clone().float()

    def whole(self, part: torch.Tensor, axis: int = 0, group: Any = None) -> torch.Tensor:
        """Return the tensor of which each rank has a part."""
        if self.single:
            return part.detach()
        parts = [torch.empty_like(part) for _ in range(dist.get_world_size(group))]
        dist.all_gather(parts, part.detach().contiguous(), group=group)
        return torch.cat(parts, axis)

    def collect(self, parameters: Iterable[tuple[str, torch.Tensor]]) -> list[tuple[str, torch.Tensor]]:
        """Return the parameters of all ranks, the same names with the number of the rank if several have them."""
        mine = [(name, value.detach().clone()) for name, value in parameters]
        if self.single:
            return mine
        all_ranks: list[Any] = [None] * self.world
        dist.all_gather_object(all_ranks, mine)
        found: dict[str, torch.Tensor] = {}
        for rank, named in enumerate(all_ranks):
            for name, value in named:
                found[f"{name} of rank {rank}" if name in found else name] = value
        return list(found.items())


def batch(step: int, width: int = 12, outputs: int = 6, rows: int = BATCH) -> tuple[torch.Tensor, torch.Tensor]:
    """Return inputs and targets of the whole batch of a step."""
    x = np.random.default_rng(1000 + step).standard_normal((rows, width), np.float32)
    mixing = np.random.default_rng(77).standard_normal((width, outputs), np.float32)
    return torch.from_numpy(x), torch.from_numpy(np.tanh(x @ mixing / 3))


def tokens(step: int, vocabulary: int = 32, length: int = 8, rows: int = BATCH) -> tuple[torch.Tensor, torch.Tensor]:
    """Return tokens and the tokens that follow, of the whole batch of a step."""
    ids = np.random.default_rng(2000 + step).integers(0, vocabulary, (rows, length + 1))
    return torch.from_numpy(ids[:, :-1].copy()), torch.from_numpy(ids[:, 1:].copy())


def flip(tensor: torch.Tensor, element: int = 5, bit: int = 22) -> None:
    """Flip a bit of a float32 in memory; no operator of PyTorch runs."""
    tensor.detach().numpy().reshape(-1)[element : element + 1].view("i4")[:] ^= 1 << bit


class Net(nn.Module):
    """A small network with a residual and a norm."""

    def __init__(self, width: int = 12, hidden: int = 24, outputs: int = 6) -> None:
        super().__init__()
        self.inlet = nn.Linear(width, hidden)
        self.norm = nn.LayerNorm(hidden)
        self.mid = nn.Linear(hidden, hidden)
        self.outlet = nn.Linear(hidden, outputs)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.inlet(x).tanh()
        h = h + self.mid(self.norm(h)).relu()
        return self.outlet(h)


def squared(out: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return F.mse_loss(out, y)


def seeded(make: Callable[[], nn.Module], seed: int = 11) -> Any:
    """Return a new module whose weights depend on the seed alone."""
    torch.manual_seed(seed)
    return make()
