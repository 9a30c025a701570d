"""Trainings in which nothing is wrong: small networks of many kinds, each a function that runs one step."""

from __future__ import annotations

from typing import Any, Callable

import torch
from torch import nn
from torch.nn import functional

__all__ = ["NETWORKS", "trained"]

Step = Callable[[], Any]
_BATCH = 8


def trained(
    net: nn.Module, loss: Callable[[], torch.Tensor], kind: type[Any] = torch.optim.AdamW, rate: float = 1e-3
) -> Step:
    """One step of an optimizer on this loss."""
    optimizer = kind([one for one in net.parameters() if one.requires_grad], lr=rate)

    def step() -> None:
        optimizer.zero_grad()
        loss().backward()
        optimizer.step()

    return step


class _Residual(nn.Module):
    def __init__(self, channels: int, out: int, stride: int = 1) -> None:
        super().__init__()
        self.first = nn.Conv2d(channels, out, 3, stride, 1, bias=False)
        self.norm1, self.norm2 = nn.BatchNorm2d(out), nn.BatchNorm2d(out)
        self.second = nn.Conv2d(out, out, 3, 1, 1, bias=False)
        self.short = nn.Identity() if channels == out else nn.Conv2d(channels, out, 1, stride, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.norm2(self.second(torch.relu(self.norm1(self.first(x)))))
        return torch.relu(y + self.short(x))


def resnet() -> Step:
    net = nn.Sequential(
        nn.Conv2d(3, 16, 3, 1, 1, bias=False), nn.BatchNorm2d(16), nn.ReLU(),
        _Residual(16, 16), _Residual(16, 32, 2), _Residual(32, 32),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, 10),
    )  # fmt: skip
    return trained(
        net,
        lambda: functional.cross_entropy(net(torch.randn(_BATCH, 3, 16, 16)), torch.randint(0, 10, (_BATCH,))),
        lambda parameters, lr: torch.optim.SGD(parameters, lr=lr, momentum=0.9, weight_decay=1e-4),
        0.05,
    )


