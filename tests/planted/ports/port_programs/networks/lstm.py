"""A classifier with `nn.LSTM` of two layers, and a port with cells by hand."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from port_programs.program import Network, Program, Truth, generator, parameter_of, train_clearing_first, with_state


class Classifier(nn.Module):
    """The reference."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(20, 16)
        self.rnn = nn.LSTM(16, 24, 2, batch_first=True)
        self.classes = nn.Linear(24, 5)
        nn.init.uniform_(self.rnn.bias_hh_l1)

    def forward(self, tokens: Tensor) -> Tensor:
        _, (hidden, _) = self.rnn(self.embedding(tokens))
        return self.classes(hidden[-1])


class Port(nn.Module):
    """Both layers go through time together."""

    def __init__(self, source: Classifier, fault: str) -> None:
        super().__init__()
        self.fault = fault
        self.embed = nn.Embedding.from_pretrained(source.embedding.weight.detach().clone(), freeze=False)
        for layer in range(2):
            for name in ("weight_ih", "weight_hh", "bias_ih", "bias_hh"):
                self.register_parameter(f"{name}{layer}", parameter_of(getattr(source.rnn, f"{name}_l{layer}")))
        self.out = with_state(nn.Linear(24, 5), source.classes)

    def _gates(self, x: Tensor, hidden: Tensor, layer: int) -> Tensor:
        weight, bias = getattr(self, f"weight_hh{layer}"), getattr(self, f"bias_hh{layer}")
        entering = functional.linear(x, getattr(self, f"weight_ih{layer}"), getattr(self, f"bias_ih{layer}"))
        if self.fault == "bias" and layer == 1:
            return entering + functional.linear(hidden, weight)  # planted: lstm_bias
        return entering + functional.linear(hidden, weight, bias)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embed(tokens)
        batch, length, _ = x.shape
        hidden, cell = [x.new_zeros(batch, 24)] * 2, [x.new_zeros(batch, 24)] * 2
        for time in range(length):
            z = x[:, time]
            for layer in range(2):
                enter, forget, new, out = self._gates(z, hidden[layer], layer).chunk(4, 1)
                if self.fault == "gate" and layer == 1:
                    cell[layer] = enter.sigmoid() * cell[layer] + forget.sigmoid() * new.tanh()  # planted: lstm_gate
                else:
                    cell[layer] = forget.sigmoid() * cell[layer] + enter.sigmoid() * new.tanh()
                hidden[layer] = out.sigmoid() * cell[layer].tanh()
                z = hidden[layer]
        return self.out(hidden[1])


def _program(model: nn.Module) -> Program:
    drawn = generator()
    tokens = torch.randint(0, 20, (4, 7), generator=drawn)
    labels = torch.randint(0, 5, (4,), generator=drawn)
    optimizer = torch.optim.RMSprop(model.parameters(), lr=1e-3)
    return Program(model, train_clearing_first(optimizer, lambda: functional.cross_entropy(model(tokens), labels)))


def reference() -> Program:
    return _program(Classifier())


def port(fault: str) -> Program:
    return _program(Port(Classifier(), fault))


NETWORK = Network(
    "lstm",
    reference,
    port,
    {"bias": Truth(modules=("rnn",)), "gate": Truth(modules=("rnn",))},
)
