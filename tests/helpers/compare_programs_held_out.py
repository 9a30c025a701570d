"""Networks that were not used to choose the rules of the comparison, unlike `compare_programs`.

They have other operators, shapes, losses and optimizers."""

from __future__ import annotations

from typing import Any

import torch
from compare_programs import Program
from torch import nn
from torch.nn import functional

__all__ = ["HELD_OUT"]


class MixerLayer(nn.Module):
    def __init__(self, tokens: int, width: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width, bias=False)
        self.over_tokens = nn.Linear(tokens, tokens)
        self.over_channels = nn.Linear(width, width)
        self.act = nn.GELU(approximate="tanh")
        self.drop = nn.Dropout(0.15)

    def forward(self, x: Any) -> Any:
        x = x + self.act(self.over_tokens(self.norm1(x).transpose(1, 2))).transpose(1, 2)
        return x + self.drop(self.over_channels(self.norm2(x)).sigmoid())


class Mixer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, 20, 4, stride=4)
        self.layers = nn.Sequential(MixerLayer(9, 20), MixerLayer(9, 20))
        self.head = nn.Linear(20, 6)

    def forward(self, x: Any) -> Any:
        return self.head(self.layers(self.patches(x).flatten(2).transpose(1, 2)).amax(1))


class Inverted(nn.Module):
    """Widen, filter each channel by itself, weigh the channels, narrow."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.widen = nn.Conv2d(width, 3 * width, 1, bias=False)
        self.norm1 = nn.BatchNorm2d(3 * width)
        self.filter = nn.Conv2d(3 * width, 3 * width, 5, padding=2, groups=3 * width)
        self.norm2 = nn.InstanceNorm2d(3 * width, affine=True)
        self.less, self.more = nn.Linear(3 * width, 5), nn.Linear(5, 3 * width)
        self.narrow = nn.Conv2d(3 * width, width, 1)
        self.act = nn.Hardswish()

    def forward(self, x: Any) -> Any:
        y = self.norm2(self.filter(self.act(self.norm1(self.widen(x)))))
        weights = functional.hardsigmoid(self.more(functional.relu(self.less(y.mean((2, 3))))))
        return x + self.narrow(y * weights[..., None, None])


class Mobile(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.enter = nn.Conv2d(1, 6, 3, stride=2)
        self.layers = nn.Sequential(Inverted(6), Inverted(6))
        self.pool = nn.AdaptiveAvgPool2d(2)
        self.head = nn.Linear(24, 4)

    def forward(self, x: Any) -> Any:
        return self.head(self.pool(self.layers(self.enter(x))).flatten(1))


class Translator(nn.Module):
    """An encoder, a decoder that attends to it, and one table of embeddings for inputs and outputs."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.Embedding(37, 24)
        self.places = nn.Parameter(torch.randn(11, 24) * 0.1)
        self.encoder = nn.MultiheadAttention(24, 3, batch_first=True)
        self.decoder = nn.MultiheadAttention(24, 2, dropout=0.1, batch_first=True)
        self.norm = nn.ModuleList(nn.LayerNorm(24) for _ in range(4))
        self.gate, self.value, self.back = nn.Linear(24, 40), nn.Linear(24, 40), nn.Linear(40, 24)

    def forward(self, source: Any, target: Any) -> Any:
        x = self.tokens(source) + self.places[: source.shape[1]]
        x = self.norm[0](x + self.encoder(x, x, x, need_weights=False)[0])
        y = self.tokens(target) + self.places[: target.shape[1]]
        y = self.norm[1](y + self.decoder(y, x, x)[0])
        y = self.norm[2](y + self.back(functional.silu(self.gate(y)) * self.value(y)))
        return functional.linear(self.norm[3](y), self.tokens.weight).flatten(0, 1)


