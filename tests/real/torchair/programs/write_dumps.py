"""Let torchair write its graph as Python text, then dump the same network eagerly.

    python write_dumps.py VERSION

Leaves `graphs/`, `eager/` and `report.json`: the operators as handed to the device, and of each PyTorch node its line
in the program and its arguments; and the results.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

import frontend
import torch

LINE = re.compile(r'"(.+?)", line (\d+), in ')


class Layer(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = torch.nn.LayerNorm(8)
        self.one = torch.nn.Linear(8, 16)
        self.two = torch.nn.Linear(16, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.norm(x)
        y = torch.relu(self.one(y))
        y = torch.cat([self.two(y), x], -1)
        return y[..., :8] + y[..., 8:] * 0.5


class Network(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = Layer()
        self.second = Layer()
        self.third = Layer()
        self.register_buffer("turned", torch.zeros(2))
        self.register_buffer("square", torch.eye(8))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.turned.cos_()  # written to an input of the graph
        # An operator that begins a line here, and is a later one in the lines of linear layers.
        x = torch.addmm(x, x, self.square)
        y = self.first(x)
        y = self.second(y) - 1.0
        # Random, for the operator that hands out the offsets of the generator; the result is that without it.
        y = self.third(y) + torch.rand(8) * 0.0
        return torch.softmax(y, -1).sum(0)


def main() -> None:
    torch.manual_seed(0)
    network, x = Network(), torch.randn(4, 8)
    with frontend.installed(sys.argv[1]), torch.no_grad():
        import torchair
        from torchair._ge_concrete_graph import ge_ir_pb2

        handed: list[Any] = []
        base = sys.modules["torchair.core._torchair"].TorchNpuGraphBase
        original = base.load

        def load(graph: Any, serialized: bytes, *more: Any) -> Any:
            model = ge_ir_pb2.ModelDef()  # torchair's own messages
            model.ParseFromString(serialized)
            handed.extend((op.name, op.type) for op in model.graph[0].op)
            return original(graph, serialized, *more)

        base.load = load
        expected = network(x)

        config = torchair.CompilerConfig()
        config.debug.graph_dump.type = "py"
        Path("graphs").mkdir()
        if hasattr(config.debug.graph_dump, "path"):
            config.debug.graph_dump.path = "graphs"
        compiled = torch.compile(network, backend=torchair.get_npu_backend(compiler_config=config), dynamic=False)
        compiled(x)

        torch._dynamo.reset()
        nodes: dict[str, Any] = {}

        def collect(node: Any) -> Any:
            place = LINE.match((node.stack_trace or "").split(" File ")[-1].split("File ")[-1])
            nodes[node.name] = {
                "source": None if place is None else f"{place[1]}:{place[2]}",
                "target": str(node.target),
                "arguments": [str(one) if isinstance(one, torch.fx.Node) else None for one in node.args],
                "is_call": node.op == "call_function",
            }
            return node

        config = torchair.CompilerConfig()
        config.debug.data_dump.type = "npy"
        config.debug.data_dump.path = "eager"
        config.debug.data_dump.filter = collect
        Path("eager").mkdir()
        eager = torch.compile(network, backend=torchair.get_npu_backend(compiler_config=config), dynamic=False)
        results = [eager(x), eager(x + 1)]
        assert torch.equal(results[0], expected), "the eager dump computes something else"
    report = {"handed": handed, "nodes": nodes, "results": [result.tolist() for result in results]}
    Path("report.json").write_text(json.dumps(report))


if __name__ == "__main__":
    main()
