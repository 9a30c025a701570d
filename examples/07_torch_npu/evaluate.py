"""Evaluate the trained network on the NPU and on the host, and compare what both computed, operator by operator."""

from __future__ import annotations

import sys

import numpy as np
import simulated
import torch
from network import Network, make_batch


def main(weights: str, path: str) -> None:
    import ascend_dump

    network = Network()
    network.load_state_dict(torch.load(weights, weights_only=True))
    x, wanted = make_batch(100)
    with torch.no_grad():
        with ascend_dump.capture(network, framework="torch", path=f"{path}/host", mode="output") as host:
            network(x)
        network.npu()
        with ascend_dump.capture(network, path=f"{path}/npu", mode="output") as npu:
            result = network(x.npu())
    print(f"mean error {(result.cpu() - wanted).abs().mean().item():.4f}")
    kernels = [record for record in npu.dump().select(op_type="aclnnAddmm") if record.kernel is not None]
    pairs = zip(host.dump().select(op="*addmm*"), kernels)
    for on_host, on_npu in pairs:
        difference = np.abs(on_host.numpy() - on_npu.numpy()).max()
        print(f"{on_host.op_name:14} {on_npu.op_name:34} differ by at most {difference:.0e}")


if __name__ == "__main__":
    with simulated.simulated_device():
        import torch_npu  # noqa: F401  (before the capture: it is what the program runs on)

        main(*sys.argv[1:])
