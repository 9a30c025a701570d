"""Run the scenarios of the self-test with a tiny MindSpore network in graph mode, on the CPU or on an NPU."""

import sys
from importlib import import_module
from typing import Any

import numpy as np

from ascend_dump.selftest.program import Network, StepSeen, main
from ascend_dump.selftest.tiny_network import HIDDEN, IN, OUT, run_step, weights

#: Imported by `import_module`, so that type checkers do not need MindSpore.
ms: Any = import_module("mindspore")
nn: Any = import_module("mindspore.nn")
ON_NPU = sys.argv[1] == "mindspore-ascend"


class CellNetwork(nn.Cell):  # type: ignore[misc]  # a class of the imported module
    """A network whose first operator overflows for inputs near the largest float32."""

    def __init__(self) -> None:
        super().__init__()
        first, second = (ms.Tensor(np.ascontiguousarray(array.T)) for array in weights())
        self.first = nn.Dense(IN, HIDDEN, weight_init=first, bias_init="zeros")
        self.relu = nn.ReLU()
        self.second = nn.Dense(HIDDEN, OUT, weight_init=second, bias_init="zeros")

    def construct(self, x: Any) -> Any:
        return self.second(self.relu(self.first(x * 8)))


def make() -> Any:
    ms.set_context(mode=ms.GRAPH_MODE)
    try:
        ms.set_device("Ascend" if ON_NPU else "CPU")
    except (RuntimeError, ValueError) as error:
        print(f"MindSpore finds no device: {str(error).partition(chr(10))[0]}")
        sys.exit(4)
    return CellNetwork()


def step(net: Any, number: int, overflow: bool) -> StepSeen:
    return run_step(lambda x: net(ms.Tensor(x)).asnumpy(), number, overflow)


if __name__ == "__main__":
    main(Network(make, step, {"framework": "mindspore"}, detects=ON_NPU))
