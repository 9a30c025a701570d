"""Trees that MindSpore 2.10.0 wrote on a CPU (`tests/data/mindspore`), and what other devices and versions write."""

from __future__ import annotations

import csv
import io
import json
import os
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import places
import pytest
from hypothesis import given
from hypothesis import strategies as st

import ascend_dump
from ascend_dump.native.mindspore.graph import (
    Graph,
    GraphOperator,
    OperatorsByName,
    module_of,
    parse_ir,
    parse_order,
    phase_of,
)
from ascend_dump.native.mindspore.names import NpyName, build_name, parse_levels, parse_name
from ascend_dump.native.mindspore.statistics_csv import parse_statistics
from ascend_dump.native.npy import read_npy_header

DATA = places.DATA / "mindspore"
STAMP = 1795225969886559


def npy(array: Any) -> bytes:
    file = io.BytesIO()
    np.save(file, np.asarray(array))
    return file.getvalue()


def put(directory: Path, array: Any = (1.0, 2.0), **name: Any) -> Path:
    """One tensor as MindSpore names it."""
    parts = NpyName("MatMul", "Default_fc-Dense_MatMul-op0", 0, 0, STAMP, "output", 0, "DefaultFormat", "Float32")
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / build_name(parts._replace(**name))
    path.write_bytes(array if isinstance(array, bytes) else npy(np.asarray(array, "f4")))
    return path


# --- real trees ----------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["bf16", "constants", "conv_iter_0_2", "longname", "model_train", "pynative_jit"])
def test_every_file_of_a_real_tree_is_a_record(name):
    files = set((DATA / name).rglob("*.npy"))
    records = list(ascend_dump.open(DATA / name))
    assert files
    assert {record.path for record in records} == files
    assert len(records) == len(files)
    for record in records:
        assert record.error is None
        assert record.numpy().shape == record.shape
        assert record.numpy().dtype.name == record.dtype
        assert record.rank == 0
        assert record.step == int(record.path.parent.name)
        assert record.model_id == int(record.path.parent.parent.name)
        assert record.model == "Net"


@pytest.mark.parametrize("name", ["bf16", "constants", "conv_iter_0_2", "longname", "model_train", "pynative_jit"])
def test_operators_have_their_full_names_from_the_graph(name):
    for record in ascend_dump.open(DATA / name):
        if record.op_type == "Parameter":
            assert "/" not in record.op_name
        else:
            assert record.op_name.split("/")[0] in ("Default", "Expand", "Gradients")
            assert record.attrs["execution_index"] >= 0
            assert record.attrs["data_type"]
            assert record.op_name.replace("/", "_") in record.path.name or name == "longname"


def test_records_come_in_the_order_they_ran():
    step = ascend_dump.open(DATA / "conv_iter_0_2").select(step=0)
    ran = [record.attrs["execution_index"] for record in step if record.op_type != "Parameter"]
    assert ran == sorted(ran)
    assert max(ran) == 6


def test_a_record_says_where_it_comes_from():
    [record] = ascend_dump.open(DATA / "conv_iter_0_2").select(op="*MatMul-op0", io="output", step=2)
    assert record.op_name == "Default/fc-Dense/MatMul-op0"
    assert record.module == "fc"
    assert record.phase == "forward"
    assert record.source == "/home/user/nets.py:12"
    assert record.attrs["stack"][-1].startswith("/usr/lib/python3.11/site-packages/mindspore/nn/layer/basic.py:")
    assert (record.step, record.task_id, record.stream_id, record.format) == (2, 0, 0, "DefaultFormat")


def test_the_values_are_those_of_the_network():
    dump = ascend_dump.open(DATA / "conv_iter_0_2").select(step=0)
    one = {(record.op_name, record.io, record.index): record.numpy() for record in dump}
    np.testing.assert_array_equal(
        one["Default/relu-ReLU/ReLU-op0", "output", 0], np.maximum(one["Default/relu-ReLU/ReLU-op0", "input", 0], 0)
    )
    x, w = (one["Default/fc-Dense/MatMul-op0", "input", index] for index in (0, 1))
    # Behind a Flatten, which copies nothing, the input still has the shape from before.
    assert x.shape == (2, 2, 3, 3)
    np.testing.assert_allclose(one["Default/fc-Dense/MatMul-op0", "output", 0], x.reshape(2, 18) @ w.T, rtol=1e-5)
    np.testing.assert_array_equal(one["fc.weight", "output", 0], w)


