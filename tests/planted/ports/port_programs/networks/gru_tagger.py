"""A tagger with packed sequences in `nn.GRU` in both directions, and a port with cells and masks."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from port_programs.program import (
    Network,
    Program,
    Truth,
    generator,
    parameter_of,
    train_clearing_before_backward,
    train_clearing_first,
    with_state,
)

_LENGTHS = torch.tensor([4, 7, 5])
_SIZE = 10


class Tagger(nn.Module):
    """The reference."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(30, 12)
        self.gru = nn.GRU(12, _SIZE, batch_first=True, bidirectional=True)
        self.tags = nn.Linear(2 * _SIZE, 5)

    def forward(self, tokens: Tensor, lengths: Tensor) -> Tensor:
        packed = pack_padded_sequence(self.words(tokens), lengths, batch_first=True, enforce_sorted=False)
        states, _ = self.gru(packed)
        return self.tags(pad_packed_sequence(states, batch_first=True)[0])


def _data() -> tuple[Tensor, Tensor]:
    drawn = generator()
    tokens, tags = torch.randint(1, 30, (3, 7), generator=drawn), torch.randint(0, 5, (3, 7), generator=drawn)
    is_padding = torch.arange(7) >= _LENGTHS[:, None]
    return tokens.masked_fill(is_padding, 0), tags.masked_fill(is_padding, -100)


def reference() -> Program:
    model = Tagger()
    tokens, tags = _data()
    optimizer = torch.optim.Adamax(model.parameters(), lr=5e-3)

    def loss_of() -> Tensor:
        return functional.cross_entropy(model(tokens, _LENGTHS).flatten(0, 1), tags.flatten())

    return Program(model, train_clearing_first(optimizer, loss_of))


class Direction(nn.Module):
    """One direction of the network: all words enter at once, then one state follows the other."""

    def __init__(self, source: nn.GRU, suffix: str, fault: str) -> None:
        super().__init__()
        self.fault = fault
        self.is_reverse = bool(suffix)
        self.enter = nn.Linear(12, 3 * _SIZE)
        self.enter.weight.data.copy_(getattr(source, f"weight_ih_l0{suffix}"))
        self.enter.bias.data.copy_(getattr(source, f"bias_ih_l0{suffix}"))
        self.matrices = parameter_of(getattr(source, f"weight_hh_l0{suffix}").view(3, _SIZE, _SIZE))
        self.biases = parameter_of(getattr(source, f"bias_hh_l0{suffix}").view(3, _SIZE))

    def _next(self, entering: Tensor, hidden: Tensor) -> Tensor:
        own = torch.einsum("bh,goh->gbo", hidden, self.matrices)  # place: gru_tagger_padding
        own = own + self.biases[:, None]
        word = entering.unflatten(1, (3, _SIZE)).transpose(0, 1)
        reset, update = torch.sigmoid(word[:2] + own[:2])
        if self.fault == "reset":
            inner = (reset * hidden) @ self.matrices[2].T + self.biases[2]  # planted: gru_tagger_reset
            new = torch.tanh(word[2] + inner)  # planted: gru_tagger_reset
        else:
            new = torch.tanh(word[2] + reset * own[2])
        if self.fault == "update":
            return update * new + (1 - update) * hidden  # planted: gru_tagger_update
        return (1 - update) * new + update * hidden

    def forward(self, words: Tensor, is_word: Tensor) -> Tensor:
        entering = self.enter(words)
        hidden = entering.new_zeros(len(words), _SIZE)
        states: list[Tensor] = []
        times = range(words.shape[1])
        for time in reversed(times) if self.is_reverse else times:
            moved = self._next(entering[:, time], hidden)
            if self.fault == "padding" and self.is_reverse:
                hidden = moved  # planted: gru_tagger_padding
            else:
                hidden = torch.where(is_word[:, time, None], moved, hidden)
            states.append(hidden)
        if self.is_reverse:
            states.reverse()
        return torch.stack(states, 1) * is_word[..., None]  # place: gru_tagger_padding


class Port(nn.Module):
    """The port; it returns logits."""

    def __init__(self, source: Tagger, fault: str) -> None:
        super().__init__()
        self.words = with_state(nn.Embedding(30, 12), source.words)
        self.right, self.left = Direction(source.gru, "", fault), Direction(source.gru, "_reverse", fault)
        self.tags = with_state(nn.Linear(2 * _SIZE, 5), source.tags)

    def forward(self, tokens: Tensor) -> Tensor:
        words, is_word = self.words(tokens), tokens != 0
        return self.tags(torch.cat([self.right(words, is_word), self.left(words, is_word)], -1))


def port(fault: str) -> Program:
    model = Port(Tagger(), fault)
    tokens, tags = _data()
    optimizer = torch.optim.Adamax(model.parameters(), lr=5e-3)

    def loss_of() -> Tensor:
        terms = functional.cross_entropy(model(tokens).mT, tags, reduction="none")
        count = terms.numel() if fault == "count" else (tags >= 0).sum()
        return terms.sum() / count  # planted: gru_tagger_count

    return Program(model, train_clearing_before_backward(optimizer, loss_of))


NETWORK = Network(
    "gru_tagger",
    reference,
    port,
    {
        "reset": Truth(modules=("gru",), readers=("right", "left")),
        "update": Truth(modules=("gru",), readers=("right", "left")),
        "padding": Truth(modules=("gru",), within=("gru", "left"), readers=("left",)),
        "count": Truth(operators=(r":aten::(nll_loss\w*|cross_entropy_loss|div|sum)",), readers=("",), visible=False),
    },
)
