"""The contract of every adapter, kept by the host reference of TensorFlow: of configurations, and of Estimators."""

from __future__ import annotations

import tempfile
from types import MappingProxyType
from typing import Any, Callable

import numpy as np
import pytest
import tensorflow as tf

from ascend_dump.testing.contract import AdapterContract


class Program:
    """A network that trains in one session, which is made at its first step under each configuration."""

    def __init__(self, config: Any) -> None:
        self.config = config
        self._session: Any = None
        self._made_with = b""
        self._graph = tf.Graph()
        with self._graph.as_default():
            x = tf.constant(np.arange(8, dtype="f").reshape(2, 4))
            weight = tf.get_variable("w", [4, 3], initializer=tf.ones_initializer(), use_resource=True)
            self._loss = tf.reduce_mean(tf.square(tf.nn.relu(tf.matmul(x, weight, name="mm"))), name="loss")
            self._train = tf.train.GradientDescentOptimizer(0.01).minimize(self._loss)
            self._init = tf.global_variables_initializer()

    def step(self) -> Any:
        now = self.config.SerializeToString(deterministic=True)
        if self._session is None or now != self._made_with:
            self.close()
            self._session = tf.Session(graph=self._graph, config=self.config)
            self._session.run(self._init)
            self._made_with = now
        return self._session.run([self._loss, self._train])[0]

    def close(self) -> None:
        if self._session is not None:
            self._session.close()


class TestConfigurations(AdapterContract):
    name = "tensorflow"
    bad_request = MappingProxyType({"scene": "watch"})
    # The graph that initialises has a step 0 of its own.
    settings = MappingProxyType({"layers": ["mm", "loss", "gradients/*"]})

    @pytest.fixture
    def make_target(self) -> Callable[[], Any]:
        self.programs: dict[int, Program] = {}

        def make() -> Any:
            config = tf.ConfigProto()
            self.programs[id(config)] = Program(config)
            return config

        return make

    def run_step(self, target: Any) -> Any:
        return self.programs[id(target)].step()

    def parts(self, target: Any) -> dict[str, Any]:
        # A message has no attributes of its own; equal ones have the same text.
        return {"__class__": type(target), "text": _same(target.SerializeToString(deterministic=True))}


class TestEstimators(AdapterContract):
    name = "tensorflow"
    bad_request = MappingProxyType({"scene": "overflow"})
    settings = MappingProxyType({"layers": "mm"})

    @pytest.fixture
    def make_target(self) -> Callable[[], Any]:
        def make() -> Any:
            config = tf.estimator.RunConfig(tf_random_seed=3, save_checkpoints_steps=None, save_checkpoints_secs=10**6)
            return tf.estimator.Estimator(_model, model_dir=tempfile.mkdtemp(), config=config)

        return make

    def run_step(self, target: Any) -> Any:
        target.train(_data, steps=1)
        return target.get_variable_value("w")

    def parts(self, target: Any) -> dict[str, Any]:
        found = super().parts(target)
        config = found.pop("_session_config")
        return {**found, "_session_config": _same(config.SerializeToString(deterministic=True))}

    # Each call of `train` is a session of its own, in which every graph counts from 0.

    def test_unselected_steps_write_nothing(self, capture: Any, make_target: Any) -> None:
        target = make_target()
        with capture(target, steps="1") as cap:
            self.run_step(target)
            assert len(cap.dump()) == 0
            target.train(_data, steps=3)
        assert {record.step for record in cap.dump()} == {1}


def _model(features: Any, labels: Any, mode: Any) -> Any:
    weight = tf.get_variable("w", [4, 1], initializer=tf.ones_initializer())
    loss = tf.reduce_mean(tf.square(tf.matmul(features, weight, name="mm") - labels))
    train = tf.train.GradientDescentOptimizer(0.01).minimize(loss, tf.train.get_or_create_global_step())
    return tf.estimator.EstimatorSpec(mode, loss=loss, train_op=train)


def _data() -> Any:
    return tf.data.Dataset.from_tensors((np.ones((2, 4), "f"), np.zeros((2, 1), "f"))).repeat()


_texts: dict[bytes, bytes] = {}


def _same(text: bytes) -> bytes:
    """The one object for equal texts, as the contract compares identities."""
    return _texts.setdefault(text, text)
