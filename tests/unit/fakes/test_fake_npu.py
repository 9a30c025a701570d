"""The simulated device writes what CANN writes, and what it writes reads back."""

from __future__ import annotations

import json
import stat

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import ascend_dump
from ascend_dump import ConfigError
from ascend_dump.fakes.device.npu import ApiCall, Kernel, NodeInfo, Npu, OperatorFailed

# Private: the device's reading of steps by itself, with any text.
from ascend_dump.fakes.device.select import parse_steps
from ascend_dump.native.cann.dump_file import read_header
from ascend_dump.native.cann.mapping import hashed_name, read_mapping
from ascend_dump.native.cann.names import parse_name

X = np.arange(6, dtype="f4").reshape(2, 3)
Y = X * 2
OPS = (
    NodeInfo("x", "Data"),
    NodeInfo("conv", "Conv2D", ("x:0",), original_names=("conv1", "bn1")),
    NodeInfo("net/relu.1", "Relu", ("conv:0",)),
    NodeInfo("flat", "Reshape", ("net/relu.1:0",)),
    NodeInfo("quiet", "Mul", ("flat:0",), no_task=True),
    NodeInfo("fc", "MatMulV2", ("quiet:0",)),
)


class Clock:
    """A clock that ticks by a millisecond each time it is read."""

    def __init__(self, now=1_700_000_000.0):
        self.now = now

    def __call__(self):
        self.now += 0.001
        return self.now


@pytest.fixture
def npu(tmp_path):
    return Npu(environ={}, cwd=tmp_path, clock=Clock(), device_id=3)


@pytest.fixture
def arm(npu, tmp_path):
    """Arm through a dump JSON below a fresh directory `d`, which is returned."""

    def call(code=0, **keys):
        (tmp_path / "d").mkdir(exist_ok=True)
        dump = {"dump_path": str(tmp_path / "d"), **keys}
        if not {"dump_list", "dump_debug", "dump_op_switch"} & set(keys):
            dump["dump_list"] = [{}]
        (tmp_path / "acl.json").write_text(json.dumps({"dump": dump}))
        assert npu.arm_acl(tmp_path / "acl.json") == code
        return tmp_path / "d"

    return call


def run_model(npu, *, steps=(0,), name="net", om_name=None, ops=OPS, outputs=(Y,), **built):
    """Load a model and run its operators once for each step; the model's id."""
    loaded = npu.load_model(name, om_name=om_name, ops=ops, **built)
    for step in steps:
        run_step(npu, loaded, step, ops=ops, outputs=outputs)
    return loaded


def run_step(npu, loaded, step, *, ops=OPS, outputs=(Y,)):
    npu.begin_step(loaded, step)
    for op in ops:
        if op.type != "Data":
            npu.run_op(op.type, op.name, [X], outputs, model_id=loaded)
    npu.end_step(loaded)


def below(path):
    return sorted(str(file.relative_to(path)) for file in path.rglob("*") if file.is_file())


def names(npu):
    return [parse_name(path.name).op_name for path in npu.files]


def test_a_model_is_dumped_in_the_tree_of_the_device(npu, arm, tmp_path):
    path = arm(dump_list=[{"model_name": "my.net"}], dump_step="5")
    run_model(npu, steps=(4, 5), name="my.net")
    run = npu.dump_root
    assert run.parent == path
    assert len(run.name) == 14
    (folder,) = {file.parent for file in npu.files}
    assert folder == run / "3" / "my_net" / "1" / "5"
    first = parse_name(npu.files[0].name)
    assert (first.form, first.op_type, first.op_name, first.task_id, first.stream_id) == (
        "device",
        "Conv2D",
        "conv",
        1,
        0,
    )
    assert len(str(first.timestamp)) == 16
    assert read_header(npu.files[0]).dump_time == first.timestamp
    assert [stat.S_IMODE(file.stat().st_mode) for file in npu.files] == [0o600] * len(npu.files)
    assert stat.S_IMODE(folder.stat().st_mode) == stat.S_IMODE(run.stat().st_mode) == 0o700


def test_host_operators_and_those_without_a_task_leave_no_file(npu, arm):
    arm()
    run_model(npu)
    assert names(npu) == ["conv", "x", "net_relu_1", "fc"]
    assert [one.name for one in npu.executed] == ["conv", "net/relu.1", "flat", "quiet", "fc"]


