"""A Lightning trainer that accumulates and clips gradients, and a port as a loop with Adam by hand."""

from __future__ import annotations

import logging

import lightning
import torch
from torch import Tensor, nn
from torch.nn import functional

from port_programs.program import Network, Program, Truth, generator

logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)


def _network() -> nn.Module:
    return nn.Sequential(
        nn.Conv1d(3, 16, 3, padding=1), nn.BatchNorm1d(16), nn.SiLU(), nn.Flatten(), nn.Linear(16 * 8, 4)
    )


def _data() -> tuple[Tensor, Tensor]:
    drawn = generator()
    x = torch.randn(8, 4, 3, 8, generator=drawn, dtype=torch.float32).to(torch.get_default_dtype())
    return x, torch.randint(0, 4, (8, 4), generator=drawn)


def _micro_batches(steps: int) -> int:
    """Return the next even number: an update follows each second micro-batch."""
    return steps + steps % 2


class Training(lightning.LightningModule):
    """The network as Lightning trains it."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network
        self.losses: list[float] = []

    def training_step(self, batch: tuple[Tensor, Tensor], _index: int) -> Tensor:
        loss = functional.cross_entropy(self.network(batch[0]), batch[1])
        self.losses.append(loss.item())
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.Adam(self.network.parameters(), lr=1e-2, foreach=False)


def reference() -> Program:
    model = _network()

    def train(steps: int) -> list[float]:
        x, labels = _data()
        training = Training(model)
        trainer = lightning.Trainer(
            max_epochs=1,
            accumulate_grad_batches=2,
            gradient_clip_val=0.1,
            logger=False,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
            accelerator="cpu",
        )
        pairs = list(zip(x, labels))[: _micro_batches(steps)]
        trainer.fit(training, torch.utils.data.DataLoader(pairs, batch_size=None))
        return training.losses

    return Program(model, train)


class Updates:
    """Adam and clipping by hand."""

    def __init__(self, model: nn.Module, fault: str) -> None:
        self.fault = fault
        self.parameters = list(model.parameters())
        self.means = [torch.zeros_like(parameter) for parameter in self.parameters]
        self.squares = [torch.zeros_like(parameter) for parameter in self.parameters]

    @torch.no_grad()
    def update(self, step: int) -> None:
        """Update all parameters by their gradients; steps begin with 1."""
        norm = sum(parameter.grad.square().sum() for parameter in self.parameters).sqrt()
        limit = 0.01 if self.fault == "clip" else 0.1
        scale = torch.clamp(limit / (norm + 1e-6), max=1)  # planted: lightning_loop_clip
        eps = 1e-4 if self.fault == "eps" else 1e-8
        for index, parameter in enumerate(self.parameters):
            gradient = parameter.grad * scale  # place: lightning_loop_clip
            mean = 0.9 * self.means[index] + 0.1 * gradient
            square = 0.999 * self.squares[index] + 0.001 * gradient * gradient
            self.means[index], self.squares[index] = mean, square
            deviation = (square / (1 - 0.999**step)).sqrt() + eps  # planted: lightning_loop_eps
            parameter.data -= 1e-2 * (mean / (1 - 0.9**step)) / deviation  # place: lightning_loop_eps
            parameter.grad = None


def port(fault: str) -> Program:
    model = _network()
    updates = Updates(model, fault)

    def train(steps: int) -> list[float]:
        x, labels = _data()
        losses = []
        model.train()
        for index in range(_micro_batches(steps)):
            logarithms = functional.log_softmax(model(x[index]), 1)
            loss = -(functional.one_hot(labels[index], 4) * logarithms).sum(1).mean()
            losses.append(loss.item())
            (loss * 0.5).backward()
            if index % 2:
                updates.update(index // 2 + 1)
        return losses

    return Program(model, train)


NETWORK = Network(
    "lightning_loop",
    reference,
    port,
    {"clip": Truth(visible=False), "eps": Truth(visible=False)},
)
