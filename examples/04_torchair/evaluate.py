"""Evaluate an eager module; for the block it is compiled in place, dumped and compared with the eager one."""

from __future__ import annotations

import sys

import simulated
import torch
from network import make_batch, make_network


def main(path: str) -> None:
    import ascend_dump

    network = make_network(device)
    x, _ = make_batch(0, 0, device)
    with torch.no_grad():
        eager = network(x)
        with ascend_dump.capture(
            network, framework="torchair", path=path, steps="0", options={"graph_dump": "py"}
        ) as cap:
            compiled = network(x)
        again = network(x)
    print(f"compiled and eager differ by at most {(compiled - eager).abs().max().item():.0e}")
    print(f"behind the block the module is eager again: {torch.equal(again, eager)}")
    for record in cap.dump().select(io="output"):
        if record.op_type not in ("Data", "Const"):
            print(f"{record.op_name:12} {record.op_type:10} {record.shape}")


if __name__ == "__main__":
    with simulated.device() as device:
        import torchair  # noqa: F401  (before the capture: it is what the program runs on)

        main(sys.argv[1])