@pytest.mark.parametrize(
    ("mode", "sides"), [("input", {"input"}), ("output", {"output"}), ("all", {"input", "output"})]
)
def test_what_is_written_reads_back(npu, arm, mode, sides):
    path = arm(dump_mode=mode, dump_list=[{"layer": ["net/relu.1"]}])
    half = np.array([[1.5, np.inf], [-np.inf, 0]], ml_dtypes.bfloat16)
    loaded = npu.load_model("net", ops=OPS)
    npu.begin_step(loaded, 0)
    npu.run_op(
        "Relu",
        "net/relu.1",
        [X],
        [half, np.int8([7])],
        model_id=loaded,
        formats={"output1": "NCHW"},
        original_shapes={"output1": (1, 1)},
    )
    dump = ascend_dump.open(path)
    assert {record.io for record in dump} == sides
    for record in dump:
        expected = X if record.io == "input" else [half, np.int8([7])][record.index]
        assert (record.op_name, record.op_type, record.model, record.model_id) == ("net/relu.1", "Relu", "net", 1)
        assert (record.device, record.step, record.dtype) == (3, 0, expected.dtype.name)
        np.testing.assert_array_equal(record.numpy(), expected)
        if record.io == "output" and record.index == 1:
            header = read_header(record.path)
            assert (record.format, header.outputs[1].original_shape) == ("NCHW", (1, 1))


def test_a_fused_operator_tells_its_origin_and_is_found_by_it(npu, arm):
    arm(dump_list=[{"layer": ["bn1"]}])
    run_model(npu)
    assert names(npu) == ["conv", "x"]
    origin = read_header(npu.files[0]).outputs[0].original_op
    # float32 is 0 in GE's numbering, which is what the header holds here.
    assert (origin.name, origin.output_index, origin.data_type) == ("bn1", 0, 0)


def test_a_graph_input_is_dumped_with_its_consumer_and_its_task(npu, arm):
    path = arm(dump_list=[{"layer": ["conv"]}])
    run_model(npu)
    (data,) = ascend_dump.open(path).select(op_type="Data")
    assert (data.op_name, data.io, data.task_id) == ("x", "output", 1)
    np.testing.assert_array_equal(data.numpy(), X)


def test_the_name_of_the_file_stands_in_the_tree_where_the_list_names_it(npu, arm):
    arm(dump_list=[{"model_name": "resnet"}])
    run_model(npu, name="internal", om_name="resnet")
    run_model(npu, name="resnet", om_name="other")
    assert {file.parts[-4:-1] for file in npu.files} == {("resnet", "1", "0"), ("resnet", "2", "0")}


def test_settings_reach_models_loaded_afterwards_only(npu, arm):
    early = npu.load_model("early", ops=OPS)
    arm()
    late = npu.load_model("late", ops=OPS)
    npu.disarm_acl()
    after = npu.load_model("after", ops=OPS)
    arm()
    for loaded in (early, late, after):
        run_step(npu, loaded, 0)
    assert {file.parts[-4] for file in npu.files} == {"late"}


def test_nothing_is_written_after_the_dump_ended(npu, arm):
    path = arm()
    loaded = npu.load_model("net", ops=OPS)
    npu.disarm_acl()
    run_step(npu, loaded, 0)
    npu.run_op("Add", "alone", [X], [Y])
    assert below(path) == []
    assert npu.dump_root is None


def test_dynamic_operators_are_taken_in_as_they_run(npu, arm):
    arm(dump_list=[{"layer": ["late"]}])
    loaded = npu.load_model("net")
    npu.begin_step(loaded, None)
    npu.run_op("Add", "late", [X], [Y], model_id=loaded, producers=[NodeInfo("ids", "Data")])
    npu.run_op("Add", "other", [X], [Y], model_id=loaded)
    assert names(npu) == ["late", "ids"]
    # Without a step counter there is no level for it.
    assert npu.files[0].parts[-3:-1] == ("net", "1")


@pytest.mark.parametrize(
    ("text", "steps", "dumped"),
    [("", (0, 7), [0, 7]), ("0|2-3", (0, 1, 2, 3, 4), [0, 2, 3]), ("5", (1000, 5), [5]), ("0", (None, None), [])],
)
def test_steps_are_the_values_of_the_counter(npu, arm, text, steps, dumped):
    path = arm(dump_step=text, dump_list=[{"layer": ["fc"]}])
    run_model(npu, steps=steps)
    assert sorted(record.step for record in (ascend_dump.open(path) if dumped else ())) == dumped


