"""Reference dumps of eager TensorFlow 2: operators one by one, functions and keras models included."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any, Callable

import numpy as np
import pytest

import ascend_dump

tf = pytest.importorskip("tensorflow")

X = np.arange(8, dtype="f").reshape(2, 4) / 8


@pytest.fixture
def capture(tmp_path: Path) -> Callable[..., ascend_dump.Capture]:
    def make(**settings: Any) -> ascend_dump.Capture:
        return ascend_dump.capture(path=tmp_path / "dumps", framework="tensorflow", strict=True, **settings)

    return make


def make_step() -> Callable[[], Any]:
    """One step of training in a `tf.function` with a loop and a branch."""
    weight = tf.Variable(np.linspace(-1, 1, 12, dtype="f").reshape(4, 3))

    @tf.function
    def loss_of(x: Any) -> Any:
        with tf.name_scope("layer"):
            y = tf.matmul(x, weight)
        for _ in tf.range(3):
            y = y * 0.5
        y = tf.nn.relu(y) if tf.reduce_sum(y) > 0 else tf.nn.sigmoid(y)
        return tf.reduce_mean(tf.square(y))

    def step() -> Any:
        with tf.GradientTape() as tape:
            loss = loss_of(tf.constant(X))
        weight.assign_sub(0.1 * tape.gradient(loss, weight))
        return loss.numpy(), weight.numpy()

    return step


def test_values_are_those_of_the_operators(capture: Any) -> None:
    x = tf.constant(X)
    with capture() as cap:
        y = tf.matmul(x, x, transpose_b=True)
        z = tf.nn.relu(y - 1.0)
    found = {(one.op_name, one.io, one.index): one.numpy() for one in cap.dump()}
    assert found["MatMul", "input", 0].tobytes() == X.tobytes()
    assert found["MatMul", "output", 0].tobytes() == y.numpy().tobytes()
    assert found["Sub", "input", 0].tobytes() == y.numpy().tobytes()
    assert found["Relu", "output", 0].tobytes() == z.numpy().tobytes()


def test_functions_are_seen_operator_by_operator_with_their_scopes(capture: Any) -> None:
    step = make_step()
    with capture() as cap:
        step()
    names = [one.op_name for one in cap.dump().select(io="output")]
    assert "layer/MatMul" in names
    assert ("Relu" in names) != ("Sigmoid" in names)
    # Gradients multiply too: the loop's products come first.
    products = list(cap.dump().select(op_type="Mul", io="output"))[:3]
    first = next(iter(cap.dump().select(op="layer/MatMul", io="output"))).numpy()
    assert [one.numpy().tobytes() for one in products] == [(first * factor).tobytes() for factor in (0.5, 0.25, 0.125)]


def test_gradients_are_operators_of_the_backward_pass(capture: Any) -> None:
    """Their scope is that of gradients in graphs of functions; the sum of two gradients is one of them."""
    weight = tf.Variable(np.linspace(-1, 1, 12, dtype="f").reshape(4, 3))
    with capture() as cap:
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(tf.nn.relu(tf.matmul(tf.constant(X), weight))) + tf.reduce_sum(weight)
        gradient = tape.gradient(loss, weight)
        weight.assign_sub(gradient * 0.1)
    backward = [one.op_name for one in cap.dump().select(io="output") if one.phase == "backward"]
    assert {"gradient_tape/ReluGrad", "gradient_tape/MatMul", "gradient_tape/AddN"} <= set(backward)
    others = {one.op_name for one in cap.dump().select(io="output")}.difference(backward)
    assert {"MatMul", "Relu", "AddV2", "Mul"} <= others
    assert not any("gradient_tape" in name for name in others)


def test_training_is_the_same_and_only_selected_steps_are_there(capture: Any) -> None:
    plain, captured = make_step(), make_step()
    expected = [plain() for _ in range(4)]
    found = []
    with capture(steps="1|3") as cap:
        for number in range(4):
            if number:
                cap.step()
            found.append(captured())
    for (loss, weight), (other_loss, other_weight) in zip(expected, found):
        # A function that runs eagerly is not fused: the last bits are its own.
        np.testing.assert_allclose(loss, other_loss, rtol=1e-6)
        np.testing.assert_allclose(weight, other_weight, rtol=1e-6)
    assert {one.step for one in cap.dump()} == {1, 3}


def test_a_decorated_function_is_a_step_for_each_call(capture: Any) -> None:
    step = make_step()
    train = capture(steps="1-2")(step)
    for _ in range(5):
        train()
    assert {one.step for one in train.capture.dump()} == {1, 2}
    assert not train.capture.active


def test_a_selected_call_without_operators_is_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    @ascend_dump.capture(framework="tensorflow", path=tmp_path, steps="0-1|3")
    def run(number: int) -> Any:
        return tf.ones(3) + 1 if number != 1 else None

    for number in range(5):
        run(number)
    assert {record.step for record in run.capture.dump()} == {0, 3}
    assert caplog.text.count("1 of the selected steps wrote nothing, the first is step 1") == 1


def test_everything_is_as_before_after_the_block(capture: Any) -> None:
    from tensorflow.python.eager import context, execute

    before = (execute.execute, tf.config.functions_run_eagerly())
    with capture() as cap:
        tf.add(1.0, 2.0)
        assert context.context().op_callbacks
    assert (execute.execute, tf.config.functions_run_eagerly()) == before
    assert context.context().op_callbacks == []
    count = len(cap.dump())
    tf.add(1.0, 2.0)
    assert len(cap.dump()) == count == 3


def test_functions_that_ran_eagerly_already_go_on_doing_so(capture: Any) -> None:
    tf.config.run_functions_eagerly(True)
    try:
        with capture():
            tf.add(1.0, 2.0)
        assert tf.config.functions_run_eagerly()
    finally:
        tf.config.run_functions_eagerly(False)


def test_functions_run_eagerly_until_the_last_of_crossed_captures_ends(tmp_path: Path) -> None:
    step = make_step()
    first, second = (
        ascend_dump.capture(path=tmp_path / name, framework="tensorflow").start() for name in ("first", "second")
    )
    first.stop()
    step()
    second.stop()
    assert "MatMul" in {record.op_type for record in second.dump()}
    assert not tf.config.functions_run_eagerly()


def test_an_exception_ends_the_capture(capture: Any) -> None:
    from tensorflow.python.eager import context

    with pytest.raises(tf.errors.InvalidArgumentError), capture() as cap:  # noqa: PT012  (the block has run)
        tf.add(1.0, 2.0)
        tf.matmul(tf.ones([2, 3]), tf.ones([2, 3]))
    assert context.context().op_callbacks == []
    assert {one.op_type for one in cap.dump()} >= {"AddV2"}


@pytest.mark.parametrize("mode", ["input", "output", "all"])
def test_mode_and_layers(capture: Any, mode: str) -> None:
    step = make_step()
    with capture(mode=mode, layers=["layer/Mat*"]) as cap:
        step()
    assert {one.op_name for one in cap.dump()} == {"layer/MatMul"}
    assert {one.io for one in cap.dump()} == ({"input", "output"} if mode == "all" else {mode})


@pytest.mark.parametrize("name", ["bfloat16", "float16", "float64", "complex64", "bool", "int8", "uint16", "int64"])
def test_types(capture: Any, name: str) -> None:
    value = tf.cast(tf.constant([[1, 0]]), name)
    with capture() as cap:
        tf.identity(value)
    [record] = cap.dump().select(io="output")
    assert (record.dtype, record.shape) == (name, (1, 2))
    assert record.numpy().tobytes() == value.numpy().tobytes()


def test_text_resources_and_empty_tensors(capture: Any) -> None:
    with capture() as cap:
        tf.strings.join(["a", "b"])
        tf.identity(tf.zeros([0, 3]))
        tf.Variable(1.0).assign_add(1.0)
    assert cap.dump().errors() == []
    assert [one.shape for one in cap.dump().select(op="Identity", io="output")] == [(0, 3)]
    assert len(cap.dump().select(op="StringJoin")) == 0
    [update] = cap.dump().select(op_type="AssignAddVariableOp")
    assert (update.io, update.index, float(update.numpy())) == ("input", 1, 1.0)


def test_other_threads_are_left_alone(capture: Any) -> None:
    with capture() as cap:
        tf.add(1.0, 2.0)
        thread = threading.Thread(target=lambda: tf.subtract(1.0, 2.0))
        thread.start()
        thread.join()
    assert {one.op_type for one in cap.dump()} == {"AddV2"}


def test_a_failure_of_ours_is_told_once_and_the_program_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    # Private: makes a part fail, which no program can.
    from ascend_dump_tensorflow import _eager
    from tensorflow.python.eager import context

    def fail(*args: Any) -> None:
        raise MemoryError("no memory")

    monkeypatch.setattr(_eager, "payload_of", fail)
    cap = ascend_dump.capture(path=tmp_path / "dumps", framework="tensorflow")
    with caplog.at_level(logging.WARNING, "ascend_dump"), cap:
        assert [float(tf.add(1.0, 2.0)) for _ in range(3)] == [3.0] * 3
        cap.step()
        assert float(tf.add(1.0, 2.0)) == 3.0
    assert caplog.text.count("no memory") == 1
    assert context.context().op_callbacks == []
    assert not tf.config.functions_run_eagerly()


def test_a_capture_that_another_thread_ends_is_over(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    from tensorflow.python.framework import op_callbacks

    cap = ascend_dump.capture(path=tmp_path / "dumps", framework="tensorflow").start()
    tf.add(1.0, 2.0)
    with caplog.at_level(logging.WARNING, "ascend_dump"):
        thread = threading.Thread(target=cap.stop)
        thread.start()
        thread.join()
    assert "another thread" in caplog.text
    count = len(cap.dump())
    tf.add(1.0, 2.0)
    assert len(cap.dump()) == count == 3
    op_callbacks.clear_op_callbacks()


def test_keras_models(capture: Any) -> None:
    def fit(steps: Any) -> tuple[Any, Any]:
        tf.keras.utils.set_random_seed(3)
        model = tf.keras.Sequential([tf.keras.layers.Dense(3, name="d0"), tf.keras.layers.Dense(1, name="d1")])
        model.compile("sgd", "mse")
        model.build((None, 4))
        if steps is None:
            model.fit(X, np.ones((2, 1), "f"), batch_size=1, epochs=1, verbose=0, shuffle=False)
            return model.get_weights(), None
        with capture(steps=steps) as cap:
            model.fit(X, np.ones((2, 1), "f"), batch_size=1, epochs=1, verbose=0, shuffle=False)
        return model.get_weights(), cap

    plain, _ = fit(None)
    weights, cap = fit("0")
    for one, other in zip(plain, weights):
        np.testing.assert_allclose(one, other, rtol=1e-5)
    inputs = [one.numpy() for one in cap.dump().select(op_type="MatMul", io="input", index=0)]
    assert any(one.tobytes() == X[:1].tobytes() for one in inputs)
    assert any(one.tobytes() == X[1:].tobytes() for one in inputs)


def test_a_session_inside_the_block_is_recorded_too(capture: Any) -> None:
    with capture() as cap:
        tf.add(1.0, 2.0)
        with tf.Graph().as_default(), tf.compat.v1.Session() as session:
            session.run(tf.multiply(tf.constant(3.0), 4.0, name="product"))
    assert [float(one.numpy()) for one in cap.dump().select(op="product", io="output")] == [12.0]
    assert len(cap.dump().select(op="AddV2", model="eager")) == 3


def test_the_launcher_says_what_it_does_not_see(tmp_path: Path) -> None:
    program = tmp_path / "train.py"
    program.write_text("import tensorflow as tf\nprint(float(tf.add(1.0, 2.0)))\n")
    done = subprocess.run(
        [sys.executable, str(program)],
        env={**os.environ, "ASCEND_DUMP": f"path={tmp_path / 'dumps'}"},
        capture_output=True,
        text=True,
        timeout=900,
    )
    assert (done.returncode, done.stdout) == (0, "3.0\n")
    assert "created no session" in done.stderr
    assert "capture(framework='tensorflow')" in done.stderr


def test_selected_steps_that_nothing_counts_are_told(capture: Any) -> None:
    with pytest.raises(ascend_dump.CaptureError, match="steps=0-1 has no effect") as told:  # noqa: SIM117
        with capture(steps="0-1"):
            tf.add(X, X)
    assert told.value.code == "AD307"
    with capture(steps="0-1") as cap:
        tf.add(X, X)
        cap.step()
        tf.add(X, X)
    assert cap.dump().known_values("step") == {0, 1}
