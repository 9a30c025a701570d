"""Functions and eager operators of TensorFlow 2 on the simulated device; prints what it found as JSON."""

from __future__ import annotations

import json
import os
import sys
from typing import Any

import numpy as np
import tensorflow as tf

import ascend_dump
from ascend_dump import fakes


def odd_functions(path: str) -> dict[str, Any]:
    """Functions with a loop over mapped data, functions in functions, for XLA, and switched to eager execution."""
    os.mkdir(path)
    numbers = tf.data.Dataset.from_tensor_slices(np.arange(4, dtype=np.float32))
    traced = []
    with fakes.install("npu_device", cwd=path) as npu:
        import npu_device

        dump = npu_device.global_options().dump_config
        dump.enable_dump, dump.dump_path = True, path
        npu_device.open().as_default()

        @tf.function
        def inner(x: Any) -> Any:
            return tf.square(x, name="sq")

        @tf.function(jit_compile=True)
        def outer(x: Any) -> Any:
            total = tf.constant(0.0)
            for each in numbers.map(lambda value: tf.multiply(value, 10.0, name="mul")):
                total += each
            return inner(tf.multiply(x, 2.0, name="mul") + total)

        result = float(outer(tf.constant(3.0)))
        tf.config.run_functions_eagerly(True)

        @tf.function
        def eager(x: Any) -> Any:
            traced.append(x)
            return tf.exp(x)

        eager(tf.constant(1.0))
        tf.config.run_functions_eagerly(False)
        last = npu.executed[-1]
    records = ascend_dump.open(path)
    return {
        "result": result,
        "named": {name: [float(each.numpy()) for each in records.select(op=name)] for name in ("mul", "sq")},
        "eager": [len(traced), last.op_type, last.model_id],
    }


def main(path: str) -> None:
    weights = tf.Variable(np.ones((4, 3), np.float32))

    def step(x: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.nn.relu(tf.matmul(x, weights, name="mm")), name="loss")
        weights.assign_sub(tape.gradient(loss, weights))
        return loss

    plain = [float(step(tf.ones((2, 4)))) for _ in range(3)]
    weights.assign(np.ones((4, 3), np.float32))
    with fakes.install("npu_device", cwd=path) as npu:
        import npu_device

        dump = npu_device.global_options().dump_config
        dump.enable_dump, dump.dump_path, dump.dump_mode, dump.dump_step = True, path, "all", "0|2"
        npu_device.open().as_default()
        function = tf.function(step)
        losses = [float(function(tf.ones((2, 4)))) for _ in range(3)]
        tf.square(tf.constant([1.0, 2.0]))
        single = [each.op_type for each in npu.executed if each.model_id is None]
        ran = len(npu.executed)
    function(tf.ones((2, 4)))
    records = ascend_dump.open(path).select(op="mm")
    found = {
        "plain": plain,
        "losses": losses,
        "single": single,
        "behind": len(npu.executed) - ran,
        "steps": sorted({record.step for record in records}),
        "types": sorted({record.op_type for record in records}),
        "weights": [float(each.numpy().max()) for each in records.select(io="input", index=1)],
        "gradients": len(ascend_dump.open(path).select(op="gradient_tape/mm/MatMul", io="output")),
    }
    print(json.dumps({**found, **odd_functions(f"{path}/odd")}))


if __name__ == "__main__":
    main(sys.argv[1])
