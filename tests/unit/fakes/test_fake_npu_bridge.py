"""The fake npu_bridge on the stand-in for TensorFlow. The same cases run on a real TensorFlow in tests/real."""

from __future__ import annotations

from collections.abc import Iterator
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

import pytest

from ascend_dump import FrameworkMissing, fakes

pytest.register_assert_rewrite("tf_bridge_cases")

from tf_bridge_cases import *  # noqa: E402, F403  (the cases, after their asserts are rewritten)
from tf_bridge_cases import VARIABLES, On  # noqa: E402


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
    with fakes.install("npu_bridge", cwd=tmp_path), pytest.raises(FrameworkMissing, match="there is none") as missing:
        import_module("npu_bridge.npu_init")
    assert 'fakes.install("tensorflow", "npu_bridge")' in missing.value.hint


def test_another_installation_begins_anew(tmp_path: Path) -> None:
    # Private: the class that is patched is looked at outside of an installation.
    from ascend_dump.fakes.tensorflow._session import BaseSession

    real = BaseSession.run
    for _ in range(2):
        with fakes.install("tensorflow", "npu_bridge", cwd=tmp_path):
            import tensorflow as tf

            import_module("npu_bridge.npu_init")
            assert tf.get_default_graph().get_operations() == []
            assert BaseSession.run is not real
            tf.constant(1.0)
        assert BaseSession.run is real
