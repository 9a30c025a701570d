"""Ranks on gloo that wait for each other until a timeout, or are stopped while they wait.

rank_hangs.py DIRECTORY NAME...     run these scenarios at the same time, each captured to DIRECTORY/NAME

The last rank of a scenario differs from the others, in the second of two steps.
"""

from __future__ import annotations

import datetime
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn

import ascend_dump

WIDTH = 8
#: Number of ranks, by name.
SCENARIOS = {
    "healthy": 4,
    "lacks": 3,
    "last": 2,
    "order": 2,
    "kind": 2,
    "early": 2,
    "message": 2,
    "stopped": 2,
    "kept": 2,
    "ddp": 2,
}
_TIMEOUT = datetime.timedelta(seconds=5)


def train(rank: int, ranks: int, ways: str, path: Path) -> None:
    """Run two steps of data parallelism by hand, with gradients of one size."""
    is_last = rank == ranks - 1
    dist.init_process_group(
        "gloo", store=dist.FileStore(f"{path}.store", ranks), rank=rank, world_size=ranks, timeout=_TIMEOUT
    )
    torch.manual_seed(0)
    model = nn.Sequential(*(nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(3)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    rows = torch.Generator().manual_seed(rank)
    if ways == "ddp":
        model = nn.parallel.DistributedDataParallel(model)
    settings: dict[str, Any] = {"data": "stats", "keep": 1} if ways == "kept" else {"steps": "0-1"}
    with ascend_dump.capture(model, path=path, quiet=True, **settings):
        for step in range(2):
            loss = model(torch.randn(4, WIDTH, generator=rows)).square().mean()
            differs = ways if is_last and step == 1 else ""
            if differs == "ddp":
                return
            loss.backward()
            if differs == "early":
                return
            if differs in ("stopped", "kept"):
                time.sleep(60)
            if ways == "message" and step == 1:
                if not is_last:
                    dist.recv(torch.empty(4), ranks - 1)
                return
            gradients = [parameter.grad for parameter in model.parameters() if parameter.grad is not None]
            reduce_all([] if ways == "ddp" else gradients, differs)
            optimizer.step()
            optimizer.zero_grad()


def reduce_all(gradients: list[torch.Tensor], differs: str) -> None:
    if differs == "order":
        gradients = [gradients[1], gradients[0], gradients[2]]
    for number, gradient in enumerate(gradients):
        if (differs, number) in (("lacks", 1), ("last", 2)):
            continue
        if (differs, number) == ("kind", 1):
            dist.broadcast(gradient, 0)
        else:
            dist.all_reduce(gradient)


def run(number: int, starts: list[tuple[int, int, str, Path]]) -> None:
    rank, ranks, ways, path = starts[number]
    torch.set_num_threads(1)
    os.environ.update(RANK=str(rank), WORLD_SIZE=str(ranks), LOCAL_RANK=str(rank))
    try:
        train(rank, ranks, ways, path)
    except RuntimeError as error:
        print(f"{ways}, rank {rank}: {error}")
    sys.stdout.flush()
    os._exit(0)


def wait_for_records(path: Path, ranks: int) -> None:
    """Wait until all ranks have written records of the second step, and a second more for the rest of them."""
    deadline = time.monotonic() + 40
    while len([*path.glob("*/*/0/*/0/1/index.jsonl")]) < ranks and time.monotonic() < deadline:
        time.sleep(0.1)
    time.sleep(1)


def main() -> None:
    """Start all scenarios from one process, because importing takes longer than running them."""
    torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=0.1)  # imports the rest of PyTorch
    names = sys.argv[2:]
    starts = [
        (rank, SCENARIOS[name], name, Path(sys.argv[1], name)) for name in names for rank in range(SCENARIOS[name])
    ]
    context = mp.start_processes(run, (starts,), nprocs=len(starts), join=False, start_method="fork")
    for name in {"stopped", "kept"}.intersection(names):
        wait_for_records(Path(sys.argv[1], name), SCENARIOS[name])
    for (_, _, name, _), process in zip(starts, context.processes):
        if name in ("stopped", "kept"):
            os.kill(process.pid, signal.SIGKILL)
        process.join()


if __name__ == "__main__":
    main()
