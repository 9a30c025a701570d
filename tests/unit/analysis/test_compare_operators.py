"""Rounding by a kernel, known from its operator: the same result, computed in float64 and then rounded, is noise."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import ascend_dump
from ascend_dump.analysis.compare import Rules, judge, measure
from ascend_dump.analysis.operators.names import may_enlarge_errors

pytest.importorskip("torch")
pytest.importorskip("rapidfuzz")

import torch
from compare_programs import Program, dump
from compare_roundings import ROUNDINGS
from torch.nn import functional


def image(x: Any) -> Any:
    return x.reshape(1, 2, -1, 8)


#: The place between two pixels is rounded; sums are taken in the type of the tensor.
OPERATORS: dict[str, tuple[Callable[[Any], Any], Any]] = {
    "bicubic": (
        lambda x: functional.interpolate(image(x), scale_factor=1.7, mode="bicubic", align_corners=False),
        torch.float32,
    ),
    "embedding bag": (
        lambda x: functional.embedding_bag(torch.arange(64) % 11, x, torch.arange(0, 64, 4), mode="mean"),
        torch.bfloat16,
    ),
    "bilinear form": (lambda x: functional.bilinear(x[:, :16], x[:, 16:], x[:16].reshape(2, 16, 16)), torch.bfloat16),
}


class One(torch.nn.Module):
    def __init__(self, operator: Callable[[Any], Any], dtype: torch.dtype) -> None:
        super().__init__()
        self.operator = operator
        self.data = torch.nn.Parameter(torch.randn(96, 32).to(dtype))

    def forward(self, x: Any) -> Any:
        made = self.operator(self.data)
        return x + (made * torch.linspace(-1, 1, made.numel(), dtype=made.dtype).reshape(made.shape)).mean().float()


@pytest.mark.parametrize("name", OPERATORS)
def test_kernels_of_float64_are_noise(name: str, tmp_path: Path) -> None:
    program = Program(
        name,
        lambda: One(*OPERATORS[name]),
        lambda times: [torch.zeros(()), torch.zeros(())],
        lambda total, target: total - target,
        lambda parameters: torch.optim.SGD(parameters, lr=0.1),
    )
    reference = dump(program, tmp_path / "reference", steps=1)
    ROUNDINGS["kernels of float64"](program, tmp_path / "actual", steps=1)
    found = ascend_dump.compare(tmp_path / "actual", reference)
    assert not found.origins, [one.evidence for one in found.origins]
    assert found.verdict == "noise"


def test_alike_values_are_rounded_alike() -> None:
    """The gradient of a loss that is linear far from its target is one constant: half of it is rounded to one side."""
    reference = np.full(2000, 1.9, ml_dtypes.bfloat16)
    actual = reference.copy()
    actual[:1000].view(np.uint16)[:] += 1
    assert judge(measure(actual, reference), "bfloat16", Rules())[0] == "noise"
    scaled = (reference.astype("f4") * 1.01).astype(ml_dtypes.bfloat16)
    assert judge(measure(scaled, reference), "bfloat16", Rules())[0] == "different"


@pytest.mark.parametrize(("op_type", "may_enlarge"), [("gelu", False), ("Gelu", False), ("Tanh", False), ("Log", True)])
def test_activations_of_all_frameworks_keep_the_size_of_errors(op_type: str, may_enlarge: bool) -> None:
    """So a GELU by another approximation is computed differently, and no amplification of rounding."""
    assert may_enlarge_errors(op_type) is may_enlarge
