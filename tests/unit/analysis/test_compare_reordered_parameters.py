"""Weights whose rows are in another order in one program, which makes no difference behind the scores of attention."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("rapidfuzz")

import torch
from torch import Tensor, nn
from torch.nn import functional

import ascend_dump

WIDTH, LENGTH, CLASSES = 12, 6, 5


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.query, self.key, self.value = (nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(3))
        self.head = nn.Linear(WIDTH, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        scores = self.query(x) @ self.key(x).transpose(-1, -2)
        return self.head(scores.softmax(-1) @ self.value(x))


def dump(path: Path, reordered: Sequence[str] = ()) -> Path:
    """Dump two steps of training. reordered: the layers whose weights have their rows in another order"""
    model: Any = Attention()
    order = torch.arange(WIDTH).view(2, -1).T.flatten()
    with torch.no_grad():
        for name in reordered:
            layer = model.get_submodule(name)
            layer.weight.copy_(layer.weight[order])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with ascend_dump.capture(model, path=path, steps="0|1", quiet=True):
        for _ in range(2):
            optimizer.zero_grad()
            target = torch.randint(CLASSES, (2 * LENGTH,))
            functional.cross_entropy(model(torch.randn(2, LENGTH, WIDTH)).flatten(0, 1), target).backward()
            optimizer.step()
    return path


def test_the_same_order_of_two_weights_whose_product_agrees_is_no_origin(tmp_path: Path) -> None:
    comparison = ascend_dump.compare(dump(tmp_path / "actual", ["query", "key"]), dump(tmp_path / "reference"))
    assert comparison.verdict == "noise", comparison.counts
    assert not comparison.origins, comparison.origins


@pytest.mark.parametrize("reordered", [["query"], ["query", "key", "value"]])
def test_an_order_that_changes_results_is_the_origin(tmp_path: Path, reordered: list[str]) -> None:
    comparison = ascend_dump.compare(dump(tmp_path / "actual", reordered), dump(tmp_path / "reference"))
    assert comparison.verdict == "different"
    assert comparison.origins[0].kind == "parameter"