class Sequence(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.cell = nn.GRUCell(7, 18)
        self.score = nn.Linear(18, 1)
        self.norm = nn.BatchNorm1d(18)
        self.head = nn.Linear(18, 3)

    def forward(self, x: Any) -> Any:
        state, states = x.new_zeros(x.shape[0], 18), []
        for part in x.unbind(1):
            state = self.cell(part, state)
            states.append(state)
        every = torch.stack(states, 1)
        weights = torch.softmax(self.score(torch.tanh(every)), 1)
        return self.head(self.norm((every * weights).sum(1)))


class Autoencoder(nn.Module):
    """With noise in the middle."""

    def __init__(self) -> None:
        super().__init__()
        self.encode = nn.Linear(30, 22)
        self.mean, self.spread = nn.Linear(22, 6), nn.Linear(22, 6)
        self.decode, self.leave = nn.Linear(6, 22), nn.Linear(22, 30)
        self.act = nn.Softplus()

    def forward(self, x: Any) -> Any:
        hidden = self.act(self.encode(x))
        mean, log_variance = self.mean(hidden), self.spread(hidden).clamp(-3, 3)
        drawn = mean + torch.exp(0.5 * log_variance) * torch.randn_like(mean)
        divergence = -0.5 * (1 + log_variance - mean.square() - log_variance.exp()).sum(1, keepdim=True)
        return torch.cat([self.leave(self.act(self.decode(drawn))), divergence], 1)


def _of_autoencoder(output: Any, target: Any) -> Any:
    return functional.huber_loss(output[:, :-1], target) + 0.05 * output[:, -1].mean()


class Graph(nn.Module):
    """Messages along edges, added up and averaged at the nodes."""

    def __init__(self) -> None:
        super().__init__()
        self.message, self.update = nn.Linear(16, 14), nn.Linear(22, 8)
        self.norm = nn.RMSNorm(8)
        self.act = nn.Mish()
        self.head = nn.Linear(8, 2)

    def forward(self, x: Any, edges: Any) -> Any:
        for _ in range(2):
            sent = self.act(self.message(torch.cat([x[edges[0]], x[edges[1]]], 1)))
            received = x.new_zeros(x.shape[0], 14).index_add(0, edges[1], sent)
            count = x.new_zeros(x.shape[0]).scatter_add(0, edges[1], x.new_ones(edges.shape[1]))
            x = x + self.norm(self.update(torch.cat([x, received / count.clamp(min=1)[:, None]], 1)))
        return self.head(torch.logsumexp(x, 0, keepdim=True).expand(x.shape[0], -1) + x)


class Experts(nn.Module):
    """Each row goes to the expert that its gate likes best."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = nn.Linear(12, 3)
        self.experts = nn.ModuleList(nn.Sequential(nn.Linear(12, 20), nn.SELU(), nn.Linear(20, 12)) for _ in range(3))
        self.head = nn.Linear(12, 1)

    def forward(self, x: Any) -> Any:
        weight, chosen = self.gate(x).softmax(-1).max(-1)
        out = torch.zeros_like(x)
        for number, expert in enumerate(self.experts):
            rows = (chosen == number).nonzero().squeeze(1)
            out = out.index_add(0, rows, expert(x[rows]) * weight[rows, None])
        return self.head(functional.normalize(x + out, dim=-1)).squeeze(1)


class Halves(nn.Module):
    """In float16 throughout."""

    def __init__(self) -> None:
        super().__init__()
        self.enter = nn.Conv1d(4, 12, 3, padding=1)
        self.norm = nn.GroupNorm(3, 12)
        self.act = nn.GELU()
        self.mix = nn.Linear(12, 12)
        self.last = nn.LayerNorm(12)
        self.head = nn.Linear(12, 4)

    def forward(self, x: Any) -> Any:
        y = self.act(self.norm(self.enter(x))).transpose(1, 2)
        return self.head(self.last(y + self.mix(y)).mean(1))


class Twins(nn.Module):
    """One network applied to two inputs, whose similarity is the result."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(18, 26), nn.Linear(26, 10)
        self.act = nn.PReLU()
        self.norm = nn.LayerNorm(26)

    def forward(self, one: Any, other: Any) -> Any:
        a, b = (self.second(self.norm(self.act(self.first(x)))) for x in (one, other))
        return functional.cosine_similarity(a, b) - 0.1 * functional.pairwise_distance(a, b)


class Waves(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.enter = nn.Conv1d(2, 8, 5, dilation=2, padding=4)
        self.grow = nn.ConvTranspose1d(8, 6, 4, stride=2, padding=1)
        self.scale = nn.Parameter(torch.ones(6, 1))
        self.leave = nn.Conv1d(6, 1, 7, padding=3)
        self.pool = nn.AvgPool1d(2)

    def forward(self, x: Any) -> Any:
        y = self.grow(functional.glu(torch.cat([self.enter(x), self.enter(x.flip(-1))], 1), 1))
        y = y + torch.sin(self.scale * y).square() / (self.scale + 1e-3)
        return torch.tanh(self.pool(self.leave(y)))


def _tokens(vocabulary: int, *shape: int) -> torch.Tensor:
    return torch.randint(0, vocabulary, shape)


_PROGRAMS = [
    Program(
        "mixer",
        Mixer,
        lambda n: [torch.randn(5 * n, 3, 12, 12), _tokens(6, 5 * n)],
        lambda output, target: functional.cross_entropy(output, target, label_smoothing=0.1),
        lambda p: torch.optim.Adamax(p, lr=1e-2, foreach=False),
    ),
    Program(
        "mobile",
        Mobile,
        lambda n: [torch.randn(4 * n, 1, 13, 13), torch.rand(4 * n, 4).round()],
        functional.multilabel_soft_margin_loss,
        lambda p: torch.optim.NAdam(p, lr=1e-2, foreach=False),
    ),
    Program(
        "translator",
        Translator,
        lambda n: [_tokens(37, 3 * n, 9), _tokens(37, 3 * n, 7), _tokens(37, 21 * n)],
        functional.cross_entropy,
        lambda p: torch.optim.AdamW(p, lr=1e-2, weight_decay=0.1),
    ),
    Program(
        "gru",
        Sequence,
        lambda n: [torch.randn(10 * n, 6, 7), _tokens(3, 10 * n)],
        functional.cross_entropy,
        lambda p: torch.optim.Adadelta(p, foreach=False),
    ),
    Program(
        "autoencoder",
        Autoencoder,
        lambda n: (lambda x: [x, x.tanh()])(torch.randn(14 * n, 30)),
        _of_autoencoder,
        lambda p: torch.optim.Adam(p, lr=1e-2, amsgrad=True, foreach=False),
    ),
    Program(
        "graph",
        Graph,
        lambda n: [torch.randn(15 * n, 8), _tokens(15 * n, 2, 40 * n), _tokens(2, 15 * n)],
        functional.cross_entropy,
        lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9, nesterov=True, foreach=False),
    ),
    Program(
        "experts",
        Experts,
        lambda n: [torch.randn(19 * n, 12), torch.randn(19 * n)],
        functional.smooth_l1_loss,
        lambda p: torch.optim.RAdam(p, lr=1e-2, foreach=False),
    ),
    Program(
        "float16",
        lambda: Halves().half(),
        lambda n: [torch.randn(6 * n, 4, 10).half(), _tokens(4, 6 * n)],
        functional.cross_entropy,
        lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.5),
    ),
    Program(
        "twins",
        Twins,
        lambda n: [torch.randn(9 * n, 18), torch.randn(9 * n, 18), torch.rand(9 * n)],
        functional.l1_loss,
        lambda p: torch.optim.RMSprop(p, lr=1e-2, centered=True, foreach=False),
    ),
    Program(
        "waves",
        Waves,
        lambda n: [torch.randn(3 * n, 2, 20), torch.randn(3 * n, 1, 20)],
        lambda output, target: functional.poisson_nll_loss(output, target.abs()),
        lambda p: torch.optim.Rprop(p, lr=1e-3, foreach=False),
    ),
]
HELD_OUT = {one.name: one for one in _PROGRAMS}
