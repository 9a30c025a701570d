"""Run the scenarios of the self-test with a tiny network in TensorFlow sessions, on an NPU through npu_bridge.

TensorFlow is version 1, or version 2 with `tf.compat.v1`.
"""

import sys
from importlib import import_module
from typing import Any, Optional

import numpy as np

from ascend_dump.selftest.program import Network, StepSeen, main
from ascend_dump.selftest.tiny_network import IN, ROWS, run_step, weights

try:
    tensorflow: Any = import_module("tensorflow")
    npu_init: Any = import_module("npu_bridge.npu_init")
except (ImportError, OSError) as error:
    print(f"npu_bridge cannot be imported: {error}")
    sys.exit(4)
tf: Any = getattr(getattr(tensorflow, "compat", None), "v1", tensorflow)
if tf is not tensorflow:
    tf.disable_eager_execution()


class SessionNetwork:
    """A network with its session configuration.

    The session is created in the first step, because npu_bridge reads the configuration at that time.
    """

    def __init__(self) -> None:
        self.config = npu_init.npu_config_proto(tf.ConfigProto())
        self.session: Optional[Any] = None
        self.graph = tf.Graph()
        with self.graph.as_default():
            self.x = tf.placeholder(tf.float32, [ROWS, IN], name="x")
            first, second = map(tf.constant, weights())
            self.y = tf.matmul(tf.nn.relu(tf.matmul(self.x, first, name="first"), name="relu"), second, name="second")

    def run(self, x: np.ndarray) -> np.ndarray:
        if self.session is None:
            self.session = tf.Session(graph=self.graph, config=self.config)
        return np.asarray(self.session.run(self.y, {self.x: x}))


def step(net: SessionNetwork, number: int, overflow: bool) -> StepSeen:
    return run_step(net.run, number, overflow)


if __name__ == "__main__":
    settings = {"framework": "tensorflow"}
    main(Network(SessionNetwork, step, settings, target=lambda model: None, anew=True, detects=True))
