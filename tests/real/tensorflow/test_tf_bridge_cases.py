"""The cases of the fake npu_bridge on a real TensorFlow, which computes the values that the simulated device dumps."""

from __future__ import annotations

from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import pytest

from ascend_dump import fakes

pytest.register_assert_rewrite("tf_bridge_cases", "tf_bridge_graph_cases")

from tf_bridge_cases import *  # noqa: E402, F403  (the cases, after their asserts are rewritten)
from tf_bridge_cases import VARIABLES, On  # noqa: E402
from tf_bridge_graph_cases import *  # noqa: E402, F403


@pytest.fixture
def on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[On]:
    import tensorflow as tf

    tf.compat.v1.disable_v2_behavior()
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
    with fakes.install("npu_bridge", cwd=tmp_path) as npu:
        import_module("npu_bridge.npu_init")
        yield On(tf.compat.v1, npu, tmp_path)