def test_a_dropped_counter_drops_a_dump_with_steps(npu, arm):
    arm(dump_step="0")
    npu.drop_step_counter()
    run_model(npu)
    assert npu.files == []


@given(
    st.lists(st.tuples(st.integers(0, 2**64 - 1), st.integers(0, 2**64 - 1)), max_size=5), st.sampled_from(["", " "])
)
def test_the_device_reads_steps_looser_than_the_host(ranges, blank):
    text = "|".join(f"{blank}{first}{blank}-{blank}{last}{blank}" for first, last in ranges)
    expected = tuple((min(pair), max(pair)) for pair in ranges)
    assert parse_steps(text + "|" if text else "") == (expected or None)


@pytest.mark.parametrize("text", ["a", "1-", "-1", "1-2-3", "18446744073709551616", "1,2"])
def test_what_the_device_cannot_read_as_steps(text):
    with pytest.raises(ValueError, match=r"step|64 bits"):
        parse_steps(text)


def test_blacklists_leave_tensors_out_and_compact_the_indices(npu, arm):
    black = {"optype_blacklist": [{"name": "Conv2D", "pos": ["input0", "output0"]}]}
    black["opname_blacklist"] = [{"name": "conv", "pos": ["output2"]}]
    path = arm(dump_mode="all", dump_level="op", dump_list=[{"layer": ["conv"], **black}])
    outputs = [Y + index for index in range(4)]
    loaded = npu.load_model("net", ops=OPS[1:])
    npu.begin_step(loaded, 0)
    npu.run_op("Conv2D", "conv", [X], outputs, model_id=loaded)
    records = list(ascend_dump.open(path))
    assert [(record.io, record.index) for record in records] == [("output", 0), ("output", 1)]
    np.testing.assert_array_equal(records[0].numpy(), outputs[1])
    np.testing.assert_array_equal(records[1].numpy(), outputs[3])


@pytest.mark.parametrize(
    ("begin", "end", "expected"),
    [
        ("b", "c", ["b", "c"]),
        ("b", "b", ["b"]),
        ("c", "b", []),
        ("b", "nowhere", ["b", "c", "d"]),
        ("nowhere", "b", []),
    ],
)
def test_a_range_of_operators_follows_the_order_of_execution(npu, arm, begin, end, expected):
    arm(dump_level="op", dump_list=[{"model_name": "net", "opname_range": [{"begin": begin, "end": end}]}])
    run_model(npu, ops=[NodeInfo(name, "Add") for name in "abcd"])
    assert names(npu) == expected


def test_single_operators_have_no_model_level(npu, arm):
    path = arm(dump_mode="all", dump_op_switch="on")
    npu.run_op("Add", "alone/add", [X, X], [Y], stream=7, task=65537)
    (file,) = npu.files
    assert file.parent == npu.dump_root / "3"
    parsed = parse_name(file.name)
    # Ids have 16 bits.
    assert (parsed.op_name, parsed.task_id, parsed.stream_id) == ("alone_add", 1, 7)
    assert len(ascend_dump.open(path)) == 3


@pytest.mark.parametrize(
    ("level", "switch", "kernel", "single"),
    [
        ("kernel", "off", True, False),
        ("all", "off", True, False),
        ("op", "on", False, True),
        ("op", "off", False, False),
        ("kernel", "on", True, False),
        ("all", "on", True, True),
    ],
)
def test_kernels_and_single_operator_models_follow_the_level(npu, arm, level, switch, kernel, single):
    arm(dump_level=level, dump_op_switch=switch, dump_list=[{}])
    npu.run_op("Add", "alone", [X], [Y])
    assert bool(npu.files) is single
    npu.files.clear()
    npu.run_api(ApiCall("aclnnAbs", [X], [Y], [Kernel("AbsAiCore", [X], [Y])]))
    assert bool(npu.files) is kernel


