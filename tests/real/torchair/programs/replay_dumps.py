"""Dump a network with the text of its graph, so that its operators can be run again.

    python replay_dumps.py VERSION

Leaves `dump`.
"""

from __future__ import annotations

import sys

import frontend
import torch

import ascend_dump


class Layer(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = torch.nn.LayerNorm(8)
        self.one = torch.nn.Linear(8, 16)
        self.two = torch.nn.Linear(16, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = torch.relu(self.one(self.norm(x)))
        y = torch.cat([self.two(y), x], -1)
        return y[..., :8] + y[..., 8:] * 0.5


class Network(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = torch.nn.Sequential(Layer(), Layer())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.layers(x) - 1.0
        return torch.softmax(y, -1).sum(0)


def main(version: str) -> None:
    torch.manual_seed(0)
    network, x = Network(), torch.randn(4, 8)
    with frontend.installed(version), torch.no_grad():
        import torchair

        config = torchair.CompilerConfig()
        compiled = torch.compile(network, backend=torchair.get_npu_backend(compiler_config=config), dynamic=False)
        with ascend_dump.capture(config, path="dump", steps="0", options={"reset": True, "graph_dump": "py"}):
            compiled(x)


if __name__ == "__main__":
    main(sys.argv[1])
