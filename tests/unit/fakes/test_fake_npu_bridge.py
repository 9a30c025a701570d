"""The fake npu_bridge on the stand-in for TensorFlow. The same cases run on a real TensorFlow in tests/real."""

from __future__ import annotations

from collections.abc import Iterator
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from ascend_dump import FrameworkMissing, fakes

pytest.register_assert_rewrite("tf_bridge_cases", "tf_bridge_graph_cases")

from tf_bridge_cases import *  # noqa: E402, F403  (the cases, after their asserts are rewritten)
from tf_bridge_cases import VARIABLES, On  # noqa: E402
from tf_bridge_graph_cases import *  # noqa: E402, F403


@pytest.fixture
def on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[On]:
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
    with fakes.install("tensorflow", "npu_bridge", cwd=tmp_path) as npu:
        import tensorflow

        import_module("npu_bridge.npu_init")
        yield On(tensorflow, npu, tmp_path)


def test_without_any_tensorflow_the_import_says_what_to_do(tmp_path: Path) -> None:
    if find_spec("tensorflow") is not None:
        pytest.skip("a real tensorflow is installed here")
    with fakes.install("npu_bridge", cwd=tmp_path), pytest.raises(FrameworkMissing, match="not installed") as missing:
        import_module("npu_bridge.npu_init")
    assert 'fakes.install("tensorflow", "npu_bridge")' in missing.value.hint


def test_another_installation_begins_anew(tmp_path: Path) -> None:
    def run_of_sessions() -> Any:
        return import_module("tensorflow.python.client.session").BaseSession.run

    with fakes.install("tensorflow", cwd=tmp_path):
        alone = run_of_sessions()
    for _ in range(2):
        with fakes.install("tensorflow", "npu_bridge", cwd=tmp_path):
            import tensorflow as tf

            import_module("npu_bridge.npu_init")
            assert tf.get_default_graph().get_operations() == []
            assert run_of_sessions() is not alone
            tf.constant(1.0)
        with fakes.install("tensorflow", cwd=tmp_path):
            assert run_of_sessions() is alone


def test_iterations_of_a_loop_are_set_for_an_operation(on: On) -> None:
    util = import_module("npu_bridge.estimator.npu.util")
    with on.tf.Graph().as_default():
        found = on.tf.constant(1.0)
        assert util.set_iteration_per_loop(None, found.op, 10) is found.op
        with pytest.raises(ValueError, match="the need type is 'Operation'"):
            util.set_iteration_per_loop(None, found, 10)
        with pytest.raises(ValueError, match="positive integer, not 0"):
            util.set_iteration_per_loop(None, found.op, 0)
