"""Dump `same_networks` through torchair's frontend, without a fault and with each of those of `same_networks_torch`.

    python same_networks_dumps.py VERSION

Leaves `right/NETWORK` and `wrong/NUMBER`, by the number of the fault. They ask for the approximation of GELU, which
torchair makes of every GELU; `exact` is the transformer that asks for the exact one.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Optional

sys.path.insert(0, str(Path(__file__).parents[3] / "helpers"))

import frontend
import torch
from same_networks import NETWORKS, inputs
from same_networks_torch import FAULTS, Fault, Network

import ascend_dump


def dump(network: str, path: str, fault: Optional[Fault] = None, approximate: str = "tanh") -> None:
    import torchair

    config = torchair.CompilerConfig()
    run = torch.compile(Network(network, fault, approximate), backend=torchair.get_npu_backend(compiler_config=config))
    with ascend_dump.capture(config, path=path, steps="0", options={"reset": True}), torch.no_grad():
        run(torch.from_numpy(inputs(network)))


def main(version: str) -> None:
    with frontend.installed(version):
        for network in NETWORKS:
            dump(network, f"right/{network}")
        for number, one in enumerate(FAULTS):
            dump(one.network, f"wrong/{number}", one.fault)
        dump("transformer", "exact", approximate="none")


if __name__ == "__main__":
    main(sys.argv[1])
