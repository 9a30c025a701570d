"""Train eagerly on an NPU, on one device or several; with --capture the kernels of two steps are dumped."""

from __future__ import annotations

import argparse
import contextlib
import os
from typing import Optional

import simulated
import torch
import torch.distributed as dist
from network import Network, make_batch


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--capture", metavar="DIRECTORY")
    parser.add_argument("--scene")
    parser.add_argument("--save", metavar="FILE")
    given = parser.parse_args()
    with simulated.simulated_device():
        import torch_npu

        torch_npu.npu.set_device(int(os.environ.get("LOCAL_RANK", "0")))
        train(given.capture, given.scene, given.save)


def train(capture: Optional[str], scene: Optional[str], save: Optional[str]) -> None:
    rank, several = int(os.environ.get("RANK", "0")), "RANK" in os.environ
    if several:
        dist.init_process_group("hccl")
    torch.manual_seed(0)
    network = Network().npu()
    optimizer = torch.optim.SGD(network.parameters(), lr=0.1)

    block = contextlib.nullcontext()
    if capture is not None:
        import ascend_dump

        block = ascend_dump.capture(network, path=capture, steps="0|2", scene=scene)
    with block:
        for step in range(4):
            x, wanted = (tensor.npu() for tensor in make_batch(step, rank))
            loss = (network(x) - wanted).square().mean()
            optimizer.zero_grad()
            loss.backward()
            if several:
                for parameter in network.parameters():
                    dist.all_reduce(parameter.grad)
            optimizer.step()
            print(f"rank {rank} step {step}: loss {loss.item():.6f}", flush=True)
    if save is not None:
        torch.save({name: value.cpu() for name, value in network.state_dict().items()}, save)
    if several:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
