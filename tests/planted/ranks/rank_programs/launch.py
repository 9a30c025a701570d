"""Start the ranks of a program as processes that rendezvous in a file."""

from __future__ import annotations

import importlib
import multiprocessing
import os
import tempfile
import time
import traceback
import warnings
from pathlib import Path
from typing import Any

import torch
import torch._dynamo  # optimizers import it late, and every forked rank would do so again
import torch.distributed as dist

from rank_programs.common import PROGRAMS, Context

#: Seconds after which the ranks of a run are stopped.
LIMIT = 90
#: The same for a program that hangs on purpose.
HANG_LIMIT = 25


class RunError(Exception):
    """A rank ended with an exception, or did not end."""


def run(
    name: str, fault: str = "", *, world: int, path: str | None = None, keep: bool = False
) -> list[dict[str, torch.Tensor]]:
    """Run all ranks of a program; return the results of each if they are to be kept.

    path  where to write the dump; None records nothing
    """
    entry = PROGRAMS[name]
    if entry.imports:
        importlib.import_module(entry.imports)
    forking = multiprocessing.get_context("fork")
    with tempfile.TemporaryDirectory() as scratch:
        arguments = (name, fault, world, path, scratch, keep)
        ranks = [forking.Process(target=_rank, args=(rank, *arguments)) for rank in range(world)]
        for process in ranks:
            process.start()
        hangs = bool(fault) and entry.faults[fault].hangs
        _wait(ranks, HANG_LIMIT if hangs else LIMIT)
        if hangs:
            if not any(process.exitcode for process in ranks):
                raise RunError("all ranks ended, but the fault has to make them wait")
            return []
        errors = [file.read_text() for file in sorted(Path(scratch).glob("error*"))]
        if errors or any(process.exitcode for process in ranks):
            raise RunError(errors[0] if errors else f"exit codes {[process.exitcode for process in ranks]}")
        return [torch.load(f"{scratch}/result{rank}") for rank in range(world)] if keep else []


def _wait(ranks: list[Any], limit: float) -> None:
    end = time.monotonic() + limit
    while any(process.is_alive() for process in ranks):
        if time.monotonic() > end or any(process.exitcode for process in ranks):
            time.sleep(1)
            for process in ranks:
                process.kill()
        time.sleep(0.02)
    for process in ranks:
        process.join()


def _rank(rank: int, name: str, fault: str, world: int, path: str | None, scratch: str, keep: bool) -> None:
    code = 0
    try:
        torch.set_num_threads(1)
        warnings.simplefilter("ignore")
        os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(world), LOCAL_WORLD_SIZE=str(world))
        if world > 1:
            dist.init_process_group("gloo", init_method=f"file://{scratch}/store", rank=rank, world_size=world)
        entry = PROGRAMS[name]
        ctx = Context(rank, world, fault, entry.faults[fault] if fault else None, path)
        entry.main(ctx)
        if keep:
            torch.save(ctx.results, f"{scratch}/result{rank}")
        if world > 1:
            dist.barrier()
            dist.destroy_process_group()
    except BaseException:
        Path(scratch, f"error{rank}").write_text(traceback.format_exc())
        code = 1
    # No handlers at exit: they belong to the process that was forked.
    os._exit(code)
