"""Training under autocast with bfloat16, and a port with casts of its own and SGD by hand."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from port_programs.program import Network, Program, Truth, generator, parameter_of


class Transformer(nn.Module):
    """The reference: one layer."""

    def __init__(self) -> None:
        super().__init__()
        self.enter = nn.Linear(12, 32)
        self.query, self.key, self.value, self.out = (nn.Linear(32, 32) for _ in range(4))
        self.norm1, self.norm2 = nn.LayerNorm(32), nn.LayerNorm(32)
        self.expand, self.contract = nn.Linear(32, 64), nn.Linear(64, 32)
        self.head = nn.Linear(32, 4)

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.enter(x)
        normed = self.norm1(hidden)
        scores = self.query(normed) @ self.key(normed).transpose(-1, -2) / 32**0.5
        hidden = hidden + self.out(torch.softmax(scores, -1) @ self.value(normed))
        inner = self.contract(functional.gelu(self.expand(self.norm2(hidden))))
        return self.head(hidden + inner)  # place: autocast_resid


def _data() -> tuple[Tensor, Tensor]:
    drawn = generator()
    x = torch.randn(2, 4, 6, 12, generator=drawn, dtype=torch.float32).to(torch.get_default_dtype())
    labels = torch.randint(0, 4, (2, 4, 6), generator=drawn)
    return x.flatten(0, 1), labels.flatten()


def reference() -> Program:
    model = Transformer()
    x, labels = _data()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    enabled = x.dtype == torch.float32

    def train(steps: int) -> list[float]:
        losses = []
        for _ in range(steps):
            with torch.autocast("cpu", torch.bfloat16, enabled=enabled):
                logits = model(x)
                loss = functional.cross_entropy(logits.flatten(0, 1), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        return losses

    return Program(model, train)


class Port(nn.Module):
    """The port; float64 is not cast."""

    def __init__(self, source: nn.Module, fault: str) -> None:
        super().__init__()
        self.fault = fault
        self.weights = nn.ParameterDict(
            {name.replace(".", "_"): parameter_of(value) for name, value in source.named_parameters()}
        )

    def _linear(self, name: str, x: Tensor) -> Tensor:
        weight, bias = self.weights[f"{name}_weight"], self.weights[f"{name}_bias"]
        return functional.linear(_low(x), _low(weight), _low(bias))

    def _norm(self, name: str, x: Tensor, eps: float = 1e-5) -> Tensor:
        weight, bias = self.weights[f"{name}_weight"], self.weights[f"{name}_bias"]
        if eps != 1e-5:
            return functional.layer_norm(x, (32,), weight, bias, eps=eps)  # planted: autocast_norm
        return functional.layer_norm(x, (32,), weight, bias)

    def forward(self, x: Tensor) -> Tensor:
        hidden = self._linear("enter", x)
        normed = self._norm("norm1", hidden)
        scores = _low(self._linear("query", normed)) @ self._linear("key", normed).mT / 32**0.5
        mixed = _low(_high(scores).softmax(-1)) @ self._linear("value", normed)
        hidden = hidden + self._linear("out", mixed)
        normed = self._norm("norm2", hidden, 1e-3 if self.fault == "norm" else 1e-5)  # planted: autocast_norm
        inner = self._linear("contract", functional.gelu(self._linear("expand", normed)))
        if self.fault == "resid":
            return self._linear("head", inner)  # planted: autocast_resid
        return self._linear("head", hidden + inner)


def _low(x: Tensor) -> Tensor:
    return x if x.dtype == torch.float64 else x.bfloat16()


def _high(x: Tensor) -> Tensor:
    return x if x.dtype == torch.float64 else x.float()


def port(fault: str) -> Program:
    model = Port(Transformer(), fault)
    x, labels = _data()
    rate = 0.2 if fault == "lr" else 0.1

    def train(steps: int) -> list[float]:
        losses = []
        for _ in range(steps):
            logits = _high(model(x))
            loss = functional.cross_entropy(logits.flatten(0, 1), labels)
            loss.backward()
            with torch.no_grad():
                for parameter in model.parameters():
                    parameter -= rate * parameter.grad  # planted: autocast_lr
                    parameter.grad = None
            losses.append(loss.item())
        return losses

    return Program(model, train)


NETWORK = Network(
    "autocast",
    reference,
    port,
    {
        "norm": Truth(modules=("norm2",), readers=("norm2", "")),
        "resid": Truth(modules=("head",), readers=("head", "")),
        "lr": Truth(visible=False),
    },
)
