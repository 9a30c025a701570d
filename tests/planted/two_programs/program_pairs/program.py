"""One program: a network, its data, its loss, its optimizer and its loop."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from program_pairs.training import LoopOptions, train

Batch = dict[str, Any]


@dataclass
class Program:
    """A training or inference program that edits may change before it runs."""

    model: nn.Module
    batches: list[Batch]
    forward: Callable[[nn.Module, Batch], Tensor]
    criterion: Callable[[Tensor, Batch], Tensor] | None = None
    optimizer: Callable[[nn.Module], Any] | None = None
    loop: Callable[[Program], list[Tensor]] = train
    options: LoopOptions = field(default_factory=LoopOptions)
    patches: list[tuple[Any, str, Any]] = field(default_factory=list)
    before_run: list[Callable[[Program], None]] = field(default_factory=list)
    around: list[Callable[[], contextlib.AbstractContextManager[Any]]] = field(default_factory=list)
    average: nn.Module | None = None
    module_prefix: str = ""
    capture_options: dict[str, Any] = field(default_factory=dict)
    outputs: list[Tensor] = field(default_factory=list)
    losses: list[Tensor] = field(default_factory=list)
    start: dict[str, Tensor] = field(default_factory=dict)

    def to_double(self) -> None:
        """Cast the network and its floating-point data to float64."""
        self.model.double()
        if self.average is not None:
            self.average.double()
        for batch in self.batches:
            for name, value in batch.items():
                if isinstance(value, Tensor) and value.is_floating_point():
                    batch[name] = value.double()


def seed(number: int) -> None:
    """Set all seeds that a program may read."""
    random.seed(number)
    np.random.seed(number)
    torch.manual_seed(number)


@contextlib.contextmanager
def _patched(patches: list[tuple[Any, str, Any]]) -> Iterator[None]:
    before = [(owner, name, getattr(owner, name)) for owner, name, _ in patches]
    for owner, name, value in patches:
        setattr(owner, name, value)
    try:
        yield
    finally:
        for owner, name, value in reversed(before):
            setattr(owner, name, value)


def run(program: Program, capture: contextlib.AbstractContextManager[Any] | None = None) -> None:
    """Run the program, inside of a capture if there is one."""
    threads = torch.get_num_threads()
    for prepare in program.before_run:
        prepare(program)
    program.start = {name: value.detach().clone() for name, value in program.model.state_dict().items()}
    seed(11)
    try:
        with contextlib.ExitStack() as stack:
            stack.enter_context(_patched(program.patches))
            for around in program.around:
                stack.enter_context(around())
            if capture is not None:
                stack.enter_context(capture)
            program.losses = program.loop(program)
    finally:
        torch.set_num_threads(threads)