def test_session_options_dump_models_but_no_kernels(npu, tmp_path):
    assert npu.arm_ge({"ge.exec.enableDump": "1", "ge.exec.dumpPath": str(tmp_path), "ge.exec.dumpLayer": "fc"}) == 0
    run_model(npu)
    npu.run_op("Add", "alone", [X], [Y])
    npu.run_api(ApiCall("aclnnAbs", [X], [Y], [Kernel("AbsAiCore", [X], [Y])]))
    assert names(npu) == ["fc"]
    assert npu.dump_root.parent == tmp_path


def test_refused_session_options_are_told(npu):
    assert npu.arm_ge({"ge.exec.enableDump": "1"}) == -1
    assert [error.code for error in npu.errors] == ["E10058"]
    assert npu.dump_root is None
    assert npu.arm_ge({"ge.exec.enableDump": "0"}) == 0
    assert npu.errors == []


def test_arming_returns_the_codes_of_acl(npu, arm, tmp_path):
    assert npu.arm_acl(None) == 0
    assert npu.arm_acl(tmp_path / "none.json") == 100003
    for text, code, native in (
        ("{", 100009, ["EP0004"]),
        ('{"a":' + "[" * 11 + "]" * 11 + "}", 100006, [""]),
        ('{"dump": {"dump_list": [{}]}}', 100009, ["EP0001"]),
        ("", 0, []),
    ):
        (tmp_path / "acl.json").write_text(text)
        assert (npu.arm_acl("acl.json"), [error.code for error in npu.errors]) == (code, native)
    arm(100009, dump_mode="no")
    assert npu.errors[0].where == "dump.dump_mode"
    assert npu.dump_root is None


def test_the_detailed_exception_dump_is_refused_as_on_other_platforms(npu, arm):
    arm(500000, dump_scene="aic_err_detail_dump")
    assert npu.errors


def test_files_of_equal_names_are_appended_to(tmp_path):
    npu = Npu(environ={}, cwd=tmp_path, clock=lambda: 1_700_000_000.0)
    (tmp_path / "acl.json").write_text(json.dumps({"dump": {"dump_path": str(tmp_path), "dump_op_switch": "on"}}))
    for value in (X, Y):
        # Armed twice within a second: one directory.
        npu.arm_acl("acl.json")
        npu.run_op("Add", "alone", [], [value], task=1)
    (file,) = set(npu.files)
    once = read_header(file)
    assert file.stat().st_size == 2 * (once.outputs[0].offset + X.nbytes)
    (record,) = ascend_dump.open(tmp_path)
    np.testing.assert_array_equal(record.numpy(), X)


def test_a_name_that_is_too_long_is_mapped(npu, arm):
    path = arm(dump_op_switch="on")
    long_name = "scope/" * 60 + "add"
    npu.run_op("Add", long_name, [], [Y])
    (file,) = npu.files
    assert file.name.isdecimal()
    (line,) = read_mapping(file.parent / "mapping.csv").names.items()
    assert line[0] == file.name
    # The hash is of the whole text of the path, with the doubled slash behind the device.
    assert file.name == hashed_name(f"{npu.dump_root}/3//{line[1]}")
    (record,) = ascend_dump.open(path)
    assert record.op_name == long_name
    np.testing.assert_array_equal(record.numpy(), Y)


def test_statistics_are_printed_as_the_device_does(npu, arm):
    path = arm(dump_data="stats", dump_mode="all", dump_list=[{"layer": ["fc"]}])
    run_model(npu, outputs=(Y.astype("f2"), np.ones(2, ml_dtypes.bfloat16)))
    (file,) = npu.files
    lines = file.read_text().splitlines()
    assert lines[1] == "Input,0,24,DT_FLOAT,ND,2x3,5,0,2.5,6,0,0,0"
    assert lines[2] == "Output,0,12,DT_FLOAT16,ND,2x3,10,0,5,6,0,0,0"
    assert lines[3] == "Output,1,4,-,ND,2,,,,,,,"
    found = ascend_dump.open(path).select(io="input")
    assert [record.statistics().max for record in found] == [5]


def test_chosen_statistics_have_their_own_columns(npu, arm):
    path = arm(dump_data="stats", dump_stats=["L2norm", "Max", "Nan"], dump_op_switch="on")
    npu.run_op("Add", "alone", [], [np.float32([3, 4]), np.complex64([1])])
    (file,) = npu.files
    assert file.read_text().splitlines() == [
        "Input/Output,Index,Data Size,Data Type,Format,Shape,Count,Max Value,Nan Count,l2norm",
        "Output,0,8,DT_FLOAT,ND,2,2,4,0,5",
        "Output,1,8,DT_COMPLEX64,ND,1,1,NA,NA,NA",
    ]
    assert next(iter(ascend_dump.open(path).select(index=0))).statistics().max == 4


