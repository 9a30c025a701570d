"""What TensorFlow's Estimator refuses and logs; the stand-in and the real TensorFlow are held against it."""

from __future__ import annotations

import logging
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"session_config": 3}, "session_config must be instance of ConfigProto"),
        ({"save_checkpoints_steps": -1}, "save_checkpoints_steps should be >= 0"),
        ({"save_checkpoints_secs": -1}, "save_checkpoints_secs should be >= 0"),
        ({"save_summary_steps": -1}, "save_summary_steps should be >= 0"),
        ({"keep_checkpoint_max": -1}, "keep_checkpoint_max should be >= 0"),
        ({"keep_checkpoint_every_n_hours": 0}, "keep_checkpoint_every_n_hours should be > 0"),
        ({"log_step_count_steps": 0}, "log_step_count_steps should be > 0"),
        ({"tf_random_seed": 1.5}, "tf_random_seed must be integer."),
    ],
)
def test_a_run_config_refuses_what_is_out_of_range(tf: Any, settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=f"^{message}$"):
        tf.estimator.RunConfig(**settings)
    with pytest.raises(ValueError, match=f"^{message}$"):
        tf.estimator.RunConfig().replace(**settings)


def test_one_way_of_saving_replaces_the_other(tf: Any) -> None:
    by_steps = tf.estimator.RunConfig().replace(save_checkpoints_steps=7)
    assert (by_steps.save_checkpoints_steps, by_steps.save_checkpoints_secs) == (7, None)
    by_seconds = by_steps.replace(save_checkpoints_secs=9)
    assert (by_seconds.save_checkpoints_steps, by_seconds.save_checkpoints_secs) == (None, 9)
    with pytest.raises(ValueError, match="cannot be both set"):
        by_steps.replace(save_checkpoints_steps=7, save_checkpoints_secs=9)
    with pytest.raises(ValueError, match=r"Replacing foo is not supported\. Allowed properties are"):
        by_steps.replace(foo=1)
    assert by_steps.replace(log_step_count_steps=3).log_step_count_steps == 3


@pytest.mark.parametrize(
    ("model_fn", "params", "message"),
    [
        (None, None, "model_fn must be provided to Estimator"),
        (lambda labels, mode: None, None, "must include features argument"),
        (lambda features, foo: None, None, "has following not expected args: .'foo'"),
        (lambda features: None, {"a": 1}, "does not include params argument, but params"),
    ],
)
def test_an_estimator_refuses_a_function_that_it_cannot_call(tf: Any, model_fn: Any, params: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        tf.estimator.Estimator(model_fn, params=params)


def test_an_estimator_refuses_two_directories_and_what_is_no_function(tf: Any, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="`model_dir` are set both in constructor and `RunConfig`"):
        tf.estimator.Estimator(lambda features: None, str(tmp_path), tf.estimator.RunConfig(str(tmp_path / "b")))
    with pytest.raises(TypeError, match="unsupported callable"):
        tf.estimator.Estimator(3)


def test_a_spec_must_have_what_its_mode_needs(tf: Any) -> None:
    spec, keys = tf.estimator.EstimatorSpec, tf.estimator.ModeKeys
    loss = tf.constant(1.0)
    for mode, values, message in (
        (keys.TRAIN, {}, "Missing train_op."),
        (keys.TRAIN, {"loss": loss}, "Missing train_op."),
        (keys.TRAIN, {"train_op": loss}, "Missing loss."),
        (keys.EVAL, {}, "Missing loss."),
        (keys.EVAL, {"loss": tf.constant([1.0, 2.0])}, "Loss must be scalar, given: "),
        (keys.PREDICT, {}, "Missing predictions."),
    ):
        with pytest.raises(ValueError, match=message):
            spec(mode, **values)
    for values in ({"loss": 3.0}, {"loss": loss, "predictions": 3}):
        with pytest.raises(TypeError, match="must be Tensor, given: 3"):
            spec(keys.EVAL, **values)
    with pytest.raises(TypeError, match="train_op must be Operation or Tensor, given: 3"):
        spec(keys.TRAIN, loss=loss, train_op=3)


def _data(tf: Any) -> Any:
    return tf.data.Dataset.from_tensors((np.ones((2, 4), np.float32), np.ones((2, 1), np.float32))).repeat()


def _training(tf: Any) -> Any:
    def model_fn(features: Any, labels: Any, mode: str) -> Any:
        loss = tf.losses.mean_squared_error(labels, tf.layers.dense(features, 1))
        train = tf.train.GradientDescentOptimizer(0.1).minimize(loss, tf.train.get_global_step())
        return tf.estimator.EstimatorSpec(mode, loss=loss, train_op=train)

    return model_fn


def test_a_model_function_must_return_a_spec(tf: Any, tmp_path: Path) -> None:
    estimator = tf.estimator.Estimator(lambda features, labels, mode: None, str(tmp_path))
    with pytest.raises(ValueError, match="model_fn should return an EstimatorSpec"):
        estimator.train(lambda: _data(tf), steps=1)


@pytest.mark.parametrize(("every", "lines", "speeds"), [(2, 3, 2), (1, 5, 4), (100, 1, 0), (None, 0, 0)])
def test_the_loss_and_the_speed_are_logged_as_often_as_the_configuration_says(
    tf: Any, tmp_path: Path, every: Any, lines: int, speeds: int
) -> None:
    log, found = logging.getLogger("tensorflow"), []

    class Handler(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            found.append(record.getMessage())

    handler, level = Handler(), log.level
    log.addHandler(handler)
    log.setLevel(logging.INFO)
    try:
        config = tf.estimator.RunConfig(log_step_count_steps=every)
        tf.estimator.Estimator(_training(tf), str(tmp_path), config).train(lambda: _data(tf), steps=5)
    finally:
        log.setLevel(level)
        log.removeHandler(handler)
    assert sum(message.startswith("loss = ") and ", step = " in message for message in found) == lines
    assert sum(re.fullmatch(r"global_step/sec: \d\S*", message) is not None for message in found) == speeds


def test_shapes_are_written_as_tuples(tf: Any) -> None:
    partly, unknown = tf.placeholder(tf.float32, [None, 4]), tf.placeholder(tf.float32)
    tensors = (tf.constant([1.0, 2.0]), tf.constant(1.0), partly, unknown)
    assert [str(tensor.shape) for tensor in tensors] == ["(2,)", "()", "(None, 4)", "<unknown>"]
    assert repr(partly.shape) == "TensorShape([None, 4])"
    with pytest.raises(ValueError, match="Cannot take the length of shape with unknown rank"):
        len(unknown.shape)
