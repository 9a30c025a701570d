"""Eager NPU dumps: each API call and kernel writes its inputs and outputs apart."""

from __future__ import annotations

import eager_dumps
import numpy as np
import pytest

import ascend_dump
from ascend_dump.cli import main

X = np.arange(6, dtype="f4").reshape(2, 3)


def runs(dump):
    return list(dict.fromkeys(record.execution for record in dump))


def test_inputs_and_outputs_of_a_call_and_its_kernels_are_joined(tmp_path):
    eager_dumps.write_program(tmp_path, start=40, steps=1, ranks=[0])
    names = {}
    for record in ascend_dump.open(tmp_path):
        names.setdefault((record.op_name, record.op_type, record.kernel), []).append(f"{record.io}{record.index}")
    assert names == {
        ("aclnnAdd_0/AddAiCore_0", "aclnnAdd", "AddAiCore"): ["input0", "input1", "output0"],
        ("aclnnAdd_0", "aclnnAdd", None): ["input0", "input1", "output0"],
        ("aclnnInplaceAdd_0/InplaceAdd_0", "aclnnInplaceAdd", "InplaceAdd"): ["input0", "input1", "output0"],
        ("aclnnInplaceAdd_0", "aclnnInplaceAdd", None): ["input0", "input1", "output0"],
        ("aclnnMatmul_0/Cast_0", "aclnnMatmul", "Cast"): ["input0", "output0"],
        ("aclnnMatmul_0/Cast_1", "aclnnMatmul", "Cast"): ["input0", "output0"],
        ("aclnnMatmul_0/MatMulCommon_0", "aclnnMatmul", "MatMulCommon"): ["input0", "input1", "output0"],
        ("aclnnMatmul_0/Cast_2", "aclnnMatmul", "Cast"): ["input0", "output0"],
        ("aclnnMatmul_0", "aclnnMatmul", None): ["input0", "input1", "output0"],
        ("FlashAttentionScore_0", "FlashAttentionScore", None): ["input0", "input1", "output0"],
    }
    dump = ascend_dump.open(tmp_path)
    assert len(runs(dump)) == len(names)
    assert len(dump) == len(list(dump)) == 27
    assert {record.attrs["call_number"] for record in dump.select(op="aclnnMatmul_0*")} == {42}


def test_the_second_call_of_an_api_in_a_step_has_the_next_number(tmp_path):
    npu = eager_dumps.device(tmp_path, number=7)
    for _ in range(2):
        npu.call("aclnnAdd", [X, X], [X + X], [("AddAiCore", [X, X], [X + X])])
        npu.generated("AddCustom", [X, X], [X + X])
    names = list(dict.fromkeys(record.op_name for record in ascend_dump.open(tmp_path)))
    assert names == [
        "aclnnAdd_0/AddAiCore_0",
        "aclnnAdd_0",
        "AddCustom_0",
        "aclnnAdd_1/AddAiCore_0",
        "aclnnAdd_1",
        "AddCustom_1",
    ]
    assert {record.op_name for record in ascend_dump.open(tmp_path).select(op="aclnnAdd_1*")} == {names[3], names[4]}
    assert len(runs(ascend_dump.open(tmp_path).select(op="AddCustom_1"))) == 1


@pytest.mark.parametrize(("mode", "sides"), [("input", {"input"}), ("output", {"output"})])
def test_one_side_alone_is_read_without_errors(tmp_path, mode, sides):
    eager_dumps.write_program(tmp_path, steps=1, ranks=[0], mode=mode)
    dump = ascend_dump.open(tmp_path)
    assert not dump.errors()
    assert {record.io for record in dump} == sides
    assert [record.op_name for record in dump.select(op_type="FlashAttentionScore", index=0)] == [
        "FlashAttentionScore_0"
    ]
    assert len(runs(dump)) == 10