def test_a_selection_by_scope_opens_only_what_may_match():
    dump = ascend_dump.open(DATA / "conv_iter_0_2")
    assert len(dump.select(op="Default/fc-Dense/*")) == 18
    assert len(dump.select(op="Default/fc-Dense/MatMul-op0", io="output")) == 2
    assert len(dump.select(op="fc.weight")) == 2
    assert len(dump.select(op="Default/fc*", step=0)._entries) < len(dump._entries)


def test_bfloat16_is_read_although_numpy_cannot():
    [record] = ascend_dump.open(DATA / "bf16").select(step=0, op_type="Cast", io="input")
    with pytest.raises(ValueError, match="dtype descriptor"):
        np.load(record.path)
    [cast] = ascend_dump.open(DATA / "bf16").select(step=0, op_type="Cast", io="output")
    assert record.dtype == "bfloat16"
    assert record.nbytes == 12
    np.testing.assert_array_equal(record.numpy().astype("f4"), cast.numpy())
    assert record.statistics().max == cast.statistics().max


def test_long_names_are_found_by_the_mapping():
    records = list(ascend_dump.open(DATA / "longname").select(op_type="ReLU", step=0))
    assert [record.path.stem.isdigit() for record in records] == [True, True]
    assert records[0].op_name.endswith("/r-ReLU/ReLU-op0")
    assert records[0].module.endswith("level_two_which_is_long_too.r")


def test_training_has_gradients_an_optimizer_and_its_states():
    dump = ascend_dump.open(DATA / "model_train")
    phases = {record.phase for record in dump}
    assert {"forward", "backward", "other"} <= phases
    gradient = next(record for record in dump if record.phase == "backward" and "conv1" in record.op_name)
    assert gradient.op_name.startswith("Gradients/Default/network-WithLossCell/_backbone-ConvNet/conv1-Conv2d/")
    assert gradient.module == "network._backbone.conv1"
    assert {record.op_name for record in dump} >= {"moments.fc.bias", "learning_rate", "inputs0"}
    [step] = dump.select(op_type="AssignAdd", io="input", index=0)
    # The input of an operator that works in place is copied afterwards.
    assert step.numpy() == 1


def test_each_graph_of_a_process_has_its_own_names():
    dump = ascend_dump.open(DATA / "pynative_jit")
    names = {(record.model_id, record.op_name) for record in dump if record.op_type == "MatMul"}
    assert names == {
        (0, "Default/fc-Dense/MatMul-op0"),
        (3, "Default/fc-Dense/MatMul-op2"),
        (4, "Gradients/Default/fc-Dense/Grad_MatMul/MatMul-op0"),
    }
    # The number of an iteration runs on from graph to graph: the first of graph 3 is 3.
    assert {record.step for record in dump.select(op="Default/fc-Dense/MatMul-op2")} == {3}


def test_private_files_are_read(tmp_path):
    path = put(tmp_path / "rank_0/Net/0/0")
    path.chmod(0o400)
    assert len(ascend_dump.open(tmp_path).errors()) == 0


# --- other trees ---------------------------------------------------------------------------


def test_names_with_and_without_the_type(tmp_path):
    here = tmp_path / "rank_0/Net/0/0"
    put(here, dtype=None)
    put(here, timestamp=STAMP + 1, position=1, dtype="float16", format="NCHW")
    records = list(ascend_dump.open(tmp_path))
    assert [(record.index, record.format) for record in records] == [(0, "DefaultFormat"), (1, "NCHW")]
    assert ["data_type" in record.attrs for record in records] == [False, True]


