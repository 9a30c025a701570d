"""The dump of a few training steps of a classifier, for comparisons."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Optional

import torch
from torch.nn import functional

import ascend_dump

__all__ = ["Change", "dump_training"]

#: What is changed in a network before its training.
Change = Callable[[Any], None]


def dump_training(
    path: Path,
    make_network: Callable[[], torch.nn.Module],
    make_batch: Callable[[], tuple[torch.Tensor, torch.Tensor]],
    change: Optional[Change] = None,
    *,
    steps: int = 2,
    **settings: Any,
) -> Path:
    """make_batch: the inputs of the network and the classes to learn, the same in all steps."""
    torch.manual_seed(0)
    network = make_network()
    x, y = make_batch()
    with torch.no_grad():
        if change is not None:
            change(network)
    optimizer = torch.optim.SGD(network.parameters(), lr=0.1)
    settings = {"steps": f"0-{steps - 1}", **settings}
    with ascend_dump.capture(network, path=path, **settings):
        for _ in range(steps):
            optimizer.zero_grad()
            functional.cross_entropy(network(x), y).backward()
            optimizer.step()
    return path
