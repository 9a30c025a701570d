"""The fake MindSpore on Ascend (jit_level O0, O1, and O2 of older versions) and on a GPU."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from mindspore_programs import (
    OUT,
    VARIABLE,
    dense_net,
    environment,
    in_graph_mode,
    load,
    names,
    rows,
    settings,
    tensors,
    write_settings,
)

import ascend_dump
from ascend_dump import fakes
from ascend_dump.cli import main
from ascend_dump.fakes.device.npu import Npu


def on_ascend(**context: Any) -> Any:
    return in_graph_mode("Ascend", **context)


def test_ascend_writes_no_parameters_orders_and_metadata(npu, config, tmp_path):
    on_ascend(jit_config={"jit_level": "O1"})
    config()
    dense_net()(rows())
    found = names(tmp_path / OUT)
    assert {name.split("/")[1] for name in found} == {"Net", "graphs"}
    assert all(".DefaultFormat.float32." in name or ".bool." in name or ".int64." in name for name in tensors(tmp_path))
    assert not any("Parameter" in name for name in found)
    assert [one.op_type for one in npu.executed] == ["MatMul", "BiasAdd", "ReLU"]


def test_ascend_writes_statistics_and_arguments(npu, tmp_path):
    on_ascend()
    content = settings(tmp_path / OUT, saved_data="full", statistic_category=["max", "count", "nan count", "md5"])
    content["e2e_dump_settings"]["save_kernel_args"] = True
    with environment(**{VARIABLE: write_settings(tmp_path / "dump.json", content)}):
        dense_net()(rows())
    place = tmp_path / OUT / "rank_0/Net/0/0"
    with open(place / "statistic.csv", newline="") as file:
        [relu] = [row for row in csv.DictReader(file) if row["Op Type"] == "ReLU" and row["IO"] == "output"]
    assert (relu["Max Value"], relu["Count"], relu["Nan Count"], relu["Shape"]) == ("22", "6", "0", "(2,3)")
    assert len(relu["MD5"]) == 32
    arguments = json.loads((place / "MatMul.Default_fc-Dense_MatMul-op0.json").read_text())
    assert arguments == {"transpose_a": "False", "transpose_b": "True"}


@pytest.mark.parametrize("target", ["Ascend", "GPU"])
def test_a_tensor_and_its_statistics_are_one_record(target, npu, config, tmp_path, capsys):
    in_graph_mode(target)
    config(saved_data="full")
    dense_net()(rows())
    files = tensors(tmp_path)
    records = list(ascend_dump.open(tmp_path / OUT))
    assert len(records) == len(files)
    [relu] = [record for record in records if record.op_type == "ReLU" and record.io == "output"]
    assert (relu.statistics().max, relu.numpy().max()) == (22, 22)
    assert main(["stats", str(tmp_path / OUT), "--json"]) == 0
    assert len(json.loads(capsys.readouterr().out)["records"]) == len(files)


def test_ascend_dumps_operators_that_overflow(npu, config, tmp_path):
    on_ascend()
    npu.overflow("Default/relu-ReLU/ReLU-op0")
    config(op_debug_mode=3, overflow_number=1)
    net = dense_net()
    for _ in range(3):
        net(rows())
    assert {(name.split("/")[3], name.split("/")[4].split(".")[0]) for name in tensors(tmp_path)} == {("0", "ReLU")}


def test_ascend_finds_overflow_in_values(npu, config, tmp_path):
    ms = on_ascend()
    config(op_debug_mode=3)

    class Net(ms.nn.Cell):
        def construct(self, x):
            return x * x + 1

    Net()(ms.Tensor(np.array([60000, 1], np.float16)))
    assert {name.split("/")[4].split(".")[0] for name in tensors(tmp_path)} == {"Mul"}


def test_ascend_dumps_the_inputs_of_an_operator_that_fails(npu, config, tmp_path):
    on_ascend()
    npu.fail("Default/fc-Dense/BiasAdd-op0")
    config(op_debug_mode=4)
    with pytest.raises(RuntimeError, match="Launch kernel failed"):
        dense_net()(rows())
    assert [name.split("/")[4].split(".")[0] for name in tensors(tmp_path)] == ["BiasAdd"] * 3
    assert all(".input." in name for name in tensors(tmp_path))


def test_a_device_that_is_not_named_has_no_exception_dump(npu, config, tmp_path):
    on_ascend()
    npu.fail("Default/fc-Dense/BiasAdd-op0")
    config(op_debug_mode=4, support_device=[3])
    with pytest.raises(RuntimeError, match="Launch kernel failed"):
        dense_net()(rows())
    assert tensors(tmp_path) == []


def test_overflow_in_other_iterations_is_not_counted(npu, config, tmp_path):
    on_ascend()
    npu.overflow("Default/relu-ReLU/ReLU-op0")
    config(op_debug_mode=3, overflow_number=1, iteration="1-2")
    net = dense_net()
    for _ in range(3):
        net(rows())
    assert {name.split("/")[3] for name in tensors(tmp_path)} == {"1"}


def test_ascend_has_no_tensors_without_the_block_for_them(npu, tmp_path):
    on_ascend()
    with environment(**{VARIABLE: o2_settings(tmp_path)}):
        dense_net()(rows())
    assert any("otherwise there will be no data" in line for line in npu.log)
    assert tensors(tmp_path) == []


def test_set_dump_chooses_cells_on_ascend_only(npu, config, tmp_path):
    ms = in_graph_mode()
    net = dense_net()
    with pytest.warns(UserWarning, match="not supported by set_dump"):
        ms.set_dump(net.relu)
    with pytest.raises(ValueError, match="must be an instance of Cell or Primitive"):
        ms.tools.set_dump(1)
    ms.set_device("Ascend")
    net = dense_net()
    ms.tools.set_dump(net.relu)
    config(dump_mode=2)
    net(rows())
    assert {name.split("/")[4].split(".")[0] for name in tensors(tmp_path)} == {"ReLU"}


def test_a_device_that_is_not_named_dumps_nothing(npu, config, tmp_path):
    on_ascend()
    config(support_device=[3])
    dense_net()(rows())
    assert tensors(tmp_path) == []
    assert any("device_id:0 not support" in line for line in npu.log)


def test_gpu_writes_constants_and_statistics(npu, config, tmp_path):
    ms = in_graph_mode("GPU")
    held = ms.Tensor(np.ones((4, 2), np.float32))
    config(saved_data="full")

    class Net(ms.nn.Cell):
        def construct(self, x):
            return ms.ops.matmul(x, held)

    net = Net()
    net(rows())
    net(rows())
    constants = [name for name in names(tmp_path / OUT) if "/constants/" in name]
    assert constants == ["rank_0/Net/0/constants/Parameter.data-1.0.0.T.output.0.DefaultFormat.npy"]
    assert (tmp_path / OUT / "rank_0/Net/0/0/statistic.csv").exists()


def test_o2_has_no_dump_since_2_6(npu, config, tmp_path):
    on_ascend(jit_level="O2")
    config()
    dense_net()(rows())
    assert not (tmp_path / OUT).exists()
    assert sum("[Dump Deprecated Alert" in line for line in npu.log) == 3
    # And which fake has the chapter's layout, once in a process.
    assert sum("set ASCEND_DUMP_FAKE_MINDSPORE_VERSION=2.5.0" in line for line in npu.log) == 1


@pytest.fixture
def older(monkeypatch: pytest.MonkeyPatch) -> Iterator[Npu]:
    monkeypatch.setenv("ASCEND_DUMP_FAKE_MINDSPORE_VERSION", "2.4.0")
    monkeypatch.delenv(VARIABLE, raising=False)
    with fakes.install("mindspore", environ={}) as device:
        yield device


def o2_settings(tmp_path: Path, **common: Any) -> str:
    content = settings(tmp_path / OUT, **common)
    del content["e2e_dump_settings"]
    return write_settings(tmp_path / "dump.json", content)


def test_older_o2_lets_the_device_write(older, tmp_path):
    assert on_ascend(jit_level="O2").__version__ == "2.4.0"
    with environment(**{VARIABLE: o2_settings(tmp_path, iteration="0|2")}):
        net = dense_net()
        for _ in range(3):
            net(rows())
    out = tmp_path / OUT
    dump = json.loads((out / "acl_dump_0.json").read_text())["dump"]
    assert dump == {"dump_path": str(out / "2"), "dump_mode": "all", "dump_list": [], "dump_op_switch": "on"}
    records = list(ascend_dump.open(out))
    assert {record.op_type for record in records} == {"MatMul", "BiasAdd", "ReLU"}
    levels = {path.relative_to(out).parts[0] for path in out.rglob("*") if path.is_file() and path.suffix != ".json"}
    assert levels == {"0", "2"}
    [relu] = [one for one in records if one.op_type == "ReLU" and one.io == "output" and out / "2" in one.path.parents]
    assert np.array_equal(relu.numpy(), net(rows()).asnumpy())
    assert not any("ASCEND_DUMP_FAKE_MINDSPORE_VERSION" in line for line in older.log)


def test_older_o2_writes_arrays_and_statistics(older, tmp_path):
    on_ascend(jit_level="O2")
    with environment(**{VARIABLE: o2_settings(tmp_path, file_format="npy", saved_data="full", iteration="0")}):
        result = dense_net()(rows())
    [relu] = (tmp_path / OUT / "0").rglob("ReLU.*.output.0.ND.float32.npy")
    assert np.array_equal(load(relu), result.asnumpy())
    assert "ReLU,Default_relu-ReLU_ReLU-op0" in (relu.parent / "statistic.csv").read_text()
    assert relu.relative_to(tmp_path / OUT).parts[2:5] == ("0", "kernel_graph0", "1")


def test_older_o2_reports_overflow(older, tmp_path):
    on_ascend(jit_level="O2")
    older.overflow("Default/fc-Dense/MatMul-op0")
    with environment(**{VARIABLE: o2_settings(tmp_path, file_format="npy", op_debug_mode=3, overflow_number=1)}):
        net = dense_net()
        net(rows())
        net(rows())
    [report] = (tmp_path / OUT).rglob("Opdebug.Node_OpDebug.*.output.0.json")
    assert json.loads(report.read_text())
    assert {path.name.split(".")[0] for path in (tmp_path / OUT).rglob("*.npy")} == {"MatMul"}