def test_operators_without_a_byte_leave_no_file(npu, arm):
    arm(dump_op_switch="on")
    npu.run_op("Add", "empty", [X], [np.empty((0, 3), "f4")])
    assert npu.files == []
    assert len(npu.executed) == 1


def test_an_overflow_writes_the_record_and_the_operator_beside_it(npu, arm):
    path = arm(dump_debug="on", dump_step="9")
    npu.overflow("fc", status=0x120, acc_type="AIV")
    run_model(npu, steps=(0, 1))
    dump = ascend_dump.open(path)
    assert {record.op_name for record in dump} == {"fc", "Node_OpDebug"}
    assert {record.io for record in dump.select(op="fc")} == {"input", "output"}
    for record in dump.select(op_type="Opdebug"):
        (unit,) = record.attrs["units"]
        assert record.path.name.startswith("Opdebug.Node_OpDebug.")
        assert (unit["name"], unit["status"], unit["model_id"]) == ("AIV", [0x120], 1)
        assert unit["operator"]["op_name"] == "fc"
        assert record.path.parent.name == str(record.step)
        assert record.nbytes == 2048


def test_older_devices_report_in_the_fixed_layout(tmp_path):
    npu = Npu(soc="Ascend310P3", environ={}, cwd=tmp_path)
    (tmp_path / "acl.json").write_text(json.dumps({"dump": {"dump_path": str(tmp_path), "dump_debug": "on"}}))
    assert npu.arm_acl(tmp_path / "acl.json") == 0
    npu.run_op("Mul", "hot", [X], [np.full(3, np.inf, "f4")])
    (record,) = ascend_dump.open(tmp_path).select(op_type="Opdebug")
    (unit,) = record.attrs["units"]
    assert (unit["name"], unit["status"], unit["operator"]["op_name"]) == ("AI Core", [0x20], "hot")


def test_only_operators_that_leave_the_range_overflow_by_themselves(npu, arm):
    path = arm(dump_debug="on")
    npu.run_op("Mul", "fine", [X], [Y])
    npu.run_op("Mul", "made", [X], [np.float16([np.inf])])
    npu.run_op("Mul", "passed", [np.float16([np.inf])], [np.float16([np.inf])])
    assert set(names(npu)) == {"made", "Node_OpDebug"}
    assert len(ascend_dump.open(path).select(op="made")) == 2


def test_the_watcher_shows_who_trampled_whom(npu, arm):
    ops = [NodeInfo(name, kind) for name, kind in (("C", "Add"), ("A", "Relu"), ("B", "Mul"))]
    path = arm(dump_scene="watcher", dump_list=[{"layer": ["A", "B"], "watcher_nodes": ["C"]}])
    npu.trample("B", "C", offset=4, data=b"\0\0\x80\x7f")
    run_model(npu, ops=ops)
    dump = ascend_dump.open(path)
    found = {record.op_name: record.numpy() for record in dump}
    assert list(found) == ["C", "A_To_C", "B_To_C"]
    np.testing.assert_array_equal(found["A_To_C"], found["C"])
    assert found["B_To_C"][0, 1] == np.inf
    assert np.count_nonzero(found["B_To_C"] != found["C"]) == 1
    assert {record.op_type for record in dump} == {"Add"}
    assert (pair := next(iter(dump.select(op="A_To_C")))).attrs["watch"] == {"layer": "A", "watched": "C"}
    assert pair.task_id == 1
    assert Y[0, 1] == 2, "the program's own array stays as it is"


@pytest.mark.parametrize(("scene", "form"), [("aic_err_brief_dump", "brief"), ("aic_err_norm_dump", "normal")])
def test_a_failing_operator_leaves_an_exception_file(npu, arm, tmp_path, scene, form):
    path = arm(dump_scene=scene)
    npu.fail("fc")
    with pytest.raises(OperatorFailed, match="'fc'"):
        run_model(npu)
    (file,) = npu.files
    assert file.parent == path / "extra-info" / "data-dump" / "3"
    parsed = parse_name(file.name)
    assert (parsed.form, parsed.task_id) == (form, 5)
    assert {record.op_name for record in ascend_dump.open(path)} == {"fc"}
    np.testing.assert_array_equal(next(iter(ascend_dump.open(path).select(io="input"))).numpy(), X)


