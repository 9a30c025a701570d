"""Overflow on MindSpore's Ascend, kernel by kernel: from the settings to the answer of `ascend-dump overflow`."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from mindspore_process import dense_net, graph_mode, step

import ascend_dump
from ascend_dump.cli import Exit, main
from ascend_dump.native.mindspore.config.dump_json import CONFIG_VARIABLE


@pytest.fixture
def ms(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    with graph_mode(monkeypatch, "Ascend") as mindspore:
        yield mindspore


@pytest.fixture
def net(ms: Any) -> Any:
    return dense_net(ms)


def test_no_overflow_is_a_good_result(ms, net, tmp_path, caplog):
    with ascend_dump.capture(net, path=tmp_path, scene="overflow", strict=True) as cap:
        assert json.loads(Path(os.environ[CONFIG_VARIABLE]).read_text())["common_dump_settings"]["op_debug_mode"] == 3
        step(ms, net)
    assert len(cap.dump()) == 0
    assert "wrote nothing" not in caplog.text


def test_operators_that_overflow_are_listed_for_each_capture(ms, net, tmp_path, capsys):
    big = ms.Tensor(np.full((2, 4), 3e38, "f4"))
    for value in (big, big, None):
        with ascend_dump.capture(net, path=tmp_path, scene="overflow", strict=True) as cap:
            step(ms, net)
            if value is not None:
                net(value)
        code = main(["overflow", str(cap.path)])
        out = capsys.readouterr().out
        if value is None:
            assert (code, out) == (Exit.OK, "no overflow: 0 operators checked\n")
        else:
            assert (code, out.split("\n")[0]) == (Exit.DIFFERENT, "1. MatMul Default/0-Dense/MatMul-op0  (first)")
            assert "step 1" in out


@pytest.mark.parametrize("jit_level", ["O0", "O1"])
@pytest.mark.parametrize("config_stays", [True, False])
def test_a_convolution_that_overflowed_is_found_in_a_dump_by_file_and_environment(
    ms: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any, config_stays: bool, jit_level: str
) -> None:
    out, config = tmp_path / "out", tmp_path / "dump.json"
    assert main(["config", "--for", "mindspore", "--scene", "overflow", "--path", str(out), "-o", str(config)]) == 0
    monkeypatch.setenv(CONFIG_VARIABLE, str(config))
    ms.set_context(jit_config={"jit_level": jit_level})
    net = ms.nn.SequentialCell(ms.nn.Conv2d(1, 2, 3, weight_init="ones"), ms.nn.ReLU())
    for value in (1.0, 3e38, 1.0):
        net(ms.Tensor(np.full((1, 1, 4, 4), value, "f4")))
    if not config_stays:  # then the values alone tell
        config.unlink()
    monkeypatch.delenv(CONFIG_VARIABLE)
    capsys.readouterr()
    assert main(["overflow", str(out), "--json"]) == Exit.DIFFERENT
    document = json.loads(capsys.readouterr().out)
    assert document["answer"] == "origin"
    first = document["overflows"][0]
    assert (first["operator"]["op_type"], first["record"]["step"]) == ("Conv2D", 1)
    [output] = [tensor for tensor in first["operator"]["tensors"] if tensor["io"] == "output"]
    assert output["statistics"]["posinf"] == 32