def test_ranks_and_runs_are_told_apart(tmp_path):
    for rank in (0, 1):
        put(tmp_path / f"worldsize2_global_rank{rank}/20260101120000/rank_{rank}/Net/0/3")
    assert [(record.rank, record.run, record.step) for record in ascend_dump.open(tmp_path)] == [
        (0, "20260101120000", 3),
        (1, "20260101120000", 3),
    ]


def test_a_subdirectory_keeps_rank_step_and_graph(tmp_path):
    place = tmp_path / "rank_2/Net/4/3"
    put(place)
    [record] = ascend_dump.open(place)
    assert (record.rank, record.model_id, record.step) == (2, 4, 3)


def test_constants_belong_to_no_step(tmp_path):
    path = put(tmp_path / "rank_0/Net/1/constants", op_type="Parameter", op_name="data-0")
    [record] = ascend_dump.open(tmp_path)
    assert (record.path, record.step, record.model_id) == (path, None, 1)
    assert record.attrs["constant"] is True


def test_what_was_written_twice_is_told_apart_by_its_time(tmp_path):
    here = tmp_path / "rank_0/Net/0/0"
    for second in (2, 0, 1):
        put(here, [float(second)], timestamp=STAMP + second)
    records = list(ascend_dump.open(tmp_path))
    assert [record.numpy()[0] for record in records] == [0, 1, 2]
    assert [record.attrs.get("occurrence", 0) for record in records] == [0, 1, 2]
    assert len({record.timestamp for record in records}) == 3


def test_arguments_of_an_operator_are_beside_its_tensors(tmp_path):
    here = tmp_path / "rank_0/Net/0/0"
    put(here)
    (here / "MatMul.Default_fc-Dense_MatMul-op0.json").write_text('{"transpose_a": "False", "transpose_b": "True"}')
    [record] = ascend_dump.open(tmp_path)
    assert record.attrs["kernel_args"] == {"transpose_a": "False", "transpose_b": "True"}


HEADER = (
    "Op Type,Op Name,Task ID,Stream ID,Timestamp,IO,Slot,Data Size,Data Type,Shape,Max Value,Min Value,L2Norm Value,MD5"
)


def statistic(here: Path, *rows: str) -> None:
    here.mkdir(parents=True, exist_ok=True)
    (here / "statistic.csv").write_text("\n".join([HEADER, *rows, ""]))


def test_statistics_without_tensors(tmp_path):
    here = tmp_path / "rank_0/Net/0/0"
    statistic(
        here,
        f'MatMul,Default_fc-Dense_MatMul-op0,0,0,{STAMP},output,0,24,float32,"(2,3,)",5.5,-1,7.25,d41d8cd98f00b204e9800998ecf8427e',
        f'Cast,Default/Cast-op0,0,0,{STAMP},input,1,4,BFloat16,"()",nan,nan,nan,',
    )
    one, other = sorted(ascend_dump.open(tmp_path), key=lambda record: record.op_type, reverse=True)
    assert (one.op_type, one.io, one.dtype, one.shape, one.nbytes) == ("MatMul", "output", "float32", (2, 3), 24)
    found = one.statistics()
    assert (found.count, found.max, found.min, found.l2norm, found.mean) == (6, 5.5, -1, 7.25, None)
    assert one.attrs["statistics"] == {"md5": "d41d8cd98f00b204e9800998ecf8427e"}
    with pytest.raises(ascend_dump.AscendDumpError, match="statistics only"):
        one.numpy()
    assert (other.op_name, other.index, other.dtype, other.shape) == ("Default/Cast-op0", 1, "bfloat16", ())
    assert other.statistics().max is None


def test_statistics_beside_tensors_are_those_of_the_tensors(tmp_path):
    here = tmp_path / "rank_0/Net/0/0"
    put(here)
    statistic(
        here,
        f'MatMul,Default/fc-Dense/MatMul-op0,0,0,{STAMP},output,0,8,float32,"(2,)",99,98,97,',
        f'MatMul,Default/fc-Dense/MatMul-op0,0,0,{STAMP},output,1,8,float32,"(2,)",1,1,1,',
    )
    records = list(ascend_dump.open(tmp_path).select(index=0))
    assert len(records) == 1
    assert records[0].statistics().max == 99
    np.testing.assert_array_equal(records[0].numpy(), [1, 2])
    assert len(ascend_dump.open(tmp_path)) == 2


