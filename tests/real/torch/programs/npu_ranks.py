"""DDP and FSDP2 on NPUs, as torchrun starts it; each rank prints the devices and losses as JSON.

python -m torch.distributed.run --standalone --nproc_per_node 2 -m ascend_dump.fakes torch_npu -- npu_ranks.py
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any

os.environ["HF_HUB_OFFLINE"] = "1"
sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

import torch
import torch.distributed as dist
import torch_npu  # noqa: F401  (the fake)
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel
from workloads import VOCABULARY, make_llama


def train(model: Any, device: torch.device) -> list[float]:
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    losses = []
    for step in range(2):
        generator = torch.Generator().manual_seed(10 * step + dist.get_rank())
        tokens = torch.randint(3, VOCABULARY, (2, 8), generator=generator).to(device)
        loss = model(input_ids=tokens, labels=tokens).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        dist.all_reduce(loss.detach())
        losses.append(loss.item())
    return losses


def main() -> None:
    local_rank = int(os.environ["LOCAL_RANK"])
    torch.npu.set_device(local_rank)  # type: ignore[attr-defined]
    dist.init_process_group(backend="hccl")
    device = torch.device("npu", local_rank)
    replicated = DistributedDataParallel(make_llama().to(device), device_ids=[local_rank])
    sharded = make_llama().to(device)
    mesh = init_device_mesh("npu", (2,))
    for layer in sharded.model.layers:
        fully_shard(layer, mesh=mesh)
    fully_shard(sharded, mesh=mesh)
    result = {"device": str(next(replicated.parameters()).device), "backend": dist.get_backend()}
    losses = {"ddp": train(replicated, device), "fsdp": train(sharded, device)}
    # One write: the ranks share the output.
    sys.stdout.write(json.dumps({**result, **losses}) + "\n")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
