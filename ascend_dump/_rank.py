"""Which rank this process is, without importing a framework."""

from __future__ import annotations

import os
import sys
from typing import NamedTuple

__all__ = ["Rank", "current_rank"]

#: (rank, world size) variables of torchrun and msrun, of Ascend's rank tables, of Open MPI.
_VARIABLES = (
    ("RANK", "WORLD_SIZE"),
    ("RANK_ID", "RANK_SIZE"),
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
)


class Rank(NamedTuple):
    rank: int
    world: int

    @property
    def level(self) -> str:
        """The directory level that keeps ranks apart."""
        return f"worldsize{self.world}_global_rank{self.rank}"


def current_rank() -> Rank:
    """The initialised process group of torch if there is one, else the launcher's variables."""
    distributed = sys.modules.get("torch.distributed")
    if distributed is not None and distributed.is_available() and distributed.is_initialized():
        return Rank(distributed.get_rank(), distributed.get_world_size())
    for rank, world in _VARIABLES:
        try:
            number = int(os.environ[rank])
        except (KeyError, ValueError):
            continue
        try:
            return Rank(number, max(int(os.environ[world]), number + 1))
        except (KeyError, ValueError):
            return Rank(number, number + 1)
    return Rank(0, 1)
