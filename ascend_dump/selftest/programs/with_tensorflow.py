"""A tiny network of eager TensorFlow 2, on the CPU."""

from typing import Any

import numpy as np
import tensorflow as tf

from ascend_dump.selftest.program import Network, StepSeen, main


def make() -> list[Any]:
    """The weights of two layers."""
    draw = np.random.default_rng(0).standard_normal
    return [tf.constant(draw(shape).astype("f4")) for shape in ((64, 48), (48, 8))]


def step(weights: list[Any], number: int, overflow: bool) -> StepSeen:
    x = np.random.default_rng(number).standard_normal((4, 64)).astype("f4")
    if overflow:
        x = np.full((4, 64), 3e38, "f4")
    scaled = tf.constant(x) * 8
    y = tf.matmul(tf.nn.relu(tf.matmul(scaled, weights[0])), weights[1]).numpy()
    return StepSeen([x], [y], [y])


if __name__ == "__main__":
    main(Network(make, step, {"framework": "tensorflow"}, target=lambda made: None, marks=True))
