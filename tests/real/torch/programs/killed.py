"""A training that is killed again and again, each time at another moment.

killed.py DIRECTORY KILLS    leaves DIRECTORY/whole and DIRECTORY/killed-N, prints how each ended
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import time
from pathlib import Path

import torch
from torch import nn

import ascend_dump

STEPS = 12


def train(directory: Path, steps: int = STEPS) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 256), nn.BatchNorm1d(256), nn.ReLU(inplace=True), nn.Linear(256, 64))
    optimizer = torch.optim.Adam(model.parameters())
    with ascend_dump.capture(model, path=directory, steps="all", strict=True):
        for _ in range(steps):
            loss = nn.functional.mse_loss(model(torch.randn(64, 64)), torch.zeros(64, 64))
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()


def start(directory: Path) -> int:
    """Train in a forked child, which spares the imports; its process id."""
    child = os.fork()
    if child == 0:
        status = 1
        try:
            train(directory)
            status = 0
        finally:
            os._exit(status)
    return child


def main() -> None:
    directory, kills = Path(sys.argv[1]), int(sys.argv[2])
    torch.set_num_threads(1)
    train(directory / "first", steps=1)  # imports what is needed
    began = time.monotonic()
    train(directory / "whole")
    took = time.monotonic() - began
    ends = []
    for number in range(kills):
        child = start(directory / f"killed-{number}")
        time.sleep(took * (number + random.random()) / kills)
        os.kill(child, signal.SIGKILL)
        ends.append(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    print(json.dumps(ends))


if __name__ == "__main__":
    main()
