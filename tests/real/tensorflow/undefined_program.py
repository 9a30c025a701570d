"""Operators that leave outputs unwritten in some mode, dumped. Usage: undefined_program.py DIRECTORY"""

from __future__ import annotations

import os
import sys

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "0")

import numpy as np
import tensorflow.compat.v1 as tf

import ascend_dump


def main(directory: str) -> None:
    tf.disable_v2_behavior()
    draw = np.random.RandomState(0)
    x = tf.constant(draw.standard_normal((2, 4, 4, 3)).astype("f4"))
    matrix = tf.constant(draw.standard_normal((4, 4)).astype("f4"))
    positive, none = tf.constant(draw.rand(3).astype("f4") + 0.5), tf.zeros([0])
    made = []
    for norm in (tf.raw_ops.FusedBatchNorm, tf.raw_ops.FusedBatchNormV2, tf.raw_ops.FusedBatchNormV3):
        for training in (False, True):
            moving = none if training else positive
            made += norm(
                x=x, scale=positive, offset=positive, mean=moving, variance=moving, is_training=training
            )[:1]  # fmt: skip
    made += [tf.raw_ops.Svd(input=matrix, compute_uv=False)[0], tf.raw_ops.Svd(input=matrix)[0]]
    made += [tf.raw_ops.SelfAdjointEigV2(input=matrix, compute_v=False)[0]]
    made += [tf.abs(tf.raw_ops.Eig(input=matrix, compute_v=False, Tout=tf.complex64)[0])]
    config = tf.ConfigProto()
    with ascend_dump.capture(config, path=directory, framework="tensorflow"), tf.Session(config=config) as session:
        session.run(made)


if __name__ == "__main__":
    main(*sys.argv[1:])
