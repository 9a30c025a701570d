"""Run the scenarios of the self-test with a tiny function of TensorFlow 2, on an NPU through npu_device."""

import sys
from importlib import import_module
from typing import Any

import numpy as np

from ascend_dump.selftest.program import Network, StepSeen, main
from ascend_dump.selftest.tiny_network import run_step, weights

try:
    tf: Any = import_module("tensorflow")
    npu_device: Any = import_module("npu_device")
except (ImportError, OSError) as error:
    print(f"npu_device cannot be imported: {error}")
    sys.exit(4)


class DeviceNetwork:
    """A network as a TensorFlow function.

    The device is opened in the first step, because npu_device reads the options of the process at that time.
    """

    def __init__(self) -> None:
        first, second = map(tf.constant, weights())

        def run(x: Any) -> Any:
            return tf.matmul(tf.nn.relu(tf.matmul(x, first, name="first"), name="relu"), second, name="second")

        self._run = run
        self._function: Any = None

    def run(self, x: np.ndarray) -> np.ndarray:
        if self._function is None:
            npu_device.open().as_default()
            self._function = tf.function(self._run)
        return np.asarray(self._function(tf.constant(x)))


def step(net: DeviceNetwork, number: int, overflow: bool) -> StepSeen:
    return run_step(net.run, number, overflow)


if __name__ == "__main__":
    settings = {"framework": "tensorflow"}
    main(Network(DeviceNetwork, step, settings, target=lambda model: None, detects=True))
