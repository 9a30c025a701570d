"""Distributed training on gloo, one process per rank, started by torchrun.

ranks.py train DIRECTORY              nothing of a capture in the script: leaves the losses
ranks.py capture DIRECTORY KIND       captures, and checks its own dump against a naive recording
ranks.py functional DIRECTORY         the same with functional collectives, which DTensor is made of
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as collectives
from networks import Block, Net
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
from torch.distributed.fsdp.wrap import ModuleWrapPolicy
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel

sys.path.insert(0, str(Path(__file__).parents[1]))

from truth import Truth, compare_step

import ascend_dump

STEPS = 4
WIDTH = 96  # weights large enough to be queued for the writer without a copy


def make(kind: str) -> tuple[nn.Module, nn.Module]:
    """(what is called, the module inside it); the same for fully_shard, which wraps nothing."""
    torch.manual_seed(0)
    inner = Net(WIDTH)
    if kind == "ddp":
        return DistributedDataParallel(inner), inner
    if kind == "fsdp":
        policy = ModuleWrapPolicy({Block})
        return FullyShardedDataParallel(inner, auto_wrap_policy=policy, device_id=torch.device("cpu")), inner
    for block in inner.blocks:
        fully_shard(block)
    fully_shard(inner)
    return inner, inner


def train(model: nn.Module) -> list[str]:
    """Losses of this rank, exact."""
    data = torch.Generator().manual_seed(dist.get_rank())
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    losses = []
    for _ in range(STEPS):
        x, y = torch.randn(64, WIDTH, generator=data), torch.randint(0, 4, (64,), generator=data)
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item().hex())
    return losses


def full_parameters(kind: str, model: nn.Module) -> dict[str, np.ndarray]:
    """What all ranks together hold."""
    if kind == "fsdp":
        with FullyShardedDataParallel.summon_full_params(model):
            named = {name.replace("_fsdp_wrapped_module.", ""): p.detach().clone() for name, p in named_in(model)}
    elif kind == "fully_shard":
        named = {name: p.full_tensor().detach().clone() for name, p in named_in(model)}
    else:
        named = {name.replace("module.", ""): p.detach().clone() for name, p in named_in(model)}
    return {name: p.numpy() for name, p in named.items()}


def named_in(model: nn.Module) -> list[tuple[str, Any]]:
    return list(model.named_parameters())


def check_capture(path: Path, kind: str) -> None:
    """Assert that captures of the wrapper and of the inner module change nothing and are true."""
    before = full_parameters(kind, make(kind)[0])
    model, _ = make(kind)
    losses, after = train(model), full_parameters(kind, model)
    targets = ("wrapper",) if kind == "fully_shard" else ("wrapper", "inner")
    for target in targets:
        model, inner = make(kind)
        with Truth(model if target == "wrapper" else inner) as truth:
            assert train(model) == losses
        model, inner = make(kind)
        with ascend_dump.capture(
            model if target == "wrapper" else inner, path=path / target, steps="0|2|3", strict=True
        ) as cap:
            assert train(model) == losses
        captured = full_parameters(kind, model)
        assert all(np.array_equal(after[name], captured[name]) for name in after)

        dump = cap.dump()
        assert {record.step for record in dump} == {0, 2, 3}
        for step in (0, 2, 3):
            assert compare_step(dump.select(step=step), truth.steps[step]) > 200
        for module in ("blocks.0.up", "blocks.0.down", "blocks.1.up", "blocks.1.down", "head"):
            (weight,) = dump.select(f"{module}/addmm_0", step=0, io="input", index=2)
            assert np.array_equal(weight.numpy().T, before[f"{module}.weight"]), module


def check_collectives(path: Path) -> None:
    """Assert that nothing is recorded while it is still being reduced or gathered."""
    mine = torch.full((1 << 18,), dist.get_rank() + 1.0)

    def reduce_and_gather() -> list[torch.Tensor]:
        reduced = collectives.all_reduce(mine, "sum", dist.group.WORLD) + 1
        gathered = collectives.all_gather_single(mine, 0, dist.group.WORLD) * 2
        buffer = mine.clone()
        work = dist.all_reduce(buffer, async_op=True)
        halves = buffer.view(2, -1)
        work.wait()
        whole = halves + 1
        # Two on one buffer, as of bucketed gradients: the end of the first says nothing of the second.
        first, second = dist.all_reduce(halves[0], async_op=True), dist.all_reduce(halves[1], async_op=True)
        first.wait()
        early = halves[0, : 1 << 10] * 2
        second.wait()
        return [reduced, gathered, whole, early, halves[1] + 1]

    results = reduce_and_gather()
    with ascend_dump.capture(path=path / "collectives", strict=True) as cap:
        captured = reduce_and_gather()
    assert all(torch.equal(a, b) for a, b in zip(results, captured))
    found = [
        (record.op_type.partition("::")[2], record.io, np.unique(record.numpy()).tolist())
        for record in cap.dump()
        if "skipped" not in record.attrs
    ]
    one = [dist.get_rank() + 1.0]
    assert found == [
        ("all_reduce", "input", one),
        ("all_reduce", "output", [3.0]),
        ("wait_tensor", "output", [3.0]),
        ("add", "input", [3.0]),
        ("add", "output", [4.0]),
        ("all_gather_into_tensor", "input", one),
        ("all_gather_into_tensor", "output", [1.0, 2.0]),
        ("wait_tensor", "output", [1.0, 2.0]),
        ("mul", "input", [1.0, 2.0]),
        ("mul", "output", [2.0, 4.0]),
        ("clone", "input", one),
        ("clone", "output", one),
        ("allreduce_", "input", one),
        ("allreduce_", "output", [3.0]),
        ("add", "input", [3.0]),
        ("add", "output", [4.0]),
        ("select", "input", [3.0]),
        ("select", "output", [3.0]),
        ("allreduce_", "input", [3.0]),
        ("select", "output", [3.0]),
        ("allreduce_", "input", [3.0]),
        ("allreduce_", "output", [6.0]),
        ("select", "output", [6.0]),
        ("slice", "input", [6.0]),
        ("slice", "output", [6.0]),
        ("mul", "input", [6.0]),
        ("mul", "output", [12.0]),
        ("allreduce_", "output", [6.0]),
        ("select", "input", [6.0]),
        ("select", "output", [6.0]),
        ("add", "input", [6.0]),
        ("add", "output", [7.0]),
    ]

    def make_parallel() -> nn.Module:
        torch.manual_seed(0)
        mesh = init_device_mesh("cpu", (dist.get_world_size(),))
        return parallelize_module(Block(WIDTH), mesh, {"up": ColwiseParallel(), "down": RowwiseParallel()})

    def train_parallel(model: nn.Module) -> list[str]:
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
        losses = []
        data = torch.Generator().manual_seed(0)
        for _ in range(STEPS):
            loss = model(torch.randn(64, WIDTH, generator=data)).square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.item().hex())
        return losses

    losses = train_parallel(make_parallel())
    with Truth(model := make_parallel()) as truth:
        assert train_parallel(model) == losses
    model = make_parallel()
    with ascend_dump.capture(model, path=path / "parallel", steps="0|2", strict=True) as cap:
        assert train_parallel(model) == losses
    for step in (0, 2):
        assert compare_step(cap.dump().select(step=step), truth.steps[step]) > 50


def main() -> None:
    command, directory, *rest = sys.argv[1:]
    dist.init_process_group("gloo")
    if command == "train":
        losses = train(make("ddp")[0])
        Path(directory, f"losses{dist.get_rank()}.json").write_text(json.dumps(losses))
    elif command == "capture":
        check_capture(Path(directory), *rest)
    else:
        check_collectives(Path(directory))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
