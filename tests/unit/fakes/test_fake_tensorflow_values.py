"""The stand-in for TensorFlow at the edges: it computes what TensorFlow does there, or refuses what TensorFlow refuses.

Each of these runs on the real TensorFlow too, but for those at the end.
"""

from __future__ import annotations

import collections
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ascend_dump import NotSupported

X = np.array([[1, -2, 3], [0.5, 0, -1]], np.float32)
INTS = np.array([[1, -2, 3], [5, 0, -7]], np.int32)


def run(tf: Any, fetches: Any, feed: Any = None) -> Any:
    with tf.Session() as session:
        session.run([tf.global_variables_initializer(), tf.local_variables_initializer()])
        return session.run(fetches, feed)


@pytest.mark.parametrize(
    "build",
    [
        lambda tf: tf.constant(INTS) * 2.5,
        lambda tf: 2.5 - tf.constant(INTS),
        lambda tf: tf.constant(X) + tf.constant(X.astype(np.float64)),
        lambda tf: tf.constant(X) * tf.constant(INTS),
        lambda tf: tf.matmul(tf.constant(X), tf.constant(X.T.astype(np.float64))),
        lambda tf: tf.concat([tf.constant(X), tf.constant(INTS)], 0),
        lambda tf: tf.constant(1.5, tf.int32),
        lambda tf: tf.constant([1], tf.bool),
        lambda tf: tf.sqrt(tf.constant(INTS)),
        lambda tf: tf.logical_not(tf.constant(X)),
        lambda tf: tf.reduce_sum(tf.constant([True])),
        lambda tf: tf.assign_add(tf.Variable([1, 2]), [1.5, 2]),
        lambda tf: tf.assign(tf.Variable([1.0]), tf.constant([1])),
    ],
)
def test_types_are_neither_mixed_nor_cut(tf: Any, build: Any) -> None:
    with pytest.raises(TypeError):
        build(tf)


def shape_of_feed(tf: Any) -> Any:
    return tf.reshape(tf.placeholder(tf.float32, [2]), [3])


@pytest.mark.parametrize(
    "build",
    [
        lambda tf: tf.matmul(tf.constant(X), tf.constant(X[0])),
        lambda tf: tf.nn.bias_add(tf.constant(X), tf.constant(X[0, :1])),
        lambda tf: tf.nn.softmax(tf.constant(1.0)),
        lambda tf: tf.nn.sparse_softmax_cross_entropy_with_logits(
            labels=tf.constant([[0], [2]]), logits=tf.constant(X)
        ),
        lambda tf: tf.losses.mean_squared_error(tf.constant(X[:, 0]), tf.constant(X[:, :1])),
        lambda tf: tf.assign(tf.Variable([1.0, 2.0]), [1.0, 2.0, 3.0]),
        lambda tf: tf.assign_add(tf.Variable([1.0, 2.0]), 1.0),
        lambda tf: tf.train.GradientDescentOptimizer(1.0).apply_gradients(
            [(tf.constant([1.0, 1.0]), tf.Variable([[1.0, 2.0], [3.0, 4.0]]))]
        ),
        lambda tf: tf.placeholder(tf.float32, [None, 3]).set_shape([2, 4]),
        lambda tf: tf.constant(None),
        shape_of_feed,
    ],
)
def test_shapes_that_do_not_fit_are_refused(tf: Any, build: Any) -> None:
    with pytest.raises(ValueError):  # noqa: PT011  (the messages differ)
        build(tf)


def test_labels_and_shapes_are_looked_at_in_a_run(tf: Any) -> None:
    labels = tf.placeholder(tf.int32, [None])
    loss = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=tf.constant(X))
    value = tf.placeholder(tf.float32, [None])
    assigned = tf.assign(tf.Variable([1.0, 2.0]), value)
    for fetch, feed in ((loss, {labels: [-1, 0]}), (assigned, {value: [1, 2, 3]})):
        with pytest.raises(tf.errors.InvalidArgumentError):
            run(tf, fetch, feed)


