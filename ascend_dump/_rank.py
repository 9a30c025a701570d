"""Which rank this process is, without importing a framework."""

from __future__ import annotations

import contextlib
import os
import sys
from typing import NamedTuple

__all__ = ["Rank", "current_rank"]

#: Variables of torchrun, of Ascend's rank tables and msrun, of Open MPI: the rank, then the world size by any name.
_VARIABLES = (
    ("RANK", ("WORLD_SIZE",)),
    ("RANK_ID", ("RANK_SIZE", "MS_WORKER_NUM")),
    ("OMPI_COMM_WORLD_RANK", ("OMPI_COMM_WORLD_SIZE",)),
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
    for rank, worlds in _VARIABLES:
        try:
            number = int(os.environ[rank])
        except (KeyError, ValueError):
            continue
        for world in worlds:
            with contextlib.suppress(KeyError, ValueError):
                return Rank(number, max(int(os.environ[world]), number + 1))
        return Rank(number, number + 1)
    return Rank(0, 1)
