"""The stand-in for TensorFlow by itself: graphs, sessions, gradients, data, Estimator and keras on numpy."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ascend_dump import NotSupported


def run(tf: Any, fetches: Any, feed: Any = None) -> Any:
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        return session.run(fetches, feed)


def test_it_looks_like_tensorflow_1(tf: Any) -> None:
    import tensorflow.compat.v1 as v1
    from tensorflow.python.client import session

    assert tf.__version__.startswith("1.15")
    assert tf.compat.v1 is v1
    assert v1.Session is tf.Session is session.Session
    assert v1.train.GradientDescentOptimizer is tf.train.GradientDescentOptimizer
    assert tf.compat.as_bytes("é") == "é".encode()
    assert not hasattr(tf, "raw_ops")
    with pytest.raises(NotSupported, match="has no 'AdamOptimizer'"):
        _ = tf.train.AdamOptimizer


def test_names_are_made_as_tensorflow_makes_them(tf: Any) -> None:
    x = tf.placeholder(tf.float32, [None, 4], name="x")
    with tf.name_scope("outer"):
        first = tf.square(x)
        second = tf.square(x)
    added = x + 1.0
    assert [each.name for each in (x, first, second, added)] == ["x:0", "outer/Square:0", "outer/Square_1:0", "add:0"]
    assert tf.get_default_graph().get_operation_by_name("add/y").type == "Const"
    assert (added.shape, added.dtype) == ([None, 4], tf.float32)
    with tf.variable_scope("net"):
        w = tf.get_variable("w", [4, 3])
    assert [w.name, w.initializer.name, w.value().name] == ["net/w:0", "net/w/Assign", "net/w/read:0"]
    with tf.variable_scope("net", reuse=True):
        assert tf.get_variable("w") is w
    with tf.variable_scope("net"), pytest.raises(ValueError, match="already exists"):
        tf.get_variable("w", [4, 3])


def test_fetches_keep_their_structure(tf: Any) -> None:
    x = tf.constant([1.0, 2.0], name="x")
    double = x * 2
    assert run(tf, {"a": [x, double], "b": (double.op,)}, None)["b"] == (None,)
    found = run(tf, {"a": [x, "mul:0"]})
    assert found["a"][1].tolist() == [2, 4]
    assert isinstance(run(tf, tf.reduce_sum(x)), np.float32)
    with pytest.raises(TypeError, match="None"):
        run(tf, None)
    with pytest.raises(ValueError, match="nosuch"):
        run(tf, "nosuch:0")


def test_run_options_have_trace_levels(tf: Any) -> None:
    options = tf.RunOptions(trace_level=tf.RunOptions.SOFTWARE_TRACE, timeout_in_ms=5000)
    assert options.SerializeToString() == b"\x08\x01\x10\x88\x27"
    assert tf.RunOptions.FULL_TRACE == 3
    with tf.Session() as session:
        assert session.run(tf.constant(2.0), options=options, run_metadata=tf.RunMetadata()) == 2


def test_what_tensorflow_refuses(tf: Any) -> None:
    x = tf.placeholder(tf.float32, [None, 2], name="x")
    w = tf.get_variable("w", [2])
    with tf.Session() as session:
        with pytest.raises(tf.errors.InvalidArgumentError, match="feed a value"):
            session.run(x)
        with pytest.raises(ValueError, match="Cannot feed"):
            session.run(x, {x: [1.0]})
        with pytest.raises(tf.errors.FailedPreconditionError, match="uninitialized value w"):
            session.run(w)
    with pytest.raises(RuntimeError, match="closed"):
        session.run(x, {x: [[1.0, 2.0]]})
    with pytest.raises(TypeError, match="ConfigProto"):
        tf.Session(config="cpu")
    with pytest.raises(ValueError, match=r"must fit|mismatch|shapes"):
        tf.matmul(x, tf.zeros([3, 1]))
    with tf.Graph().as_default(), pytest.raises(ValueError, match="same graph"):
        tf.concat([tf.constant([1.0]), w], 0)


def numeric_gradient(function: Any, x: np.ndarray) -> np.ndarray:
    """By central differences in double precision."""
    found = np.zeros_like(x)
    for at in np.ndindex(*x.shape):
        moved = [x.copy(), x.copy()]
        moved[0][at] += 1e-6
        moved[1][at] -= 1e-6
        found[at] = (function(moved[0]) - function(moved[1])) / 2e-6
    return found


@pytest.mark.parametrize(
    "build",
    [
        lambda tf, x: tf.square(x) * 3.0 - x / 7.0,
        lambda tf, x: tf.matmul(x, tf.constant(np.arange(12.0).reshape(4, 3) / 5)),
        lambda tf, x: tf.matmul(x, x, transpose_a=True),
        lambda tf, x: tf.nn.relu(x - 0.3) + tf.tanh(x) + tf.sigmoid(x),
        lambda tf, x: tf.exp(x) / tf.log(tf.square(x) + 2.0),
        lambda tf, x: tf.nn.bias_add(x, tf.reduce_sum(x, axis=0)),
        lambda tf, x: tf.reduce_mean(x, axis=1, keepdims=True) * x,
        lambda tf, x: tf.reshape(x, [-1]) * tf.constant(np.arange(8.0)),
        lambda tf, x: tf.nn.sparse_softmax_cross_entropy_with_logits(labels=np.array([1, 3], np.int32), logits=x),
        lambda tf, x: tf.nn.softmax_cross_entropy_with_logits(labels=np.eye(4)[[1, 3]], logits=x),
        lambda tf, x: tf.negative(tf.identity(tf.squeeze(tf.expand_dims(x, 0)))),
    ],
)
def test_gradients_are_those_of_the_function(tf: Any, build: Any) -> None:
    given = np.random.default_rng(3).normal(size=(2, 4))
    x = tf.placeholder(tf.float64, [2, 4], name="x")
    y = tf.reduce_sum(build(tf, x))
    (gradient,) = tf.gradients(y, [x])
    with tf.Session() as session:
        expected = numeric_gradient(lambda value: session.run(y, {x: value}), given)
        assert np.allclose(session.run(gradient, {x: given}), expected, atol=1e-6)


def test_a_gradient_that_is_not_there_is_told(tf: Any) -> None:
    x = tf.placeholder(tf.float32, [2])
    with pytest.raises(NotSupported, match="no gradient of Sqrt"):
        tf.gradients(tf.sqrt(x), [x])


def test_training_is_plain_gradient_descent(tf: Any) -> None:
    x = tf.placeholder(tf.float32, [None, 2], name="x")
    w = tf.get_variable("w", [2, 1], initializer=tf.constant_initializer([[1.0], [2.0]]))
    loss = tf.reduce_mean(tf.square(tf.matmul(x, w)))
    step = tf.train.get_or_create_global_step()
    train = tf.train.GradientDescentOptimizer(0.1).minimize(loss, global_step=step)
    given, weights = np.array([[1.0, 2.0], [3.0, -1.0]], np.float32), np.array([[1.0], [2.0]], np.float32)
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        for _ in range(3):
            assert session.run([loss, train], {x: given})[0] == pytest.approx(float(np.mean((given @ weights) ** 2)))
            weights -= 0.1 * given.T @ (given @ weights)
        assert np.allclose(session.run(w), weights, atol=1e-6)
        assert session.run(step) == 3
    assert train.name == "GradientDescent"


def test_random_initial_values_repeat_and_differ(tf: Any) -> None:
    tf.set_random_seed(7)
    found = []
    a, b = tf.get_variable("a", [50]), tf.get_variable("b", [50], initializer=tf.random_normal_initializer())
    for _ in range(2):
        found.append(run(tf, [a, b]))
    assert (found[0][0] == found[1][0]).all()
    assert not (found[0][0] == found[0][1]).any()
    assert abs(found[0][0]).max() <= (6 / 100) ** 0.5


def test_a_truncated_normal_is_drawn_again_outside_and_not_cut(tf: Any) -> None:
    made = tf.truncated_normal_initializer(stddev=0.5, mean=1.0, seed=3)
    found = abs(run(tf, tf.get_variable("w", [2000], initializer=made)) - 1.0)
    assert found.max() < 1.0
    assert len(np.unique(found)) > 1900
    assert np.isscalar(run(tf, tf.get_variable("s", [], initializer=made)))


def test_a_branch_runs_only_where_it_is_taken(tf: Any) -> None:
    x = tf.placeholder(tf.float32, [])
    counter = tf.get_variable("n", [], initializer=tf.zeros_initializer())
    found = tf.cond(x > 0, lambda: x * 2.0, lambda: tf.identity(counter))
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        assert session.run(found, {x: 3.0}) == 6
        assert session.run(found, {x: -3.0}) == 0


def test_data_sets_end_and_begin_again(tf: Any) -> None:
    data = tf.data.Dataset.from_tensor_slices(({"a": np.arange(5)}, np.arange(5.0))).batch(2).take(3)
    iterator = data.make_initializable_iterator()
    features, labels = iterator.get_next()
    assert (features["a"].shape.as_list(), labels.dtype) == ([None], tf.float64)
    with tf.Session() as session:
        with pytest.raises(tf.errors.FailedPreconditionError, match="has not been initialized"):
            session.run(labels)
        for _ in range(2):
            session.run(iterator.initializer)
            assert [session.run(labels).tolist() for _ in range(3)] == [[0, 1], [2, 3], [4]]
            with pytest.raises(tf.errors.OutOfRangeError):
                session.run(labels)


def test_a_data_set_cannot_be_mapped(tf: Any) -> None:
    with pytest.raises(NotSupported, match=r"no Dataset\.map"):
        tf.data.Dataset.from_tensors(1.0).map(lambda row: row)


def model_fn(features: Any, labels: Any, mode: str, params: Any) -> Any:
    import tensorflow as tf

    predictions = tf.layers.dense(features, 1, name="dense")
    if mode == tf.estimator.ModeKeys.PREDICT:
        return tf.estimator.EstimatorSpec(mode, predictions={"y": predictions})
    loss = tf.losses.mean_squared_error(labels, predictions)
    train = tf.train.GradientDescentOptimizer(params["rate"]).minimize(loss, tf.train.get_global_step())
    metrics = {"mean": tf.metrics.mean(predictions)}
    return tf.estimator.EstimatorSpec(mode, loss=loss, train_op=train, eval_metric_ops=metrics)


def input_fn() -> Any:
    import tensorflow as tf

    return tf.data.Dataset.from_tensors((np.eye(4, dtype=np.float32), np.ones((4, 1), np.float32))).repeat(20)


def test_an_estimator_trains_saves_and_goes_on(tf: Any, tmp_path: Path) -> None:
    calls: list[str] = []

    class Hook(tf.train.SessionRunHook):
        def begin(self) -> None:
            calls.append("begin")

        def before_run(self, run_context: Any) -> Any:
            return tf.train.SessionRunArgs(tf.train.get_global_step())

        def after_run(self, run_context: Any, run_values: Any) -> None:
            calls.append(f"step {run_values.results}")

        def end(self, session: Any) -> None:
            calls.append("end")

    estimator = tf.estimator.Estimator(model_fn, model_dir=str(tmp_path), params={"rate": 0.5})
    estimator.train(input_fn, hooks=[Hook()], steps=3)
    assert calls == ["begin", "step 1", "step 2", "step 3", "end"]
    assert Path(str(estimator.latest_checkpoint())).name == "model.ckpt-3"
    before = estimator.evaluate(input_fn, steps=1)
    again = tf.estimator.Estimator(model_fn, model_dir=str(tmp_path), params={"rate": 0.5})
    again.train(input_fn, steps=100)  # ends with the data
    after = again.evaluate(input_fn)
    assert (before["global_step"], after["global_step"]) == (3, 23)
    assert after["loss"] < before["loss"] < 1
    (first, *_rest) = list(again.predict(input_fn))
    assert first["y"].shape == (1,)
    assert after["mean"] == pytest.approx(np.mean([row["y"] for row in again.predict(input_fn)]), abs=1e-5)


@pytest.mark.parametrize(
    ("settings", "steps"),
    [
        ({}, {0, 7}),
        ({"save_checkpoints_steps": 3}, {0, 3, 6, 7}),
        ({"save_checkpoints_steps": 1, "keep_checkpoint_max": 2}, {6, 7}),
        ({"save_checkpoints_secs": 600}, {0, 7}),
        ({"save_checkpoints_steps": None, "save_checkpoints_secs": None}, set()),
    ],
)
def test_an_estimator_saves_as_often_as_its_configuration_says(
    tf: Any, tmp_path: Path, settings: Any, steps: set[int]
) -> None:
    with pytest.raises(ValueError, match="`save_checkpoints_steps` and `save_checkpoints_secs` cannot be both set"):
        tf.estimator.RunConfig(save_checkpoints_steps=1, save_checkpoints_secs=1)
    config = tf.estimator.RunConfig(**settings)
    tf.estimator.Estimator(model_fn, str(tmp_path), config, {"rate": 0.5}).train(input_fn, steps=7)
    assert {int(path.name.split(".")[1][5:]) for path in tmp_path.glob("model.ckpt-*")} == steps


def test_keras_trains_in_the_session_it_is_given(tf: Any) -> None:
    from tensorflow.python import keras
    from tensorflow.python.keras import backend

    x, y = np.random.default_rng(0).normal(size=(8, 4)).astype(np.float32), np.zeros((8, 1), np.float32)
    model = keras.Sequential(
        [keras.layers.Dense(3, activation="relu", input_shape=(4,), name="d0"), keras.layers.Dense(1, name="d1")]
    )
    model.compile("sgd", "mse")
    with tf.Session() as session:
        backend.set_session(session)
        losses = model.fit(x, y, batch_size=4, epochs=5, verbose=0).history["loss"]
        assert losses == sorted(losses, reverse=True)
        kernel, bias, last, last_bias = model.get_weights()
        expected = np.maximum(x @ kernel + bias, 0) @ last + last_bias
        assert np.allclose(model.predict(x), expected, atol=1e-6)
        assert model.evaluate(x, y, batch_size=8) == pytest.approx(float(np.mean(expected**2)))
    assert [weight.name for weight in model.weights][:2] == ["d0/kernel:0", "d0/bias:0"]


def test_what_keras_lacks_is_told(tf: Any) -> None:
    model = tf.keras.Sequential([tf.keras.layers.Dense(3, input_shape=(4,))])
    for wrong in ({"loss": "hinge"}, {"optimizer": "adam", "loss": "mse"}):
        with pytest.raises(NotSupported):
            model.compile(**wrong)


def test_the_application_ends_with_what_main_returns(tf: Any) -> None:
    with pytest.raises(SystemExit) as end:
        tf.app.run(lambda argv: len(argv), argv=["program", "argument"])
    assert end.value.code == 2


def test_tensors_and_operations_run_in_the_default_session(tf: Any) -> None:
    x = tf.constant([1.0, 4.0])
    counter = tf.get_variable("n", [], initializer=tf.zeros_initializer())
    with pytest.raises(ValueError, match="session"):
        x.eval()
    session = tf.InteractiveSession()
    counter.initializer.run()
    tf.assign_sub(counter, 2.0).op.run()
    assert (counter.eval(), tf.sqrt(x).eval().tolist()) == (-2, [1, 2])
    session.close()
    with tf.Session() as session:
        assert tf.get_default_session() is session
        found = session.run([tf.concat([x, x], 0), tf.transpose([[1, 2]]), tf.stop_gradient(x), tf.reduce_max(x)])
    assert [np.asarray(each).tolist() for each in found] == [[1, 4, 1, 4], [[1], [2]], [1, 4], 4]


def test_metrics_gather_over_batches(tf: Any) -> None:
    labels, predictions = (tf.placeholder(tf.int64, [None]) for _ in range(2))
    value, update = tf.metrics.accuracy(labels, predictions)
    with tf.Session() as session:
        session.run(tf.local_variables_initializer())
        for row in ([1, 1], [1, 0]):
            session.run(update, {labels: [1, 1], predictions: row})
        assert session.run(value) == pytest.approx(0.75)