def test_statistics_with_other_timestamps_are_joined_by_occurrence(tmp_path):
    """As the device computes them: each line has a stream and a timestamp of its own."""
    here = tmp_path / "rank_0/Net/0/0"
    line = 'MatMul,Default/fc-Dense/MatMul-op0,0,3,{},output,0,8,float32,"(2,)",{},1,1,'
    for second in (0, 20):
        put(here, [float(second)] * 2, timestamp=STAMP + second)
    put(here, timestamp=STAMP + 4, position=1)
    other = 'MatMul,Default/fc-Dense/MatMul-op0,0,3,{},output,1,8,float32,"(2,)",{},1,1,'
    statistic(
        here, line.format(STAMP + 25, 20), line.format(STAMP + 5, 0), *(other.format(STAMP + n, n) for n in (6, 7))
    )
    dump = ascend_dump.open(tmp_path)
    assert [(one.numpy()[0], one.statistics().max) for one in dump.select(index=0)] == [(0, 0), (20, 20)]
    # One file and two lines: which line is the file's is not known.
    assert sorted(one.statistics().max for one in dump.select(index=1)) == [2, 6, 7]


def test_broken_lines_leave_the_others(tmp_path):
    here = tmp_path / "rank_0/Net/0/0"
    good = f'MatMul,Default/a-op0,0,0,{STAMP},output,0,8,float32,"(2,)",1,1,1,'
    statistic(here, "MatMul,a", good.replace(",output,", ",sideways,"), good.replace('"(2,)"', '"(x,)"'), good)
    dump = ascend_dump.open(tmp_path)
    assert len(dump.errors()) == 2
    assert all("line" in str(record.error) for record in dump.errors())
    (here / "statistic.csv").write_text("a,b\n1,2\n")
    [record] = ascend_dump.open(tmp_path)
    assert "header" in str(record.error)


def test_of_many_broken_lines_of_statistics_a_thousand_are_listed(tmp_path):
    here = tmp_path / "rank_0/Net/0/0"
    good = f'MatMul,Default/a-op0,0,0,{STAMP},output,0,8,float32,"(2,)",1,1,1,'
    statistic(here, *["a"] * 5000, good)
    dump = ascend_dump.open(tmp_path)
    assert len(dump.errors()) == 1000
    assert "no others after it are listed" in str(dump.errors()[-1].error)
    assert [record.op_type for record in dump if record.error is None] == ["MatMul"]


def test_the_first_lines_of_long_statistics_are_read_without_the_others(tmp_path):
    here = tmp_path / "rank_0/Net/0/0"
    good = f'MatMul,Default/a-op0,0,0,{STAMP},output,0,8,float32,"(2,)",1,1,1,'
    statistic(here, *[good] * 50_000)
    dump = ascend_dump.open(tmp_path)
    tracemalloc.start()
    try:
        assert next(iter(dump)).statistics().max == 1
        assert tracemalloc.get_traced_memory()[1] < 2_000_000
    finally:
        tracemalloc.stop()
    assert len(dump) == 50_000


def test_lines_without_tensors_find_their_operators_in_the_graph(tmp_path):
    statistic(tmp_path / "rank_0/Net/0/0", *[f"ReLU,Default_x_ReLU-op{n},0,0,{STAMP},output,0,8,,,,,," for n in (7, 8)])
    order = tmp_path / "rank_0/execution_order"
    order.mkdir()
    (order / "ms_execution_order_graph_0.csv").write_text("Default/x/ReLU-op0\nDefault/x/ReLU-op1\n")
    found = [(record.op_name, record.attrs["execution_index"]) for record in ascend_dump.open(tmp_path)]
    assert found == [("Default/x/ReLU-op7", 0), ("Default/x/ReLU-op8", 1)]


