"""Eager programs under the launcher: a step is a call of a function or of a Keras model."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

import ascend_dump

pytest.importorskip("tensorflow")

TRAINING = """
    import numpy as np
    import tensorflow as tf

    tf.keras.utils.set_random_seed(0)
    layers = tf.keras.layers
    model = tf.keras.Sequential([layers.Dense(8, activation="relu"), layers.LayerNormalization(), layers.Dense(4)])
    optimizer = tf.keras.optimizers.Adam(1e-3)


    @tf.function
    def train(x, y):
        with tf.GradientTape() as tape:
            distance = tf.norm(model(x) - y, axis=-1)
            loss = tf.reduce_mean(distance)
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables))
        return loss


    numbers = np.random.default_rng(0)
    for step in range(4):
        x = numbers.normal(size=(8, 6)).astype("f")
        y = model(x).numpy() if step == 2 else numbers.normal(size=(8, 4)).astype("f")
        print("loss", float(train(x, y)))
"""
FITTED = """
    import numpy as np
    import tensorflow as tf

    tf.keras.utils.set_random_seed(0)
    inputs = tf.keras.Input((6,))
    inner = tf.keras.Sequential([tf.keras.layers.Dense(4, activation="relu", name="hidden")])
    model = tf.keras.Model(inputs, tf.keras.layers.Dense(1)(inner(inputs)))
    model.compile("sgd", "mse")
    x = np.random.default_rng(0).normal(size=(12, 6)).astype("f")
    history = model.fit(x, x[:, :1], batch_size=4, epochs=1, verbose=0)
    print("loss %.6f" % history.history["loss"][0])
"""


def run(directory: Path, program: str, *launcher: str, **variables: str) -> subprocess.CompletedProcess[str]:
    (directory / "program.py").write_text(textwrap.dedent(program))
    command = [sys.executable, *launcher, str(directory / "program.py")]
    return subprocess.run(
        command, capture_output=True, text=True, timeout=900, cwd=directory, env={**os.environ, **variables}
    )


def test_the_operator_that_makes_nan_its_step_and_its_line(tmp_path: Path) -> None:
    launcher = ("-m", "ascend_dump", "triage", "--path", "t", "--run", "--", sys.executable)
    done = run(tmp_path, TRAINING, *launcher)
    assert done.returncode == 1, done.stderr
    # The model is called before the function in step 2, which makes that call the step 2, and the function step 3.
    assert "cause       gradient_tape/SqrtGrad (SqrtGrad), step 3" in done.stdout
    program = (tmp_path / "program.py").read_text().splitlines()
    line = next(number for number, text in enumerate(program, 1) if "tape.gradient" in text)
    assert f"program.py:{line}" in done.stdout
    assert "is zero everywhere" in done.stdout


def test_fit_is_recorded_batch_by_batch_and_trains_the_same(tmp_path: Path) -> None:
    plain = run(tmp_path, FITTED)
    done = run(tmp_path, FITTED, ASCEND_DUMP="steps=0|2,path=dumps")
    assert done.returncode == 0, done.stderr
    assert done.stdout == plain.stdout
    dump = ascend_dump.open(tmp_path / "dumps")
    products = dump.select(op_type="MatMul", io="output")
    assert sorted({record.step for record in dump}) == [0, 2]
    assert {record.shape for record in products if record.step == 0} >= {(4, 4), (4, 1)}
    assert "no tf.function" not in done.stderr