def test_statistics_are_read_call_by_call(tmp_path):
    npu = eager_dumps.device(tmp_path, data="stats")
    npu.call("aclnnAdd", [X, X], [X + X], [("AddAiCore", [X, X], [X + X])])
    npu.call("aclnnAdd", [X, X], [X * 3], [("AddAiCore", [X, X], [X * 3])])
    dump = ascend_dump.open(tmp_path)
    assert len(runs(dump)) == 4
    outputs = dump.select(io="output")
    assert [(record.op_name, record.statistics().max) for record in outputs if record.kernel is None] == [
        ("aclnnAdd_0", 10),
        ("aclnnAdd_1", 15),
    ]


def test_missing_files_leave_the_other_side(tmp_path):
    npu = eager_dumps.device(tmp_path)
    for factor in (1, 2, 3):
        npu.call("aclnnAbs", [X * factor], [X * factor], [("AbsAicore", [X * factor], [X * factor])])
        npu.generated("Custom", [X * factor], [X * factor])
    # Of the second call: the outputs of the kernel and of the call; of the second generated operator the inputs.
    for position in (8, 9, 10):
        npu.files[position].unlink()
    dump = ascend_dump.open(tmp_path)
    sides = {}
    for record in dump:
        sides.setdefault(record.op_name, []).append((record.io, record.numpy().max()))
    assert sides["aclnnAbs_1"] == [("input", 10)]
    assert sides["aclnnAbs_1/AbsAicore_0"] == [("input", 10)]
    assert sides["Custom_1"] == [("output", 10)]
    assert sides["aclnnAbs_2"] == sides["Custom_2"] == [("input", 15), ("output", 15)]


def test_a_broken_file_is_reported_and_the_other_side_is_read(tmp_path):
    npu = eager_dumps.device(tmp_path)
    npu.call("aclnnAbs", [X], [X], [("AbsAicore", [X], [X])])
    npu.files[2].write_bytes(b"\xff" * 30)
    dump = ascend_dump.open(tmp_path)
    assert [(record.op_name, record.kernel) for record in dump.errors()] == [("aclnnAbs_0/AbsAicore_0", "AbsAicore")]
    assert [record.io for record in dump.select(op="aclnnAbs_0/*") if record.error is None] == ["input"]


def test_calls_of_several_threads_and_streams_keep_their_kernels(tmp_path):
    npu = eager_dumps.device(tmp_path)

    def other():
        npu.call("aclnnMul", [X], [X * 5], [("Mul", [X], [X * 5])], stream=8)

    npu.call("aclnnMul", [X], [X * 2], [("Cast", [X], [X]), ("Mul", [X], [X * 2])], between=other)
    dump = ascend_dump.open(tmp_path).select(io="output")
    assert {(record.op_name, record.stream_id, record.numpy().max()) for record in dump} == {
        ("aclnnMul_0/Cast_0", 7, 5),
        ("aclnnMul_0/Mul_0", 7, 10),
        ("aclnnMul_0", 7, 10),
        ("aclnnMul_1/Mul_0", 8, 25),
        ("aclnnMul_1", 8, 25),
    }
    assert len(runs(ascend_dump.open(tmp_path))) == 5


def test_captured_graphs_have_several_numbers_per_operator(tmp_path):
    from ascend_dump.native.cann.dump_file import tensor_of, write
    from ascend_dump.native.cann.names import DumpName, build_name

    rows = [
        ("aclnnAbs_4_L2", "aclnnAbs", "input"),
        ("aclnnAbs_4_L0", "AbsAicore", "input"),
        ("aclnnAbs_4_L0", "AbsAicore", "output"),
        ("aclnnAbs_4_L2", "aclnnAbs", "output"),
    ]
    directory = tmp_path / eager_dumps.RUN / "0"
    directory.mkdir(parents=True)
    for number, (op_type, op_name, io) in enumerate(rows):
        name = DumpName("aclgraph", op_type, op_name, eager_dumps.TIME, 3, 7, dump_number=number)
        write(directory / build_name(name), [tensor_of(io, 0, X)], op_name=op_name, dump_time=eager_dumps.TIME)
    dump = ascend_dump.open(tmp_path)
    assert [(record.op_name, record.io) for record in dump] == [
        ("aclnnAbs_0/AbsAicore_0", "input"),
        ("aclnnAbs_0/AbsAicore_0", "output"),
        ("aclnnAbs_0", "input"),
        ("aclnnAbs_0", "output"),
    ]


