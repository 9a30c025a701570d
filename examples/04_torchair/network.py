"""A small network, and batches that are the same in every run."""

from __future__ import annotations

import torch


class Network(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = torch.nn.Linear(8, 32)
        self.outer = torch.nn.Linear(32, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.outer(torch.relu(self.inner(x)))


def make_network(device: str) -> Network:
    torch.manual_seed(0)
    return Network().to(device)


def make_batch(step: int, rank: int, device: str) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(1000 * rank + step)
    x = torch.randn(16, 8, generator=generator)
    return x.to(device), x[:, :4].to(device)