@pytest.mark.parametrize(
    ("build", "expected"),
    [
        (lambda tf: tf.constant([1, 2], shape=[2, 2]), np.array([[1, 2], [2, 2]], np.int32)),
        (lambda tf: tf.constant(2**40), np.int64(2**40)),
        (lambda tf: tf.constant(["é"]), np.array(["é".encode()], object)),
        (lambda tf: tf.zeros(tf.shape(tf.constant(INTS))), np.zeros((2, 3), np.float32)),
        (lambda tf: np.ones(3) * tf.constant(X), X),
        (lambda tf: np.ones(3) * tf.Variable(X), X),
        (lambda tf: tf.constant(X) * np.float64(3), 3 * X),
        (lambda tf: tf.divide(tf.constant([7], tf.int8), tf.constant([2], tf.int8)), np.array([3.5], np.float32)),
        (lambda tf: tf.reduce_max(tf.constant(X[:0]), 0), np.full(3, -np.inf, np.float32)),
        (lambda tf: tf.argmax(tf.constant(X), 1, output_type=tf.int32), np.array([2, 0], np.int32)),
        (lambda tf: tf.convert_to_tensor([tf.constant(1.0), 2]), np.array([1, 2], np.float32)),
        (lambda tf: tf.losses.sparse_softmax_cross_entropy(labels=[[0], [0]], logits=[[2.0], [2.0]]), np.float32(0)),
        (lambda tf: tf.metrics.accuracy(tf.constant([0.2, 0.7]), tf.constant([0.7, 0.7]))[1], np.float32(0.5)),
        (lambda tf: tf.metrics.accuracy(tf.constant([[1], [2]]), tf.constant([1, 2]))[1], np.float32(1)),
        (lambda tf: tf.metrics.mean(tf.constant([1, np.inf], tf.float32))[1], np.float32(np.inf)),
        (lambda tf: tf.metrics.mean(tf.constant([1.0]))[0], np.float32(0)),
        (lambda tf: tf.get_variable("i", [20], tf.int32), np.zeros(20, np.int32)),
        (lambda tf: tf.get_variable("a", initializer=X), X),
        (lambda tf: tf.layers.dense(tf.constant(X), 1, kernel_initializer=tf.ones_initializer()), X.sum(1)[:, None]),
    ],
)
def test_values_are_tensorflows(tf: Any, build: Any, expected: Any) -> None:
    found = run(tf, build(tf))
    assert np.asarray(found).dtype == np.asarray(expected).dtype
    assert np.array_equal(found, expected)


@pytest.mark.parametrize(
    ("shape", "build", "given", "static", "ran"),
    [
        ([None], lambda tf, x: x + tf.constant([1.0, 2.0, 3.0, 4.0]), [4], [4], (4,)),
        ([None, None], lambda tf, x: tf.matmul(x, tf.constant(X)), [1, 2], [None, 3], (1, 3)),
        ([None, 3], lambda tf, x: tf.reshape(x, [-1, 2]), [2, 3], [None, 2], (3, 2)),
        ([None], lambda tf, x: tf.reshape(x, [2, 4]), [8], [2, 4], (2, 4)),
        ([None, None], lambda tf, x: tf.squeeze(x, -1), [5, 1], [None], (5,)),
    ],
)
def test_unknown_sizes_are_any_that_fit(tf: Any, shape: Any, build: Any, given: Any, static: Any, ran: Any) -> None:
    x = tf.placeholder(tf.float32, shape)
    y = build(tf, x)
    assert y.shape.as_list() == static
    assert run(tf, y, {x: np.ones(given)}).shape == ran
    x.set_shape([None for _ in shape])
    assert x.shape.as_list() == shape


@pytest.mark.parametrize("name", ["add", "subtract", "multiply", "divide"])
@pytest.mark.parametrize("repeated", [(1, 3), (2, 1), (1, 1)])
def test_gradients_of_what_is_repeated_in_a_run_are_summed(tf: Any, name: str, repeated: tuple[int, int]) -> None:
    a, b = (tf.placeholder(tf.float64, [None, None]) for _ in range(2))
    y = getattr(tf, name)(a, b)
    found = run(tf, tf.gradients(y, [a, b]), {a: np.full((2, 3), 3.0), b: np.full(repeated, 2.0)})
    one, other = {"add": (1, 1), "subtract": (1, -1), "multiply": (2, 3), "divide": (0.5, -0.75)}[name]
    assert found[0].tolist() == np.full((2, 3), one).tolist()
    assert found[1].tolist() == np.full(repeated, other * 6 / np.prod(repeated)).tolist()


