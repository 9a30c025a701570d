"""Run the scenarios of a program on several processes of this machine: `PROGRAM DIRECTORY SCENARIO...`."""

from __future__ import annotations

import datetime
import os
import sys
from pathlib import Path
from typing import Any, Callable

import torch
import torch.distributed as dist
import torch.multiprocessing as mp


def start(ranks: int, run: Callable[[str, Path], Any]) -> None:
    """Call `run(scenario, directory)` for the scenarios of the command line, in each of the ranks."""
    mp.start_processes(_run_all, (ranks, run, sys.argv[1], sys.argv[2:]), nprocs=ranks, start_method="fork")


def _run_all(rank: int, ranks: int, run: Callable[[str, Path], Any], directory: str, names: list[str]) -> None:
    torch.set_num_threads(1)
    os.environ.update(RANK=str(rank), WORLD_SIZE=str(ranks), LOCAL_RANK=str(rank))
    store = dist.FileStore(f"{directory}/store", ranks)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=ranks, timeout=datetime.timedelta(seconds=60))
    for name in names:
        torch.manual_seed(0)
        run(name, Path(directory, name))
        dist.barrier()
    dist.destroy_process_group()
