"""Dumps of `ported_networks` in TensorFlow's sessions on the host. Usage: ported_networks_dumps.py DIRECTORY

tests/data/ported_networks.tar.xz has these dumps, without their manifests and without the runs that set the variables.
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
import tensorflow
import tensorflow.compat.v1 as tf
from ported_networks import LAYERS, NETWORKS, draw, rotations, tokens

import ascend_dump


def variable(name: str, value: np.ndarray) -> Any:
    return tf.get_variable(name.replace(".", "/"), initializer=np.ascontiguousarray(value), use_resource=True)


def dense(name: str, x: Any, inputs: int, outputs: int, bias: bool = True) -> Any:
    matrix = variable(f"{name}.kernel", draw(f"{name}.w", outputs, inputs).T)
    with tf.name_scope(name.replace(".", "/")):
        y = tf.matmul(x if len(x.shape) == 2 else tf.reshape(x, [-1, inputs]), matrix)
        if bias:
            y = tf.nn.bias_add(y, variable(f"{name}.bias", draw(f"{name}.b", outputs, scale=0.3)))
        return y if len(x.shape) == 2 else tf.reshape(y, [*x.shape[:-1], outputs])


def norm(name: str, x: Any) -> Any:
    gamma = variable(f"{name}.gamma", draw(f"{name}.w", 16, scale=0.2, offset=1))
    beta = variable(f"{name}.beta", draw(f"{name}.b", 16, scale=0.2))
    with tf.name_scope(name.replace(".", "/")):
        mean, variance = tf.nn.moments(x, [-1], keepdims=True)
        return tf.nn.batch_normalization(x, mean, variance, beta, gamma, 1e-5)


def heads(x: Any, length: int, count: int, width: int) -> Any:
    return tf.transpose(tf.reshape(x, [2, length, count, width]), [0, 2, 1, 3])


def lstm(ids: Any) -> Any:
    rows = tf.nn.embedding_lookup(variable("emb", draw("emb.w", 20, 8, scale=1)), ids)
    input_weights, state_weights = (
        variable(f"cell.{n}", draw(f"cell.{n}", 40, w).T) for n, w in (("wi", 8), ("wh", 10))
    )
    input_bias, state_bias = (variable(f"cell.{name}", draw(f"cell.{name}", 40, scale=0.3)) for name in ("b", "bh"))
    h, c = tf.zeros([3, 10]), tf.zeros([3, 10])
    for step in range(6):
        with tf.name_scope("cell"):
            gates = tf.matmul(rows[:, step], input_weights) + input_bias + tf.matmul(h, state_weights) + state_bias
            i, forget, g, o = tf.split(gates, 4, 1)
            c = tf.sigmoid(forget) * c + tf.sigmoid(i) * tf.tanh(g)
            h = tf.sigmoid(o) * tf.tanh(c)
    return dense("head", h, 10, 4)


def gpt(ids: Any) -> Any:
    table = variable("wte", draw("wte.w", 30, 16, scale=0.5))
    positions = variable("wpe", draw("wpe.w", 8, 16, scale=0.5))
    x = tf.nn.embedding_lookup(table, ids) + tf.nn.embedding_lookup(positions, tf.range(8))
    for layer in LAYERS:
        q, k, v = tf.split(dense(f"{layer}qkv", norm(f"{layer}n1", x), 16, 48), 3, -1)
        q, k, v = (heads(part, 8, 2, 8) for part in (q, k, v))
        mask = tf.constant(np.tril(np.ones((8, 8), "f4")))
        with tf.name_scope(layer.replace(".", "/") + "att"):
            scores = tf.matmul(q, k, transpose_b=True) * np.float32(1 / np.sqrt(8))
            mixed = tf.matmul(tf.nn.softmax(scores * mask - 1e9 * (1 - mask)), v)
        x = x + dense(f"{layer}proj", tf.reshape(tf.transpose(mixed, [0, 2, 1, 3]), [2, 8, 16]), 16, 16)
        up = tensorflow.nn.gelu(dense(f"{layer}up", norm(f"{layer}n2", x), 16, 64), approximate=True)
        x = x + dense(f"{layer}down", up, 64, 16)
    return tf.matmul(tf.reshape(norm("lnf", x), [16, 16]), table, transpose_b=True, name="lm")


def rms_norm(name: str, x: Any) -> Any:
    gain = variable(f"{name}.scale", draw(f"{name}.w", 16, scale=0.2, offset=1))
    with tf.name_scope(name):
        return x * tf.math.rsqrt(tf.reduce_mean(tf.square(x), -1, keepdims=True) + 1e-6) * gain


def rotated(x: Any, cos: np.ndarray, sin: np.ndarray) -> Any:
    return x * cos + tf.concat([-x[..., 2:], x[..., :2]], -1) * sin


def llama(ids: Any) -> Any:
    x = tf.gather(variable("emb", draw("emb.w", 30, 16, scale=1)), ids)
    y = rms_norm("n1", x)
    sizes = (("q", 16), ("k", 8), ("v", 8))
    q, k, v = (heads(dense(name, y, 16, size, False), 6, size // 4, 4) for name, size in sizes)
    with tf.name_scope("rope"):
        q, k = rotated(q, *rotations()), rotated(k, *rotations())
    with tf.name_scope("att"):
        k, v = tf.repeat(k, 2, 1), tf.repeat(v, 2, 1)
        scores = tf.matmul(q, k, transpose_b=True) / 2.0 + np.triu(np.full((6, 6), -1e9, "f4"), 1)
        mixed = tf.matmul(tf.nn.softmax(scores), v)
    x = x + dense("o", tf.reshape(tf.transpose(mixed, [0, 2, 1, 3]), [2, 6, 16]), 16, 16, False)
    y = rms_norm("n2", x)
    gate, up = dense("gate", y, 16, 40, False), dense("up", y, 16, 40, False)
    x = x + dense("down", gate * tf.sigmoid(gate) * up, 40, 16, False)
    return dense("lm", rms_norm("nf", x), 16, 30, False)


def main(directory: str) -> None:
    tf.disable_v2_behavior()
    for network in NETWORKS:
        value = tokens(network).astype("i4")
        with tf.Graph().as_default():
            ids = tf.placeholder(tf.int32, value.shape, name="x")
            result = {"lstm": lstm, "gpt": gpt, "llama": llama}[network](ids)
            config = tf.ConfigProto()
            start = tf.global_variables_initializer()
            path = Path(directory, network)
            with ascend_dump.capture(config, path=path, framework="tensorflow"), tf.Session(config=config) as session:
                session.run(start)
                session.run(result, {ids: value})


if __name__ == "__main__":
    main(*sys.argv[1:])
