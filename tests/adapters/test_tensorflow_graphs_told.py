"""A warning names several graphs of one session in one dump, against which TensorFlow's document advises."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ascend_dump
from ascend_dump import fakes


@pytest.fixture
def tf(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Any]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("JOB_ID", "10087")
    with fakes.install("tensorflow", "npu_bridge", force=True):
        import npu_bridge.npu_init  # noqa: F401  (sessions are watched from its import on)
        import tensorflow

        yield tensorflow


@pytest.mark.parametrize(("beside", "told"), [(True, True), (False, False)])
def test_a_second_graph_that_runs_again_and_again(
    tf: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture, beside: bool, told: bool
) -> None:
    caplog.set_level(logging.WARNING, "ascend_dump")
    with (
        ascend_dump.capture(path=tmp_path / "dumps", framework="tensorflow", steps="0|1") as cap,
        tf.Graph().as_default(),
    ):
        x = tf.placeholder(tf.float32, [2, 2])
        one, other = tf.matmul(x, x, name="mm"), tf.nn.relu(x, name="act")
        with tf.Session(config=tf.ConfigProto()) as session:
            for _ in range(2):
                session.run(one, {x: np.ones((2, 2), np.float32)})
                if beside:
                    session.run(other, {x: np.ones((2, 2), np.float32)})
    assert {record.step for record in cap.dump().select(op="mm")} == {0, 1}
    assert ("AD351" in caplog.text) is told