class _Lstm(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(50, 32)
        self.lstm = nn.LSTM(32, 32, 2, batch_first=True, dropout=0.1)
        self.head = nn.Linear(32, 50)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.head(self.lstm(self.embed(tokens))[0])


def lstm() -> Step:
    net = _Lstm()

    def loss() -> torch.Tensor:
        tokens = torch.randint(0, 50, (_BATCH, 12))
        return functional.cross_entropy(net(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())

    return trained(net, loss)


class _Dlrm(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.tables = nn.ModuleList(nn.EmbeddingBag(100, 16, mode="sum") for _ in range(4))
        self.bottom = nn.Sequential(nn.Linear(13, 32), nn.ReLU(), nn.Linear(32, 16), nn.ReLU())
        self.top = nn.Sequential(nn.Linear(16 + 10, 32), nn.ReLU(), nn.Linear(32, 1))

    def forward(self, dense: torch.Tensor, sparse: torch.Tensor) -> torch.Tensor:
        bottom = self.bottom(dense)
        vectors = torch.stack([bottom, *(table(sparse[:, i]) for i, table in enumerate(self.tables))], 1)
        rows, columns = torch.triu_indices(5, 5, 1)
        crossed = (vectors @ vectors.transpose(1, 2))[:, rows, columns]
        return self.top(torch.cat([bottom, crossed], 1)).squeeze(1)


def dlrm() -> Step:
    net = _Dlrm()

    def loss() -> torch.Tensor:
        answer = net(torch.rand(32, 13), torch.randint(0, 100, (32, 4, 3)))
        return functional.binary_cross_entropy_with_logits(answer, torch.randint(0, 2, (32,)).float())

    return trained(net, loss, torch.optim.Adagrad, 0.01)


class _UNet(nn.Module):
    """With the step of a diffusion as an input, and a last convolution that begins with zeros."""

    def __init__(self, zero_end: bool = False) -> None:
        super().__init__()
        self.time = nn.Sequential(nn.Linear(16, 32), nn.SiLU(), nn.Linear(32, 32))
        self.down1, self.down2 = nn.Conv2d(3, 16, 3, 1, 1), nn.Conv2d(16, 32, 3, 2, 1)
        self.norm, self.middle = nn.GroupNorm(4, 32), nn.Conv2d(32, 32, 3, 1, 1)
        self.up = nn.ConvTranspose2d(32, 16, 2, 2)
        self.end = nn.Conv2d(32, 3, 3, 1, 1)
        if zero_end:
            nn.init.zeros_(self.end.weight)

    def forward(self, x: torch.Tensor, moment: torch.Tensor) -> torch.Tensor:
        angles = moment[:, None] * torch.exp(-torch.arange(8) / 2.0)
        time = self.time(torch.cat([angles.sin(), angles.cos()], 1))
        first = functional.silu(self.down1(x))
        low = functional.silu(self.norm(self.down2(first)) + time[:, :, None, None])
        low = low + self.middle(low)
        return self.end(torch.cat([first, self.up(low)], 1))


def unet() -> Step:
    net = _UNet()
    return trained(
        net,
        lambda: functional.cross_entropy(
            net(torch.randn(4, 3, 16, 16), torch.zeros(4)), torch.randint(0, 3, (4, 16, 16))
        ),
    )


def diffusion() -> Step:
    net = _UNet(zero_end=True)

    def loss() -> torch.Tensor:
        image, noise, moment = torch.rand(4, 3, 16, 16), torch.randn(4, 3, 16, 16), torch.rand(4)
        share = torch.cos(moment * torch.pi / 2)[:, None, None, None]
        return functional.mse_loss(net(share * image + (1 - share**2).sqrt() * noise, moment), noise)

    return trained(net, loss)


class _Moe(nn.Module):
    """Four experts, of which each token goes to two."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.gate, self.head = nn.Embedding(50, 32), nn.Linear(32, 4), nn.Linear(32, 50)
        self.experts = nn.ModuleList(nn.Sequential(nn.Linear(32, 64), nn.GELU(), nn.Linear(64, 32)) for _ in range(4))

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embed(tokens).flatten(0, 1)
        weight, chosen = torch.softmax(self.gate(x), -1).topk(2, -1)
        out = torch.zeros_like(x)
        for number, expert in enumerate(self.experts):
            row, rank = (chosen == number).nonzero(as_tuple=True)
            out = out.index_add(0, row, (expert(x[row]) * weight[row, rank, None]).to(out.dtype))
        return self.head(x + out).unflatten(0, tokens.shape)


def moe() -> Step:
    net = _Moe()

    def loss() -> torch.Tensor:
        tokens = torch.randint(0, 50, (_BATCH, 12))
        return functional.cross_entropy(net(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())

    return trained(net, loss)


def gan() -> Step:
    """A step of the discriminator and one of the generator together."""
    maker = nn.Sequential(nn.Linear(16, 64), nn.LeakyReLU(0.2), nn.Linear(64, 32), nn.Tanh())
    judge = nn.Sequential(nn.Linear(32, 64), nn.LeakyReLU(0.2), nn.Dropout(0.1), nn.Linear(64, 1))
    of_maker = torch.optim.Adam(maker.parameters(), lr=2e-4, betas=(0.5, 0.99))
    of_judge = torch.optim.Adam(judge.parameters(), lr=2e-4, betas=(0.5, 0.99))
    truth = functional.binary_cross_entropy_with_logits

    def step() -> None:
        real, made = torch.rand(32, 32) * 2 - 1, maker(torch.randn(32, 16))
        of_judge.zero_grad()
        (truth(judge(real), torch.ones(32, 1)) + truth(judge(made.detach()), torch.zeros(32, 1))).backward()
        of_judge.step()
        of_maker.zero_grad()
        truth(judge(made), torch.ones(32, 1)).backward()
        of_maker.step()

    return step


class _Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = nn.MultiheadAttention(width, 4, batch_first=True)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        y = self.norm1(x)
        x = x + self.attention(y, y, y, attn_mask=mask, need_weights=False)[0]
        return x + self.mlp(self.norm2(x))


class _Gpt(nn.Module):
    def __init__(self, masked_by: float) -> None:
        super().__init__()
        self.embed, self.layers = nn.Embedding(50, 32), nn.ModuleList(_Block(32) for _ in range(3))
        self.norm, self.head = nn.LayerNorm(32), nn.Linear(32, 50, bias=False)
        self.head.weight = self.embed.weight
        self.masked_by = masked_by

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embed(tokens)
        mask = torch.triu(torch.full((x.shape[1], x.shape[1]), self.masked_by, dtype=x.dtype), 1)
        for layer in self.layers:
            x = layer(x, mask)
        return self.head(self.norm(x))


def gpt(masked_by: float = float("-inf")) -> Step:
    net = _Gpt(masked_by)

    def loss() -> torch.Tensor:
        tokens = torch.randint(0, 50, (_BATCH, 12))
        return functional.cross_entropy(net(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())

    return trained(net, loss)


def gpt_masked_by_the_lowest_value() -> Step:
    return gpt(torch.finfo(torch.float32).min)


def fine_tuning() -> Step:
    """A frozen body with a low-rank addition that begins with zeros, trained after a warm-up of the rate from 0."""
    body = nn.Sequential(nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 32)).requires_grad_(False)
    low, high = nn.Linear(32, 4, bias=False), nn.Linear(4, 32, bias=False)
    nn.init.zeros_(high.weight)
    optimizer = torch.optim.SGD([*low.parameters(), *high.parameters()], lr=0.0)

    def step() -> None:
        x = torch.randn(32, 32)
        optimizer.zero_grad()
        functional.mse_loss(body(x) + high(low(x)), x.sin()).backward()
        optimizer.step()
        optimizer.param_groups[0]["lr"] += 0.05

    return step


NETWORKS: dict[str, Callable[[], Step]] = {
    one.__name__: one
    for one in (resnet, lstm, dlrm, unet, diffusion, moe, gan, gpt, gpt_masked_by_the_lowest_value, fine_tuning)
}
