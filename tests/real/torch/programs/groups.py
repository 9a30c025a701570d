"""Four ranks on gloo in one go, each in a process that is forked after PyTorch is imported.

groups.py DIRECTORY NAME...     run these scenarios one after the other, each captured to DIRECTORY/NAME

A name is a way of training, `ddp`, `fsdp`, `tp` or `pipeline`, and after a dot the fault that one rank has.
"""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Callable

import torch
import torch.distributed as dist
from networks import Block, Net
from scenarios import start
from torch import nn
from torch._C._distributed_c10d import _create_work_from_future
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel

import ascend_dump

RANKS = 4
WIDTH = 16
STEPS = 2


def train(model: nn.Module, seed: int, *, before_step: Callable[[int], None] = lambda step: None) -> None:
    """seed: of the data of this rank."""
    data = torch.Generator().manual_seed(seed)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    for step in range(STEPS):
        before_step(step)
        x, y = torch.randn(8, WIDTH, generator=data), torch.randint(0, 4, (8,), generator=data)
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
        optimizer.zero_grad()


def corrupt(tensor: torch.Tensor) -> None:
    tensor.data.view(-1)[3] += 0.5


#: What goes wrong between ranks: on this rank, in the kernel of this operator of c10d.
KERNEL_FAULTS = {
    "reduction": (1, "allreduce_"),  # gets another sum than the others
    "part": (2, "allreduce_"),  # its part is lost on the way
    "scattered": (3, "_reduce_scatter_base_"),  # gets another sum
    "gathered": (1, "_allgather_base_"),  # what it gets of rank 2 is damaged
    "message": (2, "recv_"),  # what it receives is damaged
}


@contextlib.contextmanager
def faulty_kernel(fault: str) -> Iterator[None]:
    """Put a kernel below all that records, as a faulty communication library is."""
    if fault not in KERNEL_FAULTS:
        yield
        return
    rank, operator = KERNEL_FAULTS[fault]
    here = dist.get_rank() == rank

    def backend(group: Any) -> Any:
        return dist.ProcessGroup.unbox(group)._get_backend(torch.device("cpu"))

    def all_reduce(tensors: Any, group: Any, *others: Any) -> Any:
        if here and fault == "part":
            tensors[0].zero_()
        work = backend(group).allreduce(tensors, dist.AllreduceOptions())
        work.wait()
        if here and fault == "reduction":
            corrupt(tensors[0])
        return tensors, work.boxed()

    def reduce_scatter(output: Any, given: Any, group: Any, *others: Any) -> Any:
        whole = given.clone()
        work = backend(group).allreduce([whole], dist.AllreduceOptions())
        work.wait()
        output.copy_(whole.view(RANKS, -1)[dist.get_rank()].view_as(output) / RANKS)  # FSDP asks for the mean
        if here:
            corrupt(output)
        return output, work.boxed()

    def all_gather(output: Any, given: Any, group: Any, *others: Any) -> Any:
        work = backend(group).allgather([list(output.view(RANKS, -1).unbind())], [given.view(-1)])
        work.wait()
        if here:
            corrupt(output.view(RANKS, -1)[2])
        return output, work.boxed()

    def receive(tensors: Any, group: Any, source: int, tag: int) -> Any:
        work = backend(group).recv(tensors, source, tag)
        work.wait()
        if here:
            corrupt(tensors[0])
        done: torch.futures.Future[Any] = torch.futures.Future()
        done.set_result(tensors)
        return _create_work_from_future(done).boxed()  # to wait for the other one again would take for ever

    kernels = {
        "allreduce_": all_reduce,
        "_reduce_scatter_base_": reduce_scatter,
        "_allgather_base_": all_gather,
        "recv_": receive,
    }
    library = torch.library.Library("c10d", "IMPL")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that another kernel is there
        library.impl(operator, kernels[operator], "CPU")
    try:
        yield
    finally:
        library._destroy()


def ddp(fault: str, path: Path) -> None:
    """Fault of this way: `weight` (rank 2's, from step 1 on)."""
    inner = Net(WIDTH)
    model = DistributedDataParallel(inner)

    def before_step(step: int) -> None:
        if fault == "weight" and step == 1 and dist.get_rank() == 2:
            corrupt(inner.blocks[1].up.weight)

    with ascend_dump.capture(model, path=path, steps="0-1", strict=True, quiet=True):
        train(model, dist.get_rank(), before_step=before_step)


def fsdp(fault: str, path: Path) -> None:
    inner = Net(WIDTH)
    for block in inner.blocks:
        fully_shard(block)
    fully_shard(inner)
    with ascend_dump.capture(inner, path=path, steps="0-1", strict=True, quiet=True):
        train(inner, dist.get_rank())