def test_the_environment_alone_turns_an_exception_dump_on(tmp_path):
    npu = Npu(environ={"NPU_COLLECT_PATH": str(tmp_path / "new")}, cwd=tmp_path)
    npu.fail("bad")
    with pytest.raises(OperatorFailed):
        npu.run_op("Add", "bad", [X], [Y])
    assert npu.files[0].parts[-4:-1] == ("extra-info", "data-dump", "0")
    assert npu.files[0].is_relative_to(tmp_path / "new")


def test_ending_one_dump_leaves_the_other(npu, arm, tmp_path):
    assert npu.arm_ge({"ge.exec.enableDump": "1", "ge.exec.dumpPath": str(tmp_path)}) == 0
    by_options = npu.load_model("options", ops=OPS)
    arm()
    by_acl = npu.load_model("acl", ops=OPS)
    npu.disarm_acl()
    for loaded in (by_options, by_acl):
        run_step(npu, loaded, 0)
    assert {file.parts[-4] for file in npu.files} == {"options"}
    npu.disarm_ge()
    run_step(npu, by_options, 1)
    assert {file.parts[-2] for file in npu.files} == {"0"}


def test_a_full_disk_drops_files_without_an_error(npu, arm):
    path = arm(dump_op_switch="on")
    big = np.zeros(3 << 18, "f4")
    npu.fill_disk(6 << 20)
    for _ in range(3):
        npu.run_op("Add", "alone", [], [big])
    # 3 MiB each: one fits, the second would need more than what is left.
    assert len(npu.files) == 1
    npu.fill_disk((1 << 20) - 1)
    npu.run_op("Add", "tiny", [], [Y])
    assert len(below(path)) == 1
    assert len([line for line in npu.log if "the disk is full" in line]) == 3


def test_truncated_files_are_told_when_they_are_read(npu, arm):
    path = arm(dump_op_switch="on")
    npu.truncate_files(40)
    npu.run_op("Add", "cut", [], [Y])
    npu.truncate_files(None)
    npu.run_op("Add", "whole", [], [Y])
    assert npu.files[0].stat().st_size == 40
    dump = ascend_dump.open(path)
    assert [record.error is None for record in dump.select(op="whole")] == [True]
    with pytest.raises(ascend_dump.AscendDumpError):
        next(iter(dump.select(op="cut"))).numpy()


def test_a_directory_that_cannot_be_made_is_only_logged(npu, arm, tmp_path):
    path = arm(dump_op_switch="on")
    (path / npu.dump_root.name).write_text("in the way")
    npu.run_op("Add", "alone", [], [Y])
    assert npu.files == []
    assert "cannot" in npu.log[-1]


def test_models_that_are_not_loaded_are_told(npu):
    loaded = npu.load_model("net")
    assert npu.models == (loaded,)
    npu.unload_model(loaded)
    for call in (npu.unload_model, lambda model: npu.begin_step(model, 0)):
        with pytest.raises(ConfigError, match="no model 1"):
            call(loaded)
    assert npu.load_model("again", model_id=9) == 9


def test_each_ge_session_has_its_own_settings(tmp_path):
    npu = Npu(environ={}, cwd=tmp_path)
    for number, layer in ((1, "conv"), (2, "fc")):
        options = {"ge.exec.enableDump": "1", "ge.exec.dumpPath": str(tmp_path), "ge.exec.dumpLayer": layer}
        assert npu.arm_ge(options, session=number) == 0
    ops = [NodeInfo("conv", "Conv2D"), NodeInfo("fc", "MatMulV2")]
    models = [npu.load_model(f"net{number}", ops=ops, session=number) for number in (1, 2, 3)]
    npu.disarm_ge(session=2)
    for model in models:
        npu.begin_step(model, 0)
        for op in ops:
            npu.run_op(op.type, op.name, [X], [X], model_id=model)
    assert [(path.parts[-4], path.name.split(".")[1]) for path in npu.files] == [("net1", "conv")]
