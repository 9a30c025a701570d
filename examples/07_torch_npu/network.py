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


def make_batch(step: int, rank: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    """Inputs (16, 8), and the first four columns as what is wanted."""
    x = torch.randn(16, 8, generator=torch.Generator().manual_seed(1000 * rank + step))
    return x, x[:, :4].clone()
