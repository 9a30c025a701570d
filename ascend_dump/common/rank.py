"""Find the rank of this process without importing a framework."""

from __future__ import annotations

import contextlib
import logging
import os
import sys
from collections.abc import Container
from typing import NamedTuple

__all__ = ["Rank", "current_rank", "is_selected", "is_spokesman", "ranks_of_this_host"]

log = logging.getLogger("ascend_dump")

#: Environment variables of launchers: the rank, and the possible names of the world size. In order: torchrun; Ascend's
#: rank tables and msrun; Open MPI; srun. SLURM_NTASKS is not used, because a batch script with one process has it too.
_VARIABLES = (
    ("RANK", ("WORLD_SIZE",)),
    ("RANK_ID", ("RANK_SIZE", "MS_WORKER_NUM")),
    ("OMPI_COMM_WORLD_RANK", ("OMPI_COMM_WORLD_SIZE",)),
    ("SLURM_PROCID", ("SLURM_STEP_NUM_TASKS",)),
)

#: Environment variables of torchrun and Open MPI: the rank within this machine, and the number of its ranks.
_LOCAL_VARIABLES = (
    ("LOCAL_RANK", "LOCAL_WORLD_SIZE"),
    ("OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE"),
)


class Rank(NamedTuple):
    """The global rank of a process, and the number of ranks."""

    rank: int
    world: int

    @property
    def level(self) -> str:
        """Return the name of the directory of this rank."""
        return f"worldsize{self.world}_global_rank{self.rank}"


def current_rank() -> Rank:
    """Return the rank in torch's process group if that is initialised, else the rank in the launcher's variables.

    Without both, the process is rank 0 of 1. If the world size is unknown, it is the rank + 1.
    """
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


def ranks_of_this_host(rank: Rank) -> range:
    """Return the ranks on this machine; all ranks if the launcher sets no variables for the local rank."""
    for local, number in _LOCAL_VARIABLES:
        with contextlib.suppress(KeyError, ValueError):
            first = rank.rank - int(os.environ[local])
            if 0 <= first <= rank.rank:
                return range(first, min(rank.world, first + int(os.environ[number])))
    return range(rank.world)


def is_spokesman(rank: Rank, ranks: Container[int]) -> bool:
    """Return True if this process prints messages for its machine: the first of the machine's ranks that is in `ranks`.

    If no rank of the machine is in `ranks`, every process prints them.
    """
    return rank.rank == next((number for number in ranks_of_this_host(rank) if number in ranks), rank.rank)


def is_selected(rank: Rank, ranks: Container[int]) -> bool:
    """Return True if `ranks=` selects this process. Rank 0 warns if `ranks=` selects no rank of the run."""
    if rank.rank in ranks:
        return True
    if rank.rank or any(number in ranks for number in range(rank.world)):
        log.info("rank %d is not among ranks=%s: nothing is captured here", rank.rank, ranks)
    else:
        log.warning(
            "nothing is captured: ranks=%s selects no rank of this run, whose world size is %d [AD303]\n"
            "Hint: ranks count from 0; start the capture after the process group, or by a launcher that sets RANK",
            ranks,
            rank.world,
        )
    return False
