"""A disk that fills up while MindSpore dumps: its error is the program's, and what was written stays."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

import ascend_dump
from ascend_dump import fakes
from ascend_dump.native.mindspore.config.dump_json import CONFIG_VARIABLE


def test_what_was_written_before_the_disk_was_full_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (CONFIG_VARIABLE, "RANK", "RANK_ID", "RANK_SIZE", "MS_WORKER_NUM", "DEVICE_ID"):
        monkeypatch.delenv(name, raising=False)
    with fakes.install("mindspore") as npu:
        import mindspore

        mindspore.set_context(mode=mindspore.GRAPH_MODE)
        mindspore.set_device("CPU")
        net = mindspore.nn.SequentialCell(mindspore.nn.Dense(4, 128, weight_init="ones"), mindspore.nn.ReLU())
        rows = mindspore.Tensor(np.ones((2, 4), "f4"))
        with ascend_dump.capture(net, path=tmp_path) as cap:
            net(rows)
            npu.fill_disk(0)
            with pytest.raises(RuntimeError, match="insufficient disk space"):
                net(rows)
        first = cap.dump().select(step=0)
        assert len(first) > 0
        assert all(record.numpy().size > 0 for record in first)
    assert CONFIG_VARIABLE not in os.environ


def test_small_files_that_a_full_disk_lost_are_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.delenv(CONFIG_VARIABLE, raising=False)
    with fakes.install("mindspore") as npu:
        import mindspore

        mindspore.set_context(mode=mindspore.GRAPH_MODE)
        mindspore.set_device("CPU")
        net = mindspore.nn.SequentialCell(mindspore.nn.Dense(4, 2, weight_init="ones"), mindspore.nn.ReLU())
        rows = mindspore.Tensor(np.ones((2, 4), "f4"))
        for strict in (False, True):
            caplog.clear()
            cap = ascend_dump.capture(net, path=tmp_path, strict=strict).start()
            net(rows)
            npu.fill_disk(0)
            # No tensor is large enough for MindSpore to raise.
            net(rows)
            npu.fill_disk(None)
            if strict:
                with pytest.raises(ascend_dump.WriteError, match="files of the dump are empty") as caught:
                    cap.stop()
                assert caught.value.code == "AD330"
            else:
                cap.stop()
                assert "AD330" in caplog.text
            lost = {record.path for record in cap.dump().errors()}
            assert lost
            assert {record.step for record in cap.dump() if record.path not in lost} == {0}