def split_over(mesh: DeviceMesh) -> Net:
    """A network whose blocks are split over the ranks of a mesh, by columns and then by rows."""
    model = Net(WIDTH)
    plan = {}
    for i in range(2):
        plan[f"blocks.{i}.up"], plan[f"blocks.{i}.down"] = ColwiseParallel(), RowwiseParallel()
    parallelize_module(model, mesh, plan)
    return model


def tp(fault: str, path: Path) -> None:
    """Fault of this way: `data` (rank 3 sees other data)."""
    mesh = init_device_mesh("cpu", (RANKS,), mesh_dim_names=("tp",))
    model = split_over(mesh)
    with ascend_dump.capture(model, path=path, steps="0-1", strict=True, quiet=True):
        train(model, 7 if fault == "data" and dist.get_rank() == 3 else 0)


def mesh(fault: str, path: Path) -> None:
    """Two copies, each of two ranks with parts; all see the same data. `activation`: rank 2 has another activation."""
    half = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))["tp"]
    model = split_over(half)
    if fault == "activation" and dist.get_rank() == 2:
        model.blocks[1].act = nn.GELU(approximate="tanh")
    with ascend_dump.capture(model, path=path, steps="0-1", strict=True, quiet=True):
        train(model, 0)


def two(fault: str, path: Path) -> None:
    """Train as `tp` does, on ranks 0 and 1 alone."""
    pair = DeviceMesh("cpu", torch.arange(2), mesh_dim_names=("tp",))  # all ranks make its group
    if dist.get_rank() > 1:
        return
    model = split_over(pair)
    if fault == "activation" and dist.get_rank() == 1:
        model.blocks[1].act = nn.GELU(approximate="tanh")
    with ascend_dump.capture(model, path=path, steps="0-1", ranks="0-1", strict=True, quiet=True):
        train(model, 0)


def whole(fault: str, path: Path) -> None:
    """Train as `tp` does, on rank 0 alone and in one piece: its reference."""
    if dist.get_rank() == 0:
        with ascend_dump.capture(model := Net(WIDTH), path=path, steps="0-1", ranks="0", strict=True, quiet=True):
            train(model, 0)


def zero(fault: str, path: Path) -> None:
    """ZeRO-1: each rank updates some parameters, and sends them to the others. `whole`: rank 0 alone with all rows."""
    alone = dist.new_group([0])
    rank, ranks, group = (0, 1, alone) if fault == "whole" else (dist.get_rank(), RANKS, None)
    if fault == "whole" and dist.get_rank() > 0:
        return
    model = DistributedDataParallel(
        nn.Sequential(nn.Linear(8, WIDTH), nn.LayerNorm(WIDTH), nn.GELU(), nn.Linear(WIDTH, 4)), process_group=group
    )
    optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.AdamW, process_group=group, lr=1e-2)
    data = torch.Generator().manual_seed(0)
    with ascend_dump.capture(model, path=path, steps="0-1", ranks="all", strict=True, quiet=True):
        for _ in range(STEPS):
            x, y = torch.randn(8, 8, generator=data), torch.randint(0, 4, (8,), generator=data)
            rows = slice(8 // ranks * rank, 8 // ranks * (rank + 1))
            nn.functional.cross_entropy(model(x[rows]), y[rows]).backward()
            optimizer.step()
            optimizer.zero_grad()


class Stage(nn.Module):
    """Receives, computes and sends; `late`: the first rank that receives before its step begins."""

    def __init__(self, late: int) -> None:
        super().__init__()
        self.block = Block(WIDTH)
        self.late = late

    def receive(self, x: torch.Tensor) -> None:
        if dist.get_rank() > 0:
            dist.recv(x, dist.get_rank() - 1, tag=5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if dist.get_rank() < self.late:
            self.receive(x)
        y: torch.Tensor = self.block(x)
        if dist.get_rank() < RANKS - 1:
            dist.send(y.detach(), dist.get_rank() + 1, tag=5)
        return y


def pipeline(fault: str, path: Path) -> None:
    """Not wrong: `late` (ranks 2 and 3 receive before their steps begin)."""
    stage = Stage(2 if fault == "late" else RANKS)
    with ascend_dump.capture(stage, path=path, steps="0-1", strict=True, quiet=True):
        data = torch.Generator().manual_seed(0)
        for _ in range(STEPS):
            x = torch.randn(8, WIDTH, generator=data)
            if dist.get_rank() >= stage.late:
                stage.receive(x)
            stage(x)


SCENARIOS = {
    "ddp": ddp,
    "fsdp": fsdp,
    "tp": tp,
    "pipeline": pipeline,
    "whole": whole,
    "mesh": mesh,
    "two": two,
    "zero": zero,
}


def run(name: str, directory: Path) -> None:
    kind, _, fault = name.partition(".")
    with faulty_kernel(fault):
        SCENARIOS[kind](fault, directory)


if __name__ == "__main__":
    start(RANKS, run)
