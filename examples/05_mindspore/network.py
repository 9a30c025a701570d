"""A small network for images of one channel, and examples of its three classes."""

from __future__ import annotations

import mindspore.dataset as ds
import numpy as np
from mindspore import nn


class Net(nn.Cell):
    """Convolution, normalisation, pooling and a dense layer."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(1, 4, 3, pad_mode="valid", weight_init="normal")
        self.norm = nn.BatchNorm2d(4)
        self.relu = nn.ReLU()
        self.pool = nn.MaxPool2d(2, 2)
        self.flatten = nn.Flatten()
        self.head = nn.Dense(36, 3, weight_init="normal", bias_init="zeros")

    def construct(self, x):
        x = self.pool(self.relu(self.norm(self.conv(x))))
        return self.head(self.flatten(x))


def examples(count: int, batch: int = 8):
    """Noise with a bright bar whose place is the class."""

    def rows():
        random = np.random.RandomState(7)
        for number in range(count):
            image = 0.1 * random.randn(1, 8, 8)
            image[0, 2 * (number % 3) + 1] += 1.0
            yield image.astype(np.float32), np.int32(number % 3)

    return ds.GeneratorDataset(rows, ["image", "label"], shuffle=False).batch(batch)