def test_a_shape_that_no_tensor_has_is_refused_before_it_is_multiplied(tmp_path):
    shape = "9223372036854775807 " * 3000
    statistic(tmp_path / "rank_0/Net/0/0", f"MatMul,a,0,0,{STAMP},output,0,8,float32,{shape},1,1,1,")
    [record] = ascend_dump.open(tmp_path)
    assert "a shape of 3000 dimensions" in str(record.error)


def test_the_tree_of_ge_has_the_same_names(tmp_path):
    place = tmp_path / "7/20260101120000/3/kernel_graph0/1/0"
    put(place, dtype="float16", task_id=4, stream_id=5)
    (place / f"Opdebug.Node_OpDebug.59.3.{STAMP}.output.0.json").write_text('{"AI Core": {"status": 32}}')
    dump = ascend_dump.open(tmp_path)
    [record] = dump.select(op_type="MatMul")
    assert (record.step, record.run, record.device) == (7, "20260101120000", 3)
    assert (record.model, record.model_id, record.task_id, record.stream_id) == ("kernel_graph0", 1, 4, 5)
    [overflow] = dump.select(op_type="Opdebug")
    assert overflow.attrs["scene"] == "overflow"
    assert overflow.attrs["overflow"] == {"AI Core": {"status": 32}}
    [unit] = overflow.attrs["units"]
    assert (unit["name"], unit["status"], unit["operator"]) == ("AI Core", [32], None)
    assert (overflow.task_id, overflow.stream_id) == (59, 3)
    (place / f"Opdebug.Node_OpDebug.59.3.{STAMP}.output.0.json").write_text("[")
    [overflow] = ascend_dump.open(tmp_path).select(op_type="Opdebug")
    assert overflow.error is not None


def test_a_dump_of_graphs_alone_is_one_without_records(tmp_path):
    for name in ("graphs/ms_output_trace_code_graph_0.ir", "execution_order/ms_global_execution_order_graph_0.csv"):
        (tmp_path / "rank_0" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "rank_0" / name).write_text("")
    assert len(ascend_dump.open(tmp_path)) == 0


# --- hostile and broken files --------------------------------------------------------------

GOOD = npy(np.arange(6, dtype="f4").reshape(2, 3))


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "begin like an npy"),
        (GOOD[:40], "within its header"),
        (GOOD[:-4], "needs 24 bytes"),
        (b"PK" + GOOD, "begin like an npy"),
        (GOOD[:6] + b"\x09" + GOOD[7:], "begin like an npy"),
        (GOOD[:6] + b"\x02\x00\xff\xff\xff\x7f" + GOOD[12:], "claims"),
        (GOOD.replace(b"<f4", b"|O8"), "type"),
        (GOOD.replace(b"'<f4'", b"[1,2]"), "type"),
        (GOOD.replace(b"(2, 3)", b"(-2,3)"), "expected a tuple of lengths"),
        (GOOD.replace(b"(2, 3)", b"'abc' "), "expected a tuple of lengths"),
        (GOOD.replace(b"'descr'", b"'dexxr'"), "not valid for an npy"),
        (GOOD.replace(b"{'descr'", b"f('descr'"), "not valid for an npy"),
    ],
)
def test_a_broken_file_is_one_unreadable_record(data, reason, tmp_path):
    here = tmp_path / "rank_0/Net/0/0"
    put(here, data)
    put(here, GOOD, timestamp=STAMP + 1)
    bad, good = ascend_dump.open(tmp_path)
    assert reason in str(bad.error)
    assert bad.op_type == "MatMul"
    with pytest.raises(ascend_dump.CorruptDump):
        bad.numpy()
    np.testing.assert_array_equal(good.numpy(), [[0, 1, 2], [3, 4, 5]])


