"""Networks small enough to be computed again in numpy."""

from __future__ import annotations

from typing import Any

import mindspore as ms
import numpy as np
from mindspore import Parameter, Tensor, nn, ops

RANDOM = np.random.RandomState(3)
CONV = RANDOM.randn(2, 1, 3, 3).astype("f4")
DENSE = RANDOM.randn(3, 18).astype("f4")
BIAS = RANDOM.randn(3).astype("f4")


class ConvNet(nn.Cell):  # type: ignore[misc]  # MindSpore has no types
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(1, 2, 3, pad_mode="valid", weight_init=Tensor(CONV))
        self.relu = nn.ReLU()
        self.pool = nn.MaxPool2d(2, 2)
        self.flat = nn.Flatten()
        self.fc = nn.Dense(18, 3, weight_init=Tensor(DENSE), bias_init=Tensor(BIAS))

    def construct(self, x: Any) -> Any:
        return self.fc(self.flat(self.pool(self.relu(self.conv(x)))))


class DenseNet(nn.Cell):  # type: ignore[misc]
    def __init__(self, width: int = 4) -> None:
        super().__init__()
        self.fc = nn.Dense(width, 3, weight_init="ones")
        self.relu = nn.ReLU()

    def construct(self, x: Any) -> Any:
        return self.relu(self.fc(x))


class InPlace(nn.Cell):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__()
        self.total = Parameter(Tensor(np.zeros(3, "f4")), name="total")

    def construct(self, x: Any) -> Any:
        return ops.assign_add(self.total, x)


class Complex(nn.Cell):  # type: ignore[misc]
    def construct(self, x: Any) -> Any:
        return x * x


def images(step: int) -> np.ndarray:
    return np.random.RandomState(step).randn(2, 1, 8, 8).astype("f4")


def rows(step: int, width: int = 4) -> np.ndarray:
    return np.random.RandomState(100 + step).randn(2, width).astype("f4")


def graph_mode() -> None:
    ms.set_context(mode=ms.GRAPH_MODE)
    ms.set_device("CPU")
