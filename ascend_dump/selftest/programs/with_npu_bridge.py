"""A tiny network in sessions of TensorFlow 1, or of 2 with its old interface, on an NPU through npu_bridge."""

import sys
from importlib import import_module
from typing import Any, Optional

import numpy as np

from ascend_dump.selftest.program import Network, StepSeen, main

try:
    tensorflow: Any = import_module("tensorflow")
    npu_init: Any = import_module("npu_bridge.npu_init")
except (ImportError, OSError) as error:
    print(f"npu_bridge cannot be imported: {error}")
    sys.exit(4)
tf: Any = getattr(getattr(tensorflow, "compat", None), "v1", tensorflow)
if tf is not tensorflow:
    tf.disable_eager_execution()


class Made:
    """The configuration, and the session that the first step makes with it: the bridge reads it then."""

    def __init__(self) -> None:
        self.config = npu_init.npu_config_proto(tf.ConfigProto())
        self.session: Optional[Any] = None
        self.graph = tf.Graph()
        draw = np.random.default_rng(0).standard_normal
        with self.graph.as_default():
            self.x = tf.placeholder(tf.float32, [4, 64], name="x")
            first, second = (tf.constant(draw(shape).astype("f4")) for shape in ((64, 48), (48, 8)))
            self.y = tf.matmul(tf.nn.relu(tf.matmul(self.x, first, name="first"), name="relu"), second, name="second")

    def run(self, x: np.ndarray) -> np.ndarray:
        if self.session is None:
            self.session = tf.Session(graph=self.graph, config=self.config)
        return np.asarray(self.session.run(self.y, {self.x: x}))


def step(made: Made, number: int, overflow: bool) -> StepSeen:
    x = np.random.default_rng(number).standard_normal((4, 64)).astype("f4")
    if overflow:
        x = np.full((4, 64), 3e38, "f4")
    y = made.run(x)
    return StepSeen([x], [y], [y])


if __name__ == "__main__":
    settings = {"framework": "tensorflow"}
    main(Network(Made, step, settings, target=lambda made: None, anew=True, detects=True))
