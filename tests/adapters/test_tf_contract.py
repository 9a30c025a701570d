"""The contract, kept by the adapter `tensorflow` on the stand-in for TensorFlow and the simulated device."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from types import MappingProxyType
from typing import Any, Callable

import numpy as np
import pytest

import ascend_dump
from ascend_dump import fakes
from ascend_dump.testing.contract import AdapterContract


class Application:
    """A program that makes a session when its ConfigProto is another one than before, because sessions copy it."""

    def __init__(self, tf: Any) -> None:
        self._tf = tf
        self._made_with = b"none yet"
        self._session: Any = None
        self._graph = tf.Graph()
        with self._graph.as_default():
            data = tf.data.Dataset.from_tensors(np.arange(8, dtype=np.float32).reshape(2, 4)).repeat()
            weights = tf.get_variable("w", [4, 3], initializer=tf.ones_initializer())
            features = tf.data.make_one_shot_iterator(data).get_next()
            self._loss = tf.reduce_mean(tf.nn.relu(tf.matmul(features, weights, name="mm")), name="loss")
            self._train = tf.train.GradientDescentOptimizer(0.01).minimize(self._loss)
            self._init = tf.global_variables_initializer()

    def step(self, config: Any) -> Any:
        now = config.SerializeToString(deterministic=True)
        if now != self._made_with:
            self.close()
            # npu_bridge changes what it is given.
            self._session = self._tf.Session(graph=self._graph, config=config)
            self._made_with = config.SerializeToString(deterministic=True)
            self._session.run(self._init)
        return self._session.run([self._loss, self._train])[0]

    def close(self) -> None:
        if self._session is not None:
            self._session.close()


class TestTensorflow(AdapterContract):
    name = "tensorflow"
    bad_request = MappingProxyType({"scene": "watch"})

    @pytest.fixture(autouse=True)
    def process(self, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
        for variable in ("DUMP_GRAPH_PATH", "DUMP_GE_GRAPH", "RANK_ID", "NPU_COLLECT_PATH", "ASCEND_WORK_PATH"):
            monkeypatch.delenv(variable, raising=False)
        with fakes.install("tensorflow", "npu_bridge", cwd=tmp_path_factory.mktemp("work")) as self.npu:
            self.tf = import_module("tensorflow")
            self.bridge = import_module("npu_bridge.npu_init")
            self.applications: dict[int, Application] = {}
            yield
            for application in self.applications.values():
                application.close()

    @pytest.fixture
    def make_target(self) -> Callable[[], Any]:
        def make() -> Any:
            config = self.bridge.npu_config_proto(self.tf.ConfigProto())
            self.applications[id(config)] = Application(self.tf)
            return config

        return make

    def run_step(self, target: Any) -> Any:
        return self.applications[id(target)].step(target)

    def parts(self, target: Any) -> dict[str, Any]:
        # Equal settings are the same text.
        return {"settings": sys.intern(target.SerializeToString(deterministic=True).hex())}

    # Beyond the contract: what only this adapter on the device shows.

    def test_the_computational_graph_is_marked(self, capture: Any, make_target: Any) -> None:
        target = make_target()
        with capture(target, mode="all") as cap:
            self.run_step(target)
        dump = cap.dump()
        assert len({record.model for record in dump}) == 2
        (model,) = {record.model for record in dump.select(op="mm")}
        assert [record for record in dump if record.model != model and record.op_name == "w/Assign"]

    def test_the_whole_process_is_captured_without_a_target(self, tmp_path: Path) -> None:
        with ascend_dump.capture(framework="tensorflow", path=tmp_path / "dumps", strict=True, steps="0") as cap:
            Application(self.tf).step(self.tf.ConfigProto())
        assert {record.op_type for record in cap.dump().select(op="mm")} == {"MatMulV2"}

    def test_an_estimators_second_entry_does_not_switch_the_capture_off(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        tf = self.tf
        monkeypatch.setenv("JOB_ID", "10087")

        def model_fn(features: Any, labels: Any, mode: str) -> Any:
            weights = tf.get_variable("w", [4, 1], initializer=tf.ones_initializer())
            loss = tf.reduce_mean(tf.square(tf.matmul(features, weights, name="mm")))
            step = tf.train.get_or_create_global_step()
            train = tf.train.GradientDescentOptimizer(0.01).minimize(loss, step)
            return tf.estimator.EstimatorSpec(mode, loss=loss, train_op=train)

        def input_fn() -> Any:
            data = (np.ones((2, 4), np.float32), np.zeros((2, 1), np.float32))
            return tf.data.Dataset.from_tensors(data).repeat()

        config = self.bridge.NPURunConfig(session_config=tf.ConfigProto(), model_dir=str(tmp_path / "model"))
        with ascend_dump.capture(config, path=tmp_path / "dumps", strict=True, steps="1") as cap:
            self.bridge.NPUEstimator(model_fn=model_fn, config=config).train(input_fn, steps=3)
        assert {record.step for record in cap.dump().select(op="mm")} == {1}
