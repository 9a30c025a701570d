"""Training in two child processes of multiprocessing.

children.py fork|spawn DIRECTORY
"""

from __future__ import annotations

import json
import multiprocessing
import sys
from pathlib import Path

import torch
from torch import nn


def train(seed: int, directory: str) -> None:
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 64))
    optimizer = torch.optim.Adam(model.parameters())
    losses = []
    for _ in range(3):
        loss = nn.functional.mse_loss(model(torch.randn(64, 64)), torch.zeros(64, 64))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item().hex())
    Path(directory, f"{seed}.json").write_text(json.dumps(losses))


def main() -> None:
    context = multiprocessing.get_context(sys.argv[1])
    children = [context.Process(target=train, args=(seed, sys.argv[2])) for seed in (1, 2)]
    for child in children:
        child.start()
    for child in children:
        child.join()
        assert child.exitcode == 0


if __name__ == "__main__":
    main()
