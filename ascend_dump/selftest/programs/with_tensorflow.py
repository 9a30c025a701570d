"""Run the scenarios of the self-test with a tiny network of eager TensorFlow 2, on the CPU."""

from typing import Any

import numpy as np
import tensorflow as tf

from ascend_dump.selftest.program import Network, StepSeen, main
from ascend_dump.selftest.tiny_network import run_step, weights


def make() -> list[Any]:
    """Return the weights of the two layers as constants."""
    return [tf.constant(array) for array in weights()]


def step(constants: list[Any], number: int, overflow: bool) -> StepSeen:
    def run(x: np.ndarray) -> Any:
        return tf.matmul(tf.nn.relu(tf.matmul(tf.constant(x) * 8, constants[0])), constants[1]).numpy()

    return run_step(run, number, overflow)


if __name__ == "__main__":
    main(Network(make, step, {"framework": "tensorflow"}, target=lambda model: None, marks=True))
