"""Train a small classifier with sess.run and keep its weights.

    python train.py [--capture DIRECTORY] [--steps "0|2"] [--layers NAME ...]
    python train.py --settings dump.json        where ascend_dump cannot be imported: see section 6 of the README

It is an ordinary training; see simulated.py for where it runs.
"""

from __future__ import annotations

import argparse
import contextlib
from typing import Any

import numpy as np
from network import build, make_data, session_config
from simulated import simulated_device

STEPS = 4


def main() -> None:
    parser = argparse.ArgumentParser(description="Train a small classifier.")
    parser.add_argument("--capture", metavar="DIRECTORY", help="dump into this directory")
    parser.add_argument("--steps", default="0|2", help="the steps to dump")
    parser.add_argument("--layers", nargs="*", help="the operators to dump, by default all")
    parser.add_argument("--settings", metavar="FILE", help="dump what this file says, by tf1_dump.py")
    args = parser.parse_args()
    with simulated_device():
        import tensorflow.compat.v1 as tf

        tf.disable_v2_behavior()
        config = session_config(tf)
        with captured(config, args):
            train(tf, config)


def train(tf: Any, config: Any) -> None:
    tf.set_random_seed(1)
    loss, accuracy = build(tf, *make_data(64, seed=1), batch=16)
    update = tf.train.GradientDescentOptimizer(0.5).minimize(loss)
    with tf.Session(config=config) as session:
        session.run(tf.global_variables_initializer())
        for step in range(STEPS):
            now, right, _ = session.run([loss, accuracy, update])
            print(f"step {step}: loss {now:.6f}, {right:.0%} right")
        np.savez("weights.npz", **{each.op.name: session.run(each) for each in tf.trainable_variables()})


def captured(config: Any, args: argparse.Namespace) -> contextlib.AbstractContextManager[Any]:
    if args.settings is not None:
        import tf1_dump

        return tf1_dump.capture(config, args.settings)
    if args.capture is None:
        return contextlib.nullcontext()
    import ascend_dump

    # Sessions copy the configuration when they are made, so the session belongs into the block.
    return ascend_dump.capture(
        config, framework="tensorflow", path=args.capture, steps=args.steps, mode="all", layers=args.layers or ()
    )


if __name__ == "__main__":
    main()
