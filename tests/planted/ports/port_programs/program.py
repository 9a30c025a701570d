"""Programs, the truth of faults, and helpers that the networks share."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

#: Trains for a number of steps, and returns the losses.
Training = Callable[[int], list[float]]


@dataclass
class Program:
    """A network and its training; `evaluate` returns a number after it, for the verification only."""

    model: nn.Module
    train: Training
    evaluate: Callable[[], float] | None = None


@dataclass(frozen=True)
class Truth:
    """Origins that an engineer would accept as the first one, beside the lines with the marker of the fault.

    modules     patterns of the module path (the whole path) in either program
    operators   patterns of `module path:type of operator`
    readers     patterns of module paths that dumps of modules can show at best: the readers of a wrong tensor
    parameters  patterns of the names of parameters that are updated wrongly
    within      patterns of module paths in which the marked lines count, because all layers run them; empty for all
    visible     false if inputs and outputs of modules cannot show it
    """

    modules: tuple[str, ...] = ()
    operators: tuple[str, ...] = ()
    readers: tuple[str, ...] = ()
    parameters: tuple[str, ...] = ()
    within: tuple[str, ...] = ()
    visible: bool = True


@dataclass(frozen=True)
class Network:
    """A reference, and a port that plants the fault of the name that it is called with, or none if it is empty."""

    name: str
    reference: Callable[[], Program]
    port: Callable[[str], Program]
    faults: dict[str, Truth] = field(default_factory=dict)


def generator() -> torch.Generator:
    """Return the generator of the data; the same numbers for both programs."""
    return torch.Generator().manual_seed(3)


def normal(drawn: torch.Generator, *shape: int) -> Tensor:
    """Return normal numbers that are the same in all precisions."""
    return torch.randn(*shape, generator=drawn, dtype=torch.float32).to(torch.get_default_dtype())


def shaken(model: nn.Module) -> nn.Module:
    """Return the model with other norms and biases than those it begins with: ones and zeros hide faults."""
    drawn = generator()
    for parameter in model.parameters():
        if parameter.ndim == 1:
            parameter.data += 0.2 * normal(drawn, *parameter.shape)
    return model


def parameter_of(value: Tensor) -> nn.Parameter:
    """Return a parameter with a copy of the values."""
    return nn.Parameter(value.detach().clone())


def with_state(module: nn.Module, source: nn.Module) -> nn.Module:
    """Return the module with the parameters of the source."""
    module.load_state_dict(source.state_dict())
    return module


def train_clearing_first(optimizer: torch.optim.Optimizer, loss_of: Callable[[], Tensor]) -> Training:
    """Return a loop that clears gradients at the beginning of a step."""

    def train(steps: int) -> list[float]:
        losses = []
        for _ in range(steps):
            optimizer.zero_grad()
            loss = loss_of()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        return losses

    return train


def train_clearing_before_backward(optimizer: torch.optim.Optimizer, loss_of: Callable[[], Tensor]) -> Training:
    """Return a loop that clears gradients between the forward and the backward pass."""

    def train(steps: int) -> list[float]:
        losses = []
        for _ in range(steps):
            loss = loss_of()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(float(loss.detach()))
        return losses

    return train


def train_clearing_last(optimizer: torch.optim.Optimizer, loss_of: Callable[[], Tensor]) -> Training:
    """Return a loop that clears gradients after the update."""

    def train(steps: int) -> list[float]:
        losses = []
        for _ in range(steps):
            loss = loss_of()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.item())
        return losses

    return train


def infer(output_of: Callable[[int], Tensor]) -> Training:
    """Return a loop without training: it returns a number of each output. `output_of` takes the index of the step."""

    def run(steps: int) -> list[float]:
        numbers = []
        for step in range(steps):
            with torch.no_grad():
                output = output_of(step).detach().contiguous().flatten()
            weights = torch.linspace(1, 2, len(output), dtype=output.dtype)
            numbers.append(torch.dot(weights, (output + 1).square()).item())
        return numbers

    return run
