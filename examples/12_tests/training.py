"""A training loop for the host and for NPUs: what the tests beside it are for."""

from __future__ import annotations

import torch
from torch import nn


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(8, 32)
        self.outer = nn.Linear(32, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.outer(self.inner(x).relu())


def train(model: nn.Module, steps: int, device: str) -> float:
    """The last loss."""
    torch.manual_seed(0)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(steps):
        x, wanted = torch.randn(16, 8).to(device), torch.randn(16, 4).to(device)
        loss = (model(x) - wanted).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return loss.item()
