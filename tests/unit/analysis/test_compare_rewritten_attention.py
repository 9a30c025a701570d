"""Attention that one program writes in another way, compared by tensors and by statistics alone."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("rapidfuzz")

import torch
from torch import Tensor, nn
from torch.nn import functional

import ascend_dump

WIDTH, HEADS, LENGTH, LABELS = 16, 2, 8, 10


class Attention(nn.Module):
    """Attention to earlier positions. The usual way scales the scores.

    way: "usual", "query" (scales the query instead), "fill" (fills with a finite number), "sum" (adds the mask), or
        "kernel" (of PyTorch)
    factor: a fault if it is not 1: all scores are multiplied by it
    """

    way, factor = "usual", 1.0

    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.bias = nn.Parameter(torch.randn(HEADS, LENGTH, LENGTH))

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x).unflatten(-1, (3, HEADS, -1)).permute(2, 0, 3, 1, 4)
        scale = self.factor / math.sqrt(WIDTH // HEADS)
        later = torch.ones(LENGTH, LENGTH, dtype=torch.bool).triu(1)
        if self.way == "kernel":
            added = self.bias.masked_fill(later, -math.inf)
            mixed = functional.scaled_dot_product_attention(q, k, v, attn_mask=added, scale=scale)
            return x + self.out(mixed.transpose(1, 2).flatten(2))
        scores = (q * scale) @ k.mT if self.way == "query" else (q @ k.mT) * scale
        scores = scores + self.bias
        if self.way == "sum":
            scores = scores + torch.zeros(LENGTH, LENGTH).masked_fill(later, -1e9)
        else:
            scores = scores.masked_fill(later, torch.finfo(x.dtype).min if self.way == "fill" else -math.inf)
        return x + self.out((scores.softmax(-1) @ v).transpose(1, 2).flatten(2))


class Decoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embed = nn.Embedding(LABELS, WIDTH)
        self.layers = nn.ModuleList(Attention() for _ in range(2))
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, LABELS)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.embed(ids)
        for layer in self.layers:
            x = layer(x)
        return self.head(self.norm(x))


def dump(path: Path, change: Callable[[Any], object], data: str) -> Path:
    model = Decoder()
    change(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    generator = torch.Generator().manual_seed(1)
    with ascend_dump.capture(model, path=path, steps="0|1", data=data):
        for _ in range(2):
            ids = torch.randint(LABELS, (3, LENGTH), generator=generator)
            optimizer.zero_grad()
            functional.cross_entropy(model(ids).flatten(0, 1), ids.flatten()).backward()
            optimizer.step()
    return path


def setting(**values: object) -> Callable[[Any], object]:
    def change(model: Any) -> None:
        for layer in model.layers:
            for name, value in values.items():
                setattr(layer, name, value)

    return change


def compared(path: Path, data: str, way: str, *, usual: str = "usual", factor: float = 1.0) -> Any:
    actual = dump(path / "actual", setting(way=way, factor=factor), data)
    return ascend_dump.compare(actual, dump(path / "reference", setting(way=usual), data))


@pytest.mark.parametrize("data", ["tensor", "stats"])
@pytest.mark.parametrize("way", ["query", "fill", "sum", "kernel"])
def test_attention_in_another_way_is_no_origin(tmp_path: Path, way: str, data: str) -> None:
    comparison = compared(tmp_path, data, way)
    assert comparison.verdict in ("equal", "noise", "undecided")
    assert not comparison.origins, comparison.origins


@pytest.mark.parametrize("data", ["tensor", "stats"])
@pytest.mark.parametrize("way", ["query", "fill", "sum", "kernel"])
def test_another_scale_is_the_origin_in_whatever_way_attention_is_written(tmp_path: Path, way: str, data: str) -> None:
    comparison = compared(tmp_path, data, way, factor=1.5)
    assert comparison.verdict == "different"
    assert comparison.origins[0].module == "layers.0", comparison.origins


@pytest.mark.parametrize("data", ["tensor", "stats"])
def test_a_factor_in_another_overload_of_a_product_is_no_origin(tmp_path: Path, data: str) -> None:
    # The kernel multiplies the query and the key, each by the root of the scale.
    assert not compared(tmp_path, data, "kernel", usual="query").origins


@pytest.mark.parametrize("data", ["tensor", "stats"])
def test_another_factor_in_another_overload_of_a_product_is_the_origin(tmp_path: Path, data: str) -> None:
    comparison = compared(tmp_path, data, "kernel", usual="query", factor=1.5)
    assert comparison.origins[0].module == "layers.0", comparison.origins
