"""A small classifier, its data, and the configuration of its sessions."""

from __future__ import annotations

import importlib.util
from typing import Any

import numpy as np

CLASSES = 3


def make_data(rows: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Points around one centre for each class."""
    source = np.random.default_rng(seed)
    labels = source.integers(0, CLASSES, rows)
    return (np.eye(4)[labels] + source.normal(0, 0.3, (rows, 4))).astype(np.float32), labels.astype(np.int32)


def build(tf: Any, features: np.ndarray, labels: np.ndarray, batch: int) -> tuple[Any, Any]:
    """The loss and the share of right answers for the next batch of a data set that never ends."""
    data = tf.data.Dataset.from_tensor_slices((features, labels)).repeat().batch(batch, drop_remainder=True)
    x, y = tf.data.make_one_shot_iterator(data).get_next()
    hidden = tf.nn.relu(dense(tf, x, 4, 16, "hidden"), name="act")
    logits = dense(tf, hidden, 16, CLASSES, "head")
    loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels=y, logits=logits), name="loss")
    right = tf.equal(tf.argmax(logits, 1), tf.cast(y, tf.int64))
    return loss, tf.reduce_mean(tf.cast(right, tf.float32), name="accuracy")


def dense(tf: Any, x: Any, inputs: int, units: int, name: str) -> Any:
    spread = tf.random_normal_initializer(stddev=0.3, seed=len(name))
    kernel = tf.get_variable(f"{name}/kernel", [inputs, units], initializer=spread)
    bias = tf.get_variable(f"{name}/bias", [units], initializer=tf.zeros_initializer())
    return tf.nn.bias_add(tf.matmul(x, kernel, name=f"{name}/matmul"), bias, name=f"{name}/add")


def session_config(tf: Any) -> Any:
    """As a ported script makes it; without npu_bridge it is a plain one."""
    config = tf.ConfigProto(allow_soft_placement=True)
    if importlib.util.find_spec("npu_bridge") is None:
        return config
    from npu_bridge.npu_init import npu_config_proto

    return npu_config_proto(config_proto=config)
