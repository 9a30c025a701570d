"""Models and a simulated torchair that several test files use."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from ascend_dump import fakes
from ascend_dump.fakes.device.npu import Npu


@contextmanager
def simulated_torchair() -> Iterator[Npu]:
    """The fake torchair, and nothing that Dynamo has compiled before or in the block."""
    import torch

    torch._dynamo.reset()
    with fakes.install("torchair", environ={}) as device:
        yield device
    torch._dynamo.reset()


def make_mlp() -> Any:
    """Two linear layers with an activation, always the same."""
    import torch

    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 4))


def make_input() -> Any:
    import torch

    return torch.arange(40, dtype=torch.float32).reshape(5, 8) / 40


def options_of(config: Any) -> dict[str, Any]:
    """Every option of a CompilerConfig by its path; two configs are never equal themselves."""
    found: dict[str, Any] = {}

    def walk(section: Any, prefix: str) -> None:
        for name, held in vars(section).items():
            if hasattr(held, "_value"):
                found[prefix + name] = held._value
            elif getattr(held, "__dict__", None) and not callable(held):
                walk(held, f"{prefix}{name}.")

    walk(config, "")
    return found
