"""A tiny MindSpore network in graph mode, on the CPU or on an NPU."""

import sys
from importlib import import_module
from typing import Any

import numpy as np

from ascend_dump.selftest.program import Network, StepSeen, main

#: By name, so that type checkers need no MindSpore.
ms: Any = import_module("mindspore")
nn: Any = import_module("mindspore.nn")
ON_NPU = sys.argv[1] == "mindspore-ascend"


class Net(nn.Cell):  # type: ignore[misc]  # the class is known when it runs
    """The first operator overflows where its input is near the largest float32."""

    def __init__(self) -> None:
        super().__init__()
        draw = np.random.default_rng(0).standard_normal
        self.first = nn.Dense(64, 48, weight_init=ms.Tensor(draw((48, 64)).astype("f4")), bias_init="zeros")
        self.relu = nn.ReLU()
        self.second = nn.Dense(48, 8, weight_init=ms.Tensor(draw((8, 48)).astype("f4")), bias_init="zeros")

    def construct(self, x: Any) -> Any:
        return self.second(self.relu(self.first(x * 8)))


def make() -> Any:
    ms.set_context(mode=ms.GRAPH_MODE)
    try:
        ms.set_device("Ascend" if ON_NPU else "CPU")
    except (RuntimeError, ValueError) as error:
        print(f"MindSpore finds no device: {str(error).partition(chr(10))[0]}")
        sys.exit(4)
    return Net()


def step(net: Any, number: int, overflow: bool) -> StepSeen:
    x = np.random.default_rng(number).standard_normal((4, 64)).astype("f4")
    if overflow:
        x = np.full((4, 64), 3e38, "f4")
    y = net(ms.Tensor(x)).asnumpy()
    return StepSeen([x], [y], [y])


if __name__ == "__main__":
    main(Network(make, step, {"framework": "mindspore"}, detects=ON_NPU))