def test_gradients_take_one_source_weights_and_every_reading(tf: Any) -> None:
    x = tf.constant([2.0, 3.0])
    w = tf.Variable(2.0)
    found = [
        tf.gradients(x * x, x)[0],
        tf.gradients(x * x, [x], grad_ys=[tf.constant([10.0, 20.0])])[0],
        tf.gradients(w * w.read_value(), w)[0],
        tf.gradients(x * tf.stop_gradient(x), x)[0],
    ]
    y = x * x
    found.append(tf.gradients([y, y], x)[0])
    assert [each.tolist() for each in run(tf, found)] == [[4, 6], [40, 120], 4, [2, 3], [8, 12]]


def test_graphs_and_sessions_nest(tf: Any) -> None:
    first, second = tf.Graph(), tf.Graph()
    outside = tf.constant(1.0)
    with first.as_default():
        _ = outside + 1.0
        assert tf.get_default_graph() is first
        with second.as_default():
            with first.as_default():
                pass
            assert tf.get_default_graph() is second
    with tf.Session() as one, tf.Session() as other:
        with one.as_default():
            pass
        assert tf.get_default_session() is other
    session = tf.InteractiveSession(graph=first)
    assert tf.get_default_graph() is first
    assert tf.constant(1.0).eval() == 1
    session.close()
    assert tf.get_default_graph() is outside.graph


def test_what_is_fed_is_not_computed_and_mappings_keep_their_kind(tf: Any) -> None:
    y = tf.placeholder(tf.float32, []) * 2.0
    found = run(tf, collections.OrderedDict(y=y), {y: 5.0})
    assert type(found) is collections.OrderedDict
    assert found["y"] == 5


def test_branches_give_what_both_may_be(tf: Any) -> None:
    known = tf.placeholder(tf.bool, [])
    assert tf.cond(known, lambda: tf.zeros([2]), lambda: tf.zeros([3])).shape.as_list() == [None]
    assert not isinstance(tf.cond(known, lambda: [tf.zeros([2])], lambda: [tf.ones([2])]), list)


def test_scopes_of_variables(tf: Any) -> None:
    x = tf.constant(X)
    tf.layers.dense(tf.layers.dense(x, 4), 2)
    for _ in range(2):
        with tf.variable_scope(None, default_name="layer", initializer=tf.constant_initializer(3.0)):
            w = tf.get_variable("w", [2])
    with tf.variable_scope("a") as scope:
        first = tf.get_variable("w", [2])
        scope.reuse_variables()
        assert tf.get_variable("w", [2]) is first
        with pytest.raises(ValueError, match=r"[sS]hape"):
            tf.get_variable("w", [3])
    names = [
        "dense/kernel:0",
        "dense/bias:0",
        "dense_1/kernel:0",
        "dense_1/bias:0",
        "layer/w:0",
        "layer_1/w:0",
        "a/w:0",
    ]
    assert [each.name for each in tf.global_variables()] == names
    assert run(tf, w).tolist() == [3, 3]
    tf.Variable(1.0, collections=["mine", "variables"])
    assert len(tf.trainable_variables()) == len(names) + 1


def test_data_without_an_end_is_shuffled_and_numbers_of_python_are_small(tf: Any) -> None:
    data = tf.data.Dataset.from_tensor_slices(([1, 2, 3], [1.0, 2.0, 3.0])).repeat().shuffle(2).batch(4)
    numbers, others = tf.data.make_one_shot_iterator(data).get_next()
    assert (numbers.dtype, others.dtype) == (tf.int32, tf.float32)
    assert set(run(tf, numbers)) <= {1, 2, 3}


def model_fn(features: Any, labels: Any, mode: str) -> Any:
    import tensorflow as tf

    w = tf.get_variable("w", [4, 1], initializer=tf.zeros_initializer())
    loss = tf.losses.mean_squared_error(labels, tf.matmul(features, w)) * tf.get_default_graph().get_tensor_by_name(
        "k:0"
    )
    train = tf.train.GradientDescentOptimizer(0.1).minimize(loss, tf.train.get_global_step())
    return tf.estimator.EstimatorSpec(mode, loss=loss, train_op=train)


def input_fn() -> Any:
    import tensorflow as tf

    tf.placeholder(tf.float32, [], name="k")
    return tf.data.Dataset.from_tensors((np.eye(4, dtype=np.float32), np.ones((4, 1), np.float32))).repeat()