def test_files_of_graphs_beside_eager_files_stay_apart(tmp_path):
    npu = eager_dumps.device(tmp_path)
    npu.call("aclnnAbs", [X], [X], [("AbsAicore", [X], [X])])
    npu.write("Conv2D", "conv_1", [X], [X * 2])
    graph = eager_dumps.Device(npu.directory / "graph_1" / "3" / "0", time=npu.time)
    graph.write("MatMul", "aclnn_mm", [X], [X])
    graph.call("aclnnAbs", [X], [X], [("AbsAicore", [X], [X])])
    records = list(ascend_dump.open(tmp_path))
    names = {(record.model, record.op_type, record.op_name, record.kernel) for record in records}
    assert names == {
        (None, "aclnnAbs", "aclnnAbs_0", None),
        (None, "aclnnAbs", "aclnnAbs_0/AbsAicore_0", "AbsAicore"),
        (None, "Conv2D", "conv_1", None),
        ("graph_1", "MatMul", "aclnn_mm", None),
        ("graph_1", "aclnnAbs", "aclnnAbs_0", None),
        ("graph_1", "aclnnAbs", "aclnnAbs_0/AbsAicore_0", "AbsAicore"),
    }


def test_exception_files_of_eager_kernels(tmp_path):
    from ascend_dump.native.cann.dump_file import tensor_of, write

    directory = tmp_path / "extra-info" / "data-dump" / "0"
    directory.mkdir(parents=True)
    names = [
        "exception_info.42.1.1726159207469285",
        "aclnnIndexSelect_0_L0.GatherV3AiCore.1.20250617194708770",
        "aclnnMatmul_4886226_L0.MatMulCommon.3975510.1717053072064889",
        "GatherV2.GatherV21.1.1733469426252033",
    ]
    for name in names:
        tensors = [tensor_of(io, 0, X) for io in ("input", "output")]
        write(directory / name, tensors, op_name=name.split(".")[1], dump_time=eager_dumps.TIME, host=True)
    dump = ascend_dump.open(tmp_path)
    assert {record.attrs["scene"] for record in dump} == {"exception"}
    outputs = {record.path.name: record for record in dump.select(io="output")}
    assert [(outputs[name].op_type, outputs[name].kernel, outputs[name].task_id) for name in names] == [
        ("exception_info", None, 1),
        ("aclnnIndexSelect", "GatherV3AiCore", 1),
        ("aclnnMatmul", "MatMulCommon", 3975510),
        ("GatherV2", None, 1),
    ]
    stamps = [1726159207469285, eager_dumps.TIME, 1717053072064889, 1733469426252033]
    assert [outputs[name].timestamp for name in names] == stamps
    assert "time" in outputs[names[1]].attrs


@pytest.mark.parametrize("type", ["npy", "npz"])
def test_converted_files_have_the_same_names(tmp_path, type):
    eager_dumps.write_program(tmp_path / "dump", steps=1, ranks=[0])
    assert main(["convert", str(tmp_path / "dump"), "--out", str(tmp_path / "out"), "--type", type]) == 0
    sides = [
        [(record.op_name, record.op_type, record.kernel, record.io, record.index) for record in ascend_dump.open(root)]
        for root in (tmp_path / "dump", tmp_path / "out")
    ]
    assert len(sides[0]) == 27
    assert sorted(sides[1], key=str) == sorted(sides[0], key=str)
    assert len(runs(ascend_dump.open(tmp_path / "out"))) == 10