def test_a_link_to_elsewhere_is_passed_over(tmp_path):
    secret = tmp_path / "secret"
    secret.write_text("# Fullname with scope: (Default/stolen-op0)\n")
    root = tmp_path / "dump"
    put(root / "rank_0/Net/0/0")
    (root / "rank_0/graphs").mkdir()
    (root / "rank_0/graphs/ms_output_trace_code_graph_0.ir").symlink_to(secret)
    [record] = ascend_dump.open(root)
    assert record.op_name == "Default_fc-Dense_MatMul-op0"


def test_a_large_tensor_is_mapped_and_read_only(tmp_path):
    array = np.arange(400_000, dtype="f4").reshape(1000, 400)
    put(tmp_path / "rank_0/Net/0/0", npy(array))
    put(tmp_path / "rank_0/Net/0/1", npy(np.asfortranarray(array)))
    for record in ascend_dump.open(tmp_path):
        found = record.numpy()
        np.testing.assert_array_equal(found, array)
        assert not found.flags.writeable
        with pytest.raises(ascend_dump.AscendDumpError):
            record.numpy(format="NC1HWC0")


@given(st.binary(max_size=300))
def test_any_bytes_as_a_header_are_refused_not_run(tmp_path_factory, data):
    path = tmp_path_factory.mktemp("npy") / "x.npy"
    path.write_bytes(GOOD[:10] + data)
    try:
        found = read_npy_header(path)
    except ascend_dump.CorruptDump:
        return
    assert found.nbytes <= path.stat().st_size


@given(st.text(max_size=400))
def test_any_text_is_a_graph_an_order_and_statistics(text):
    lines = text.splitlines(keepends=True)
    parse_ir(lines)
    parse_order(lines)
    list(parse_statistics(lines))
    list(parse_statistics([HEADER, *lines]))


@given(
    st.from_regex(r"[A-Za-z][A-Za-z0-9]{0,8}", fullmatch=True),
    st.from_regex(r"[A-Za-z][A-Za-z0-9_.\-]{0,20}[a-z0-9]", fullmatch=True),
    st.integers(0, 10**10 - 1),
    st.sampled_from(["input", "output"]),
    st.sampled_from([None, "Float32", "bfloat16"]),
)
def test_names_survive_a_round_trip(op_type, op_name, number, side, dtype):
    name = NpyName(op_type, op_name, number, 3, STAMP, side, 2, "NCHW", dtype)
    assert parse_name(build_name(name)) == name


@given(st.text(max_size=80))
def test_any_name_is_parsed_or_refused(text):
    parse_name(text + ".npy")
    parse_levels(text.split("/"))


# --- names and graphs ----------------------------------------------------------------------


def test_both_spellings_of_the_graph_are_read():
    new = """
%para1_fc.bias: <Ref[Tensor[Float32]], (3)>
      # Fullname with scope: (Default/conv3-Conv2d/Conv2D-op12)
      # In file /u/net.py:10~12, 4~36/    def construct(self,x):/
      # In file /u/net.py:175, 8~30/        x = self.conv3(x)/
      # In file /usr/lib/site-packages/mindspore/nn/layer/conv.py:372~376, 4~21/    def construct(self, x):/
"""
    old = """
      : full_name_with_scope: (Default/conv3-Conv2d/Conv2D-op12)
      # In file ./net.py(175)/        x = self.conv3(x)/
"""
    [operator], parameters = parse_ir(new.splitlines())
    assert operator.name == "Default/conv3-Conv2d/Conv2D-op12"
    assert operator.source == "/u/net.py:175"
    assert parameters == ["fc.bias"]
    [operator], _ = parse_ir(old.splitlines())
    assert (operator.name, operator.source) == ("Default/conv3-Conv2d/Conv2D-op12", "./net.py:175")


