"""Dumps of `same_networks` in TensorFlow's sessions on the host. Usage: same_networks_dumps.py DIRECTORY [gradients]

With `gradients`, those of all weights by the sum of the squares of what the network gives.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2] / "helpers"))
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "0")

import numpy as np
import tensorflow.compat.v1 as tf
from same_networks import HEADS, NETWORKS, inputs, weights

import ascend_dump

Weights = dict[str, np.ndarray]


def variable(name: str, value: np.ndarray) -> Any:
    return tf.get_variable(name.replace(".", "_"), initializer=value, use_resource=True)


def dense(x: Any, of: Weights, name: str) -> Any:
    matrix = variable(f"{name}.w", np.ascontiguousarray(of[f"{name}.w"].T))
    rows = x if len(x.shape) == 2 else tf.reshape(x, [-1, x.shape[-1]])
    found = tf.nn.bias_add(tf.matmul(rows, matrix), variable(f"{name}.b", of[f"{name}.b"]))
    return found if len(x.shape) == 2 else tf.reshape(found, [*x.shape[:-1], found.shape[-1]])


def mlp(x: Any, of: Weights) -> Any:
    return dense(tf.nn.relu(dense(x, of, "up")), of, "down")


def conv(x: Any, of: Weights, training: bool) -> Any:
    kernel = variable("kernel", np.ascontiguousarray(of["kernel"].transpose(2, 3, 1, 0)))
    found = tf.nn.conv2d(x, kernel, [1, 1, 1, 1], "SAME")
    scale, offset, mean, spread = (variable(name, of[name]) for name in ("gamma", "beta", "mean", "variance"))
    if training:
        found, _, _ = tf.nn.fused_batch_norm(found, scale, offset, epsilon=1e-3, is_training=True)
    else:
        found, _, _ = tf.nn.fused_batch_norm(found, scale, offset, mean, spread, epsilon=1e-3, is_training=False)
    return dense(tf.reduce_mean(tf.nn.relu(found), [1, 2]), of, "head")


def norm(x: Any, of: Weights, name: str) -> Any:
    mean, spread = tf.nn.moments(x, [-1], keepdims=True)
    return (x - mean) * tf.math.rsqrt(spread + 1e-5) * variable(f"{name}.w", of[f"{name}.w"]) + variable(
        f"{name}.b", of[f"{name}.b"]
    )


def heads(x: Any) -> Any:
    return tf.transpose(tf.reshape(x, [2, 4, HEADS, 4]), [0, 2, 1, 3])


def transformer(x: Any, of: Weights) -> Any:
    y = norm(x, of, "norm1")
    q, k, v = (heads(dense(y, of, name)) for name in ("q", "k", "v"))
    mixed = tf.matmul(tf.nn.softmax(tf.matmul(q, k, transpose_b=True) * 0.5), v)
    x = x + dense(tf.reshape(tf.transpose(mixed, [0, 2, 1, 3]), [2, 4, 8]), of, "o")
    up = dense(norm(x, of, "norm2"), of, "up")
    return x + dense(0.5 * up * (1 + tf.math.erf(up / np.float32(np.sqrt(2)))), of, "down")


def result_of(network: str, x: Any, training: bool) -> Any:
    of = weights(network)
    if network == "conv":
        return conv(x, of, training)
    return mlp(x, of) if network == "mlp" else transformer(x, of)


def main(directory: str, gradients: str = "") -> None:
    tf.disable_v2_behavior()
    for network in NETWORKS:
        value = inputs(network)
        if network == "conv":
            value = np.ascontiguousarray(value.transpose(0, 2, 3, 1))
        with tf.Graph().as_default():
            x = tf.placeholder(tf.float32, value.shape, name="x")
            result = result_of(network, x, bool(gradients))
            if gradients:
                trained = [one for one in tf.global_variables() if one.op.name not in ("mean", "variance")]
                loss = tf.reduce_sum(result * result)
                result = [loss, *tf.gradients(loss, trained)]
            config = tf.ConfigProto()
            start = tf.global_variables_initializer()
            path = Path(directory, network)
            with ascend_dump.capture(config, path=path, framework="tensorflow"), tf.Session(config=config) as session:
                session.run(start)
                session.run(result, {x: value})


if __name__ == "__main__":
    main(*sys.argv[1:])
