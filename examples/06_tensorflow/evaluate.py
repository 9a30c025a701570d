"""Evaluate the trained classifier on new data, and dump what the head sees.

python evaluate.py DIRECTORY
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
from network import build, make_data, session_config
from simulated import simulated_device

import ascend_dump


def main(path: str) -> None:
    with simulated_device():
        import tensorflow.compat.v1 as tf

        tf.disable_v2_behavior()
        config = session_config(tf)
        with ascend_dump.capture(config, framework="tensorflow", path=path, layers=["head/matmul"], mode="all") as cap:
            evaluate(tf, config)
        for record in cap.dump().select(op="head/matmul"):
            print(f"{record.op_type} {record.op_name} {record.io} {record.index} {record.shape}")


def evaluate(tf: Any, config: Any) -> None:
    loss, accuracy = build(tf, *make_data(32, seed=2), batch=32)
    stored = np.load("weights.npz")
    with tf.Session(config=config) as session:
        for each in tf.trainable_variables():
            session.run(each.initializer, {each.initial_value: stored[each.op.name]})
        now, right = session.run([loss, accuracy])
        print(f"on new data: loss {now:.6f}, {right:.0%} right")


if __name__ == "__main__":
    main(*sys.argv[1:])
