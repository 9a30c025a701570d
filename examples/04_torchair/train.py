"""Train with torchair, on one device or several; with --capture the operators of two steps are dumped."""

from __future__ import annotations

import argparse
import contextlib
import os

import simulated
import torch
import torch.distributed as dist
from network import make_batch, make_network


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--capture", metavar="DIRECTORY")
    parser.add_argument("--steps", type=int, default=4)
    given = parser.parse_args()
    with simulated.device() as device:
        train(device, given.steps, given.capture)


def train(device: str, steps: int, capture: str | None) -> None:
    import torchair

    rank, several = int(os.environ.get("RANK", "0")), "RANK" in os.environ
    if several:
        # Before the first graph is built: torchair names the directory of the rank then.
        dist.init_process_group("hccl" if device == "npu" else "gloo")
    config = torchair.CompilerConfig()
    network = make_network(device)
    optimizer = torch.optim.SGD(network.parameters(), lr=0.1)
    compiled = torch.compile(network, backend=torchair.get_npu_backend(compiler_config=config))

    block = contextlib.nullcontext()
    if capture is not None:
        import ascend_dump

        block = ascend_dump.capture(config, path=capture, steps="0|2")
    with block:
        for step in range(steps):
            x, wanted = make_batch(step, rank, device)
            loss = (compiled(x) - wanted).square().mean()
            optimizer.zero_grad()
            loss.backward()
            if several:
                for parameter in network.parameters():
                    dist.all_reduce(parameter.grad)
            optimizer.step()
            print(f"rank {rank} step {step}: loss {loss.item():.6f}", flush=True)
    if several:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
