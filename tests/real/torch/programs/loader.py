"""Training fed by two loader processes.

loader.py fork|spawn RESULT [PATH]    with PATH: captures the training there
"""

from __future__ import annotations

import contextlib
import json
import sys
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

import ascend_dump


class Samples(Dataset):
    """Each sample is computed in a loader process, with a module of its own."""

    def __init__(self) -> None:
        torch.manual_seed(1)
        self.transform = nn.Linear(8, 8)

    def __len__(self) -> int:
        return 24

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        data = torch.Generator().manual_seed(index)
        with torch.no_grad():
            sample = self.transform(torch.randn(8, generator=data))
        return sample.tanh(), index % 4


def make_model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))


def train(loader: DataLoader, model: nn.Module) -> list[str]:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    losses = []
    for _ in range(2):  # epochs, the second with the same loader processes
        for samples, labels in loader:
            loss = nn.functional.cross_entropy(model(samples), labels)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.item().hex())
    return losses


def main() -> None:
    context, result, *path = sys.argv[1:]
    loader = DataLoader(
        Samples(), batch_size=8, num_workers=2, multiprocessing_context=context, persistent_workers=True
    )
    model = make_model()
    capture = contextlib.nullcontext() if not path else ascend_dump.capture(model, path=path[0], steps="1|4")
    with capture:
        losses = train(loader, model)
    Path(result).write_text(json.dumps(losses))


if __name__ == "__main__":
    main()
