"""A factor of the embeddings is lost: the norms hide it, and only the sums with the residual carry it on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import ascend_dump

torch: Any = pytest.importorskip("torch")
nn = torch.nn
SIZE, VOCABULARY = 16, 40


class Norm(nn.Module):  # type: ignore[misc]  # torch is imported as Any
    def forward(self, x: Any) -> Any:
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6)


class Layer(nn.Module):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.up, self.second = Norm(), nn.Linear(SIZE, SIZE), Norm()

    def forward(self, x: Any) -> Any:
        return x + self.second(self.up(self.norm(x)))


class Network(nn.Module):  # type: ignore[misc]
    def __init__(self, scales: bool) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.scales = scales
        self.embed, self.norm, self.head = nn.Embedding(VOCABULARY, SIZE), Norm(), nn.Linear(SIZE, VOCABULARY)
        self.layers = nn.ModuleList(Layer() for _ in range(2))

    def forward(self, ids: Any) -> Any:
        x = self.embed(ids)
        x = x * 4.0 if self.scales else x
        for layer in self.layers:
            x = layer(x)
        return self.head(self.norm(x))


def dumped(path: Path, scales: bool) -> Path:
    network, ids = Network(scales), torch.arange(2, 14)[None]
    with torch.no_grad(), ascend_dump.capture(network, path=path, steps="0-9"):
        network(ids)
    return path


def test_a_lost_scale_of_the_embeddings(tmp_path: Path) -> None:
    comparison = ascend_dump.compare(dumped(tmp_path / "a", False), dumped(tmp_path / "b", True), align="tokens")
    assert [origin.op_name for origin in comparison.origins] == ["mul_0"]