def test_the_number_of_a_later_graph_begins_anew_in_its_text():
    graph = Graph([GraphOperator("Default/relu-ReLU/ReLU-op0", 4), GraphOperator("Default/relu-ReLU/ReLU-op1", 5)])
    there = ["Default_relu-ReLU_ReLU-op2", "Default_relu-ReLU_ReLU-op3"]
    full, operator = graph.among(there).find(there[1])
    assert (full, operator.name, operator.position) == ("Default/relu-ReLU/ReLU-op3", "Default/relu-ReLU/ReLU-op1", 5)
    # With some of them left out it cannot be told which one this is.
    assert graph.among(there[1:]).find(there[1]) is None
    single = Graph([GraphOperator("Default/relu-ReLU/ReLU-op0", 4)])
    name = "Default_relu-ReLU_ReLU-op7"
    assert single.among([name]).find(name)[0] == "Default/relu-ReLU/ReLU-op7"


def test_numbers_of_names_are_compared_with_the_graph_once_however_many_names_there_are():
    class Counted(list):
        reads = 0

        def __iter__(self):
            self.reads += 1
            return super().__iter__()

    numbers = Counted(range(100))
    names = [f"a-op{number}" for number in numbers]
    operators = {name: GraphOperator(name) for name in names}
    found = OperatorsByName({"a-op": {"a-op": numbers}}, operators, names)
    numbers.reads = 0
    assert [found.find(name) for name in names] == [(name, operators[name]) for name in names]
    assert numbers.reads < 5


def test_two_names_that_look_alike_in_files_are_not_guessed():
    graph = Graph([GraphOperator("Default/a_b/ReLU-op0"), GraphOperator("Default/a/b/ReLU-op0")])
    assert graph.among([]).find("Default_a_b_ReLU-op0") is None
    assert Graph([], ["a.b", "a_b"]).parameter("a_b") == "a_b"


@pytest.mark.parametrize(
    ("name", "phase", "module"),
    [
        ("Default/network-WithLossCell/_backbone-Net/fc-Dense/MatMul-op0", "forward", "network._backbone.fc"),
        ("Gradients/Default/fc-Dense/Grad_MatMul/MatMul-op0", "backward", "fc"),
        ("Default/optimizer-Momentum/AssignAdd-op0", "other", "optimizer"),
        ("Expand/_MatMulExt/MatMul-op0", None, None),
        ("Default/Cast-op0", "forward", None),
    ],
)
def test_scope_tells_phase_and_module(name, phase, module):
    assert (phase_of(name), module_of(name)) == (phase, module)


@pytest.mark.parametrize(
    "name",
    [
        "Add.Add_1.3.7.1589195081588018.output.0.npy",
        "Conv2D.x.2.7.161243956333802.input.0.32x256x13x13.npy",
        "MatMul.a.0.0.1.sideways.0.DefaultFormat.Float32.npy",
        "MatMul.a.0.0.x.output.0.DefaultFormat.Float32.npy",
        "a.npy",
        "MatMul.a.0.0.1.output.0.DefaultFormat.Float32.bin",
    ],
)
def test_other_names_are_left_to_others(name):
    assert parse_name(name) is None


def test_the_place_of_a_file():
    assert parse_levels(("rank_3", "Net", "1", "7"))[:4] == (3, "Net", 1, 7)
    assert parse_levels(("rank_3", "Net", "1", "constants")).constants
    for levels in (("rank_3", "Net", "1", "x"), ("rank_3", "Net"), ("Net", "1", "7"), ("rank_3", "Net", "1", "7", "8")):
        assert parse_levels(levels).graph is None


def test_csv_of_the_reader_is_csv():
    row = next(csv.reader([f'A,b,0,0,{STAMP},input,0,4,Int8,"(1,2,)",1,2,3,4']))
    [parsed] = parse_statistics([HEADER, ",".join([*row[:9], f'"{row[9]}"', *row[10:]])])
    assert parsed.shape == (1, 2)
    assert dict(parsed.values)["max value"] == 1


def test_json_that_is_no_argument_list_is_ignored(tmp_path):
    here = tmp_path / "rank_0/Net/0/0"
    put(here)
    (here / "MatMul.Default_fc-Dense_MatMul-op0.json").write_text(json.dumps([1]))
    os.symlink("/etc/hostname", here / "MatMul.other.json")
    [record] = ascend_dump.open(tmp_path)
    assert "kernel_args" not in record.attrs
