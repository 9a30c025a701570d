"""The networks that the programs compile, with their inputs and what is computed of their outputs."""

from __future__ import annotations

import math
from typing import Any, Callable, NamedTuple

import torch
from torch import nn
from torch.nn import functional

VOCABULARY, LENGTH = 64, 6


class Mlp(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.third = nn.Linear(8, 16), nn.Linear(16, 16), nn.Linear(16, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.third(self.second(self.first(x).relu()).relu())


class ResNetBlock(nn.Module):
    """Stem with pooling, a block with a projection, head: the parts of ResNet-18."""

    def __init__(self, channels: int = 8) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, channels, 7, stride=2, padding=3)
        self.pool = nn.MaxPool2d(3, 2, 1)
        self.first = nn.Conv2d(channels, 2 * channels, 3, stride=2, padding=1, bias=False)
        self.second = nn.Conv2d(2 * channels, 2 * channels, 3, padding=1, bias=False)
        self.project = nn.Conv2d(channels, 2 * channels, 1, stride=2, bias=False)
        self.norms = nn.ModuleList(nn.BatchNorm2d(2 * channels) for _ in range(3))
        self.mean = nn.AdaptiveAvgPool2d(1)
        self.head = nn.Linear(2 * channels, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.pool(self.stem(x).relu())
        y = self.norms[0](self.first(x)).relu()
        y = self.norms[1](self.second(y)) + self.norms[2](self.project(x))
        return self.head(self.mean(y.relu()).flatten(1))


class RmsNorm(nn.Module):
    def __init__(self, size: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        wide = x.float()
        return self.weight * (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-6)).to(x.dtype)


class LlamaBlock(nn.Module):
    """Embedding, attention with rotary positions and grouped heads, SwiGLU, language head."""

    def __init__(self, size: int = 32, heads: int = 4, groups: int = 2, wide: int = 48) -> None:
        super().__init__()
        self.heads, self.groups, self.width = heads, groups, size // heads
        self.embedding = nn.Embedding(VOCABULARY, size)
        self.before, self.between, self.after = RmsNorm(size), RmsNorm(size), RmsNorm(size)
        self.query, self.out = nn.Linear(size, size, bias=False), nn.Linear(size, size, bias=False)
        self.key = nn.Linear(size, groups * self.width, bias=False)
        self.value = nn.Linear(size, groups * self.width, bias=False)
        self.gate, self.up = nn.Linear(size, wide, bias=False), nn.Linear(size, wide, bias=False)
        self.down = nn.Linear(wide, size, bias=False)
        self.head = nn.Linear(size, VOCABULARY, bias=False)
        self.register_buffer("frequencies", 10000.0 ** (-torch.arange(0, self.width, 2).float() / self.width))
        self.register_buffer("mask", torch.full((LENGTH, LENGTH), -math.inf).triu(1))

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.embedding(ids)
        x = x + self.attend(self.before(x))
        y = self.between(x)
        x = x + self.down(functional.silu(self.gate(y)) * self.up(y))
        return self.head(self.after(x))

    def attend(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, _ = x.shape
        angles = torch.outer(torch.arange(length, dtype=torch.float32), self.frequencies)
        angles = torch.cat((angles, angles), -1)
        cos, sin = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
        query = self.split(self.query(x), self.heads)
        key, value = self.split(self.key(x), self.groups), self.split(self.value(x), self.groups)
        query, key = (each * cos + rotate(each) * sin for each in (query, key))
        key, value = (self.repeat(each) for each in (key, value))
        scores = query @ key.transpose(-1, -2) / math.sqrt(self.width) + self.mask.to(x.dtype)
        found = torch.softmax(scores, -1, dtype=torch.float32).to(x.dtype) @ value
        return self.out(found.transpose(1, 2).reshape(batch, length, -1))

    def split(self, x: torch.Tensor, heads: int) -> torch.Tensor:
        return x.view(*x.shape[:2], heads, self.width).transpose(1, 2)

    def repeat(self, x: torch.Tensor) -> torch.Tensor:
        batch, groups, length, width = x.shape
        spread = x[:, :, None].expand(batch, groups, self.heads // groups, length, width)
        return spread.reshape(batch, self.heads, length, width)


def rotate(x: torch.Tensor) -> torch.Tensor:
    one, other = x.chunk(2, -1)
    return torch.cat((-other, one), -1)


class Network(NamedTuple):
    """make: a new one, the same each time. feed: the input of a step."""

    make: Callable[[], nn.Module]
    feed: Callable[[int], torch.Tensor]


def seeded(make: Callable[[], Any], seed: int) -> Any:
    torch.manual_seed(seed)
    return make()


NETWORKS = {
    "mlp": Network(Mlp, lambda step: seeded(lambda: torch.randn(5, 8), step)),
    "resnet": Network(ResNetBlock, lambda step: seeded(lambda: torch.randn(2, 3, 32, 32), step)),
    "llama": Network(LlamaBlock, lambda step: seeded(lambda: torch.randint(0, VOCABULARY, (2, LENGTH)), step)),
    "llama_bf16": Network(
        lambda: LlamaBlock().bfloat16(), lambda step: seeded(lambda: torch.randint(0, VOCABULARY, (2, LENGTH)), step)
    ),
}


def make(name: str) -> nn.Module:
    return seeded(NETWORKS[name].make, 0)


def loss_of(y: torch.Tensor) -> torch.Tensor:
    weights = torch.linspace(-1, 1, y.numel()).reshape(y.shape)
    return (y.float() * weights).square().sum()
