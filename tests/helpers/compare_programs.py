"""Small networks of every usual kind that train for a few steps, as programs whose dumps are compared."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any, NamedTuple, Optional

import torch
from torch import nn
from torch.nn import functional

import ascend_dump

__all__ = ["PROGRAMS", "Program", "dump", "run"]

STEPS = 2


class Program(NamedTuple):
    """A network, a batch of a size for it (the last tensor is the target), the loss, and the optimizer."""

    name: str
    build: Callable[[], nn.Module]
    batch: Callable[[int], list[torch.Tensor]]
    loss: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
    optimizer: Callable[[Any], torch.optim.Optimizer]


class Perceptron(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(24, 32)
        self.norm = nn.LayerNorm(32)
        self.act = nn.GELU()
        self.drop = nn.Dropout(0.2)
        self.second = nn.Linear(32, 32)
        self.act2 = nn.Tanh()
        self.head = nn.Linear(32, 5)

    def forward(self, x: Any) -> Any:
        x = self.drop(self.act(self.norm(self.first(x))))
        return self.head(self.act2(self.second(x)))


class Convolutions(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 8, 3, padding=1)
        self.bn1 = nn.BatchNorm2d(8)
        self.act1 = nn.ReLU()
        self.pool = nn.MaxPool2d(2)
        self.conv2 = nn.Conv2d(8, 12, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(12)
        self.act2 = nn.LeakyReLU(0.1)
        self.head = nn.Linear(12, 5)

    def forward(self, x: Any) -> Any:
        x = self.pool(self.act1(self.bn1(self.conv1(x))))
        x = self.act2(self.bn2(self.conv2(x)))
        return self.head(x.mean((2, 3)))


class Attention(nn.Module):
    def __init__(self, width: int, heads: int, fused: bool) -> None:
        super().__init__()
        self.heads, self.fused = heads, fused
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)

    def forward(self, x: Any) -> Any:
        n, t, width = x.shape
        q, k, v = self.qkv(x).view(n, t, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        if self.fused:
            y = functional.scaled_dot_product_attention(q, k, v)
        else:
            scores = (q @ k.transpose(-2, -1)) * (width // self.heads) ** -0.5
            hidden = torch.ones(t, t, dtype=torch.bool).tril().logical_not()
            y = torch.softmax(scores.masked_fill(hidden, float("-inf")), -1) @ v
        return self.out(y.transpose(1, 2).reshape(n, t, width))


class Layer(nn.Module):
    def __init__(self, width: int, fused: bool = False) -> None:
        super().__init__()
        norm = nn.RMSNorm if fused else nn.LayerNorm
        self.norm1, self.norm2 = norm(width), norm(width)
        self.attention = Attention(width, 2, fused)
        self.up, self.down = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)
        self.act = nn.SiLU() if fused else nn.GELU()
        self.drop = nn.Dropout(0.1)

    def forward(self, x: Any) -> Any:
        x = x + self.attention(self.norm1(x))
        return x + self.drop(self.down(self.act(self.up(self.norm2(x)))))


class Transformer(nn.Module):
    def __init__(self, fused: bool = False) -> None:
        super().__init__()
        self.tokens = nn.Embedding(50, 16)
        self.layers = nn.Sequential(Layer(16, fused), Layer(16, fused))
        self.norm = nn.LayerNorm(16)
        self.head = nn.Linear(16, 50)

    def forward(self, x: Any) -> Any:
        return self.head(self.norm(self.layers(self.tokens(x)))).flatten(0, 1)


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.Embedding(30, 12)
        self.cell = nn.LSTMCell(12, 16)
        self.drop = nn.Dropout(0.1)
        self.head = nn.Linear(16, 5)

    def forward(self, x: Any) -> Any:
        state = None
        for token in self.tokens(x).unbind(1):
            state = self.cell(token, state)
        return self.head(self.drop(state[0]))


class Recommender(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.user, self.item = nn.Embedding(40, 8), nn.Embedding(60, 8)
        self.history = nn.EmbeddingBag(60, 8, mode="mean")
        self.deep = nn.Linear(24, 16)
        self.act = nn.ReLU()
        self.head = nn.Linear(16, 1)

    def forward(self, user: Any, item: Any, history: Any) -> Any:
        u, i = self.user(user), self.item(item)
        deep = self.act(self.deep(torch.cat([u, i, self.history(history)], 1)))
        return self.head(deep).squeeze(1) + (u * i).sum(1)


class Contracting(nn.Module):
    """Reduces the image, enlarges it again, and adds the input by a skip connection, as U-shaped networks do."""

    def __init__(self) -> None:
        super().__init__()
        self.enter = nn.Conv2d(2, 8, 3, padding=1)
        self.norm = nn.GroupNorm(4, 8)
        self.act = nn.SiLU()
        self.down = nn.Conv2d(8, 16, 3, stride=2, padding=1)
        self.act2 = nn.ELU()
        self.up = nn.ConvTranspose2d(16, 8, 2, stride=2)
        self.leave = nn.Conv2d(16, 1, 1)

    def forward(self, x: Any) -> Any:
        around = self.act(self.norm(self.enter(x)))
        return torch.sigmoid(self.leave(torch.cat([around, self.up(self.act2(self.down(around)))], 1)))


def _tokens(vocabulary: int, *shape: int) -> torch.Tensor:
    return torch.randint(0, vocabulary, shape)


PROGRAMS = {
    one.name: one
    for one in [
        Program(
            "mlp",
            Perceptron,
            lambda n: [torch.randn(16 * n, 24), _tokens(5, 16 * n)],
            functional.cross_entropy,
            lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, foreach=False),
        ),
        Program(
            "convolutions",
            Convolutions,
            lambda n: [torch.randn(6 * n, 3, 8, 8), _tokens(5, 6 * n)],
            functional.cross_entropy,
            lambda p: torch.optim.SGD(p, lr=0.1, weight_decay=1e-2, foreach=False),
        ),
        Program(
            "transformer",
            Transformer,
            lambda n: [_tokens(50, 3 * n, 8), _tokens(50, 24 * n)],
            functional.cross_entropy,
            lambda p: torch.optim.AdamW(p, lr=1e-2, foreach=False),
        ),
        Program(
            "lstm",
            Recurrent,
            lambda n: [_tokens(30, 6 * n, 4), _tokens(5, 6 * n)],
            functional.cross_entropy,
            lambda p: torch.optim.RMSprop(p, lr=1e-2, foreach=False),
        ),
        Program(
            "recommender",
            Recommender,
            lambda n: [_tokens(40, 12 * n), _tokens(60, 12 * n), _tokens(60, 12 * n, 5), _tokens(2, 12 * n).float()],
            functional.binary_cross_entropy_with_logits,
            lambda p: torch.optim.Adagrad(p, lr=0.1, foreach=False),
        ),
        Program(
            "unet",
            Contracting,
            lambda n: [torch.randn(2 * n, 2, 8, 8), torch.rand(2 * n, 1, 8, 8)],
            functional.mse_loss,
            lambda p: torch.optim.Adam(p, lr=1e-2),
        ),
        Program(
            "bfloat16",
            lambda: Transformer(fused=True).bfloat16(),
            lambda n: [_tokens(50, 3 * n, 8), _tokens(50, 24 * n)],
            functional.cross_entropy,
            lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9),
        ),
    ]
}


def run(
    program: Program,
    capture: Callable[[nn.Module], AbstractContextManager[Any]],
    *,
    change: Optional[Callable[[nn.Module], Any]] = None,
    data: Optional[Callable[[list[torch.Tensor]], None]] = None,
    under: Any = None,
    steps: int = STEPS,
    times: int = 1,
    dtype: Optional[torch.dtype] = None,
) -> nn.Module:
    """Train it.

    change  alters the network before the first step, or gives another one
    data    alters the batch
    under   a dispatch mode that lies under that of the capture
    times   how many times larger than usual the batch is
    dtype   another type for the network and its data
    """
    torch.manual_seed(0)
    model = program.build()
    # A network after some training: no bias is zero, no scale of a norm is one.
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.1 * torch.randn(parameter.shape, generator=generator).to(parameter.dtype)
        *inputs, target = batch = program.batch(times)
        if data is not None:
            data(batch)
            *inputs, target = batch
        if change is not None:
            changed = change(model)
            model = model if changed is None else changed
    if dtype is not None:
        model = model.to(dtype)
        inputs = [one.to(dtype) if one.is_floating_point() else one for one in inputs]
        target = target.to(dtype) if target.is_floating_point() else target
    optimizer = program.optimizer(model.parameters())
    torch.manual_seed(2)
    with capture(model), under.under(model) if under is not None else nullcontext():
        for _ in range(steps):
            optimizer.zero_grad()
            program.loss(model(*inputs), target).backward()
            optimizer.step()
    return model


def dump(program: Program, path: Path, **changes: Any) -> Path:
    """Train it and dump every operator of every step."""
    steps = changes.get("steps", STEPS)
    run(program, lambda model: ascend_dump.capture(model, path=path, steps=f"0-{steps - 1}"), **changes)
    return path