def test_hooks_feed_and_stop(tf: Any, tmp_path: Path) -> None:
    class Hook(tf.train.SessionRunHook):
        factor = 1.0

        def before_run(self, run_context: Any) -> Any:
            return tf.train.SessionRunArgs(tf.train.get_global_step(), feed_dict={"k:0": self.factor})

        def after_run(self, run_context: Any, run_values: Any) -> None:
            if run_values.results >= 2:
                run_context.request_stop()

    estimator = tf.estimator.Estimator(model_fn, model_dir=str(tmp_path))
    estimator.train(input_fn, hooks=[Hook()], steps=50)
    assert int(estimator.get_variable_value("global_step")) in (2, 3)  # when a hook reads the step is not ordered
    assert "w" in estimator.get_variable_names()
    hook = Hook()
    hook.factor = float("nan")
    with pytest.raises(tf.estimator.NanLossDuringTrainingError):
        estimator.train(input_fn, hooks=[hook], steps=5)
    for wrong in ({"steps": 0}, {"steps": 1, "max_steps": 1}):
        with pytest.raises(ValueError, match="steps"):
            estimator.train(input_fn, **wrong)
    for wrong_model in (
        lambda features, mode: tf.estimator.EstimatorSpec(mode, loss=tf.constant(1.0), train_op=tf.no_op()),
        lambda features, labels, mode: tf.estimator.EstimatorSpec(mode, train_op=tf.no_op()),
    ):
        with pytest.raises(ValueError, match=r"labels|[Mm]issing loss"):
            tf.estimator.Estimator(wrong_model, model_dir=str(tmp_path / "other")).train(input_fn, steps=1)
    with pytest.raises(TypeError):
        tf.estimator.RunConfig(save_checkpoint_steps=5)


def test_keras_goes_on_from_initialised_weights_and_weighs_rows(tf: Any) -> None:
    from tensorflow.python import keras
    from tensorflow.python.keras import backend

    x, y = np.eye(5, 4, dtype=np.float32), np.arange(5, dtype=np.float32)
    with tf.Session() as session:
        model = keras.Sequential([keras.layers.Dense(1, input_shape=(4,), name="d0")])
        model.compile("sgd", "mse")
        session.run(tf.global_variables_initializer())
        session.run(tf.assign(model.weights[0], np.zeros((4, 1))))
        assert backend.get_session() is session
        assert model.evaluate(x, y, batch_size=4, verbose=0) == pytest.approx(float(np.mean(y**2)))
        assert not model.get_weights()[0].any()
        classes = keras.Sequential([keras.layers.Dense(3, activation="softmax", input_shape=(4,), name="d1")])
        classes.compile("sgd", "sparse_categorical_crossentropy")
        classes.set_weights([np.full((4, 3), 1000.0) * [1, 0, 0], np.zeros(3)])
        expected = [1000.0] * 4 + [np.log(3)]
        found = classes.evaluate(x, np.ones((5, 1), np.int32), verbose=0)
        assert found == pytest.approx(float(np.mean(expected)), rel=1e-5)


# The stand-in only.


def test_options_without_an_effect_are_refused(tf: Any, tmp_path: Path) -> None:
    model = tf.keras.Sequential([tf.keras.layers.Dense(1, input_shape=(3,))])
    variable, condition = tf.Variable(1.0), tf.placeholder(tf.bool, [])
    for wrong in (
        lambda: model.compile("sgd", "mse", metrics=["accuracy"]),
        lambda: model.compile("sgd", "sparse_categorical_crossentropy"),
        lambda: model.fit(X, X[:, :1], callbacks=[object()]),
        lambda: tf.get_variable("w", [2], regularizer=tf.reduce_sum),
        lambda: tf.layers.dense(tf.constant(X), 2, kernel_regularizer=tf.reduce_sum),
        lambda: tf.estimator.Estimator(model_fn, warm_start_from=str(tmp_path)),
        lambda: tf.cond(condition, lambda: tf.assign_add(variable, 1.0), lambda: tf.identity(variable)),
        lambda: tf.zeros(tf.placeholder(tf.int32, [2])),
        lambda: tf.constant(X) >= 0,
        lambda: tf.constant(X)[0],
        lambda: variable % 2,
    ):
        with pytest.raises(NotSupported):
            wrong()
