"""TensorFlow 2 through npu_device, simulated, on the real TensorFlow: options are taken when the device is opened."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ascend_dump
from ascend_dump import fakes

tf = pytest.importorskip("tensorflow")


def test_functions_on_the_device_are_dumped_without_a_target(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.chdir(tmp_path)
    weight = tf.Variable(np.ones((4, 3), np.float32))

    def step(x: Any) -> Any:
        return tf.reduce_sum(tf.nn.relu(tf.matmul(x, weight, name="mm")), name="end")

    with fakes.install("npu_device"):
        import npu_device

        before = npu_device.global_options().as_dict()
        with (
            caplog.at_level(logging.WARNING, "ascend_dump"),
            ascend_dump.capture(path=tmp_path / "dumps", framework="tensorflow", steps="0|2", layers="mm") as cap,
        ):
            npu_device.open().as_default()
            function = tf.function(step)
            assert [float(function(tf.ones((2, 4)))) for _ in range(4)] == [24.0] * 4
        assert npu_device.global_options().as_dict() == before
        assert "npu_device was opened inside the block" in caplog.text
        records = cap.dump().select(op="mm")
        assert {(one.op_name, one.step, one.io) for one in records} == {
            ("mm", step, io) for step in (0, 2) for io in ("input", "output")
        }
        assert {one.numpy().max() for one in records.select(io="output")} == {4.0}
        with pytest.raises(ascend_dump.ConfigError) as caught:
            ascend_dump.capture(path=tmp_path / "late", framework="tensorflow").start()
        assert caught.value.code == "AD290"
