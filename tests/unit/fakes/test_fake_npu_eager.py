"""API calls on the simulated device: a file for each side of the call and of its kernels, as opbase and adump write."""

from __future__ import annotations

import json

import ml_dtypes
import numpy as np
import pytest

import ascend_dump
from ascend_dump.fakes.device.npu import ApiCall, Kernel, Npu, OperatorFailed
from ascend_dump.native.cann.dump_file import read_header
from ascend_dump.native.cann.names import eager_name, parse_name

X = np.arange(6, dtype="f4").reshape(2, 3)
Y = X * 2
INF = np.array([1, np.inf], "f2")
HALF = np.array([1, 2], "f2")
FULL = np.array([1, 65504], "f2")


@pytest.fixture
def npu(tmp_path):
    return Npu(environ={}, cwd=tmp_path, device_id=3)


@pytest.fixture
def arm(npu, tmp_path):
    """Arm through a dump JSON for API calls below a fresh directory `d`, which is returned."""

    def call(**keys):
        (tmp_path / "d").mkdir(exist_ok=True)
        dump = {"dump_path": str(tmp_path / "d"), "dump_mode": "all", **keys}
        if not {"dump_debug", "dump_scene"} & set(keys):
            dump["dump_list"] = [{}]
        (tmp_path / "acl.json").write_text(json.dumps({"dump": dump}))
        assert npu.arm_acl(tmp_path / "acl.json") == 0, npu.errors
        return tmp_path / "d"

    return call


def call_of(api, inputs, outputs, *, kernels=("AddAiCore",), **fields):
    return ApiCall(api, inputs, outputs, [Kernel(name, inputs, outputs) for name in kernels], **fields)


ADD = call_of("aclnnAdd", [X, X], [Y])
RMS_NORM = call_of("aclnnRmsNorm", [X], [Y], kernels=["RmsNorm"], generated=True)


def written(npu):
    """Return the names of the files and the sides of their tensors, in the order in which they were written."""
    found = []
    for path in npu.files:
        name, header = parse_name(path.relative_to(npu.dump_root / "3").as_posix()), read_header(path)
        sides = "+".join(side for side in ("inputs", "outputs") if getattr(header, side))
        found.append((f"{name.op_type}.{name.op_name}", sides))
    return found


# Files.


def test_each_side_of_a_call_and_of_its_kernels_is_a_file(npu, arm):
    path = arm()
    npu.run_api(call_of("aclnnMatmul", [X], [Y], kernels=["Cast", "MatMulCommon"]), stream=7)
    assert written(npu) == [
        ("aclnnMatmul_0_L2.aclnnMatmul", "inputs"),
        ("aclnnMatmul_0_L0.Cast", "inputs"),
        ("aclnnMatmul_0_L0.Cast", "outputs"),
        ("aclnnMatmul_0_L0.MatMulCommon", "inputs"),
        ("aclnnMatmul_0_L0.MatMulCommon", "outputs"),
        ("aclnnMatmul_0_L2.aclnnMatmul", "outputs"),
    ]
    parsed = [parse_name(file.name) for file in npu.files]
    assert {name.stream_id for name in parsed} == {7}
    for ids in ([name.task_id for name in parsed], [name.timestamp for name in parsed]):
        assert ids == sorted(set(ids)), "each file has its own"
    assert {file.parent for file in npu.files} == {npu.dump_root / "3"}
    assert [(one.op_type, one.name) for one in npu.executed] == [
        ("aclnnMatmul", "Cast"),
        ("aclnnMatmul", "MatMulCommon"),
    ]
    [call] = [record for record in ascend_dump.open(path).select(io="output") if record.kernel is None]
    np.testing.assert_array_equal(call.numpy(), Y)


@pytest.mark.parametrize(("mode", "side"), [("input", "inputs"), ("output", "outputs")])
def test_the_side_that_the_mode_leaves_out_has_no_file(npu, arm, mode, side):
    arm(dump_mode=mode)
    npu.run_api(ADD)
    npu.run_api(RMS_NORM)
    assert written(npu) == [
        *([("aclnnAdd_0_L2.aclnnAdd", side), ("aclnnAdd_0_L0.AddAiCore", side)][:: 1 if mode == "input" else -1]),
        (f"L2DfxAbscent_{1 if mode == 'input' else 2}._L0RmsNorm", side),
    ]


def test_the_number_counts_the_calls_of_the_process(npu, arm):
    for call in (ADD, RMS_NORM, ADD):
        npu.run_api(call)
    arm()
    for call in (ADD, RMS_NORM, ADD):
        npu.run_api(call)
    assert list(dict.fromkeys(name for name, _ in written(npu))) == [
        "aclnnAdd_4_L2.aclnnAdd",  # the first call took a number when it looked for an executor, and one for its own
        "aclnnAdd_4_L0.AddAiCore",
        "L2DfxAbscent_5._L0RmsNorm",
        "L2DfxAbscent_6._L0RmsNorm",
        "aclnnAdd_7_L2.aclnnAdd",
        "aclnnAdd_7_L0.AddAiCore",
    ]


def test_only_kernels_on_ai_core_have_files(npu, arm):
    arm()
    kernels = [Kernel("DSARandomUniform", [], [X], is_reported=False), Kernel("MulAiCore", [X], [Y])]
    npu.run_api(ApiCall("aclnnInplaceUniform", [X], [Y], kernels))
    assert written(npu) == [
        ("aclnnInplaceUniform_0_L2.aclnnInplaceUniform", "inputs"),
        ("aclnnInplaceUniform_0_L0.MulAiCore", "inputs"),
        ("aclnnInplaceUniform_0_L0.MulAiCore", "outputs"),
        ("aclnnInplaceUniform_0_L2.aclnnInplaceUniform", "outputs"),
    ]
    assert [one.name for one in npu.executed] == ["DSARandomUniform", "MulAiCore"]


def test_a_call_that_declares_no_outputs_has_no_file_of_them(npu, arm):
    arm()
    npu.run_api(ApiCall("aclnnLog", [X, Y], [], [Kernel("LogAiCore", [X], [Y])]))
    assert [sides for _, sides in written(npu)] == ["inputs", "inputs", "outputs"]


def test_the_watcher_dumps_the_outputs_of_eager_operators_too(npu, arm):
    arm(dump_scene="watcher", dump_mode="output", dump_list=[{"layer": ["a"], "watcher_nodes": ["b"]}])
    npu.run_api(ADD)
    assert [sides for _, sides in written(npu)] == ["outputs", "outputs"]


def test_empty_tensors_are_left_out(npu, arm):
    path = arm()
    empty = np.empty((0, 3), "f4")
    npu.run_api(call_of("aclnnCat", [empty, X], [empty], kernels=["ConcatD"]))
    assert [sides for _, sides in written(npu)] == ["inputs", "inputs"]
    assert {(record.index, record.shape) for record in ascend_dump.open(path)} == {(0, (2, 3))}


def test_statistics_are_a_file_of_each_side_too(npu, arm):
    path = arm(dump_data="stats")
    npu.run_api(ADD, stream=7)
    assert [file.name.split(".")[:4] for file in npu.files] == [
        ["aclnnAdd_0_L2", "aclnnAdd", "0", "7"],
        ["aclnnAdd_0_L0", "AddAiCore", "1", "7"],
        ["aclnnAdd_0_L0", "AddAiCore", "3", "7"],
        ["aclnnAdd_0_L2", "aclnnAdd", "4", "7"],
    ]
    assert [len(file.read_text().splitlines()) for file in npu.files] == [3, 3, 2, 2]
    assert {record.statistics().max for record in ascend_dump.open(path).select(io="output")} == {10}


def test_a_clock_that_stands_still_joins_no_files(tmp_path):
    npu = Npu(environ={}, cwd=tmp_path, clock=lambda: 1_700_000_000.0)
    (tmp_path / "acl.json").write_text(
        json.dumps({"dump": {"dump_path": str(tmp_path), "dump_list": [{}], "dump_data": "stats"}})
    )
    assert npu.arm_acl("acl.json") == 0
    for _ in range(2):
        npu.run_api(ADD)
    assert len(set(npu.files)) == 4


# Overflow.


@pytest.mark.parametrize(
    ("inputs", "outputs", "overflows"), [([HALF], [INF], True), ([INF], [INF], True), ([INF], [HALF], False)]
)
def test_with_inf_and_nan_a_kernel_with_such_an_output_is_written_in_one_file(npu, arm, inputs, outputs, overflows):
    path = arm(dump_debug="on")
    npu.run_api(call_of("aclnnAdd", inputs, outputs))
    assert written(npu) == ([("aclnnAdd_0_L0.AddAiCore", "inputs+outputs")] if overflows else [])
    if overflows:
        assert {record.attrs["scene"] for record in ascend_dump.open(path)} == {"overflow"}


@pytest.mark.parametrize("dtype", ["f4", "f2", ml_dtypes.bfloat16, "f8", "c8", ml_dtypes.float8_e5m2, "i4"])
def test_the_types_in_which_infinities_count(npu, arm, dtype):
    arm(dump_debug="on")
    value = 3 if dtype == "i4" else np.inf
    npu.run_api(call_of("aclnnAdd", [HALF], [np.array([1, value], dtype)]))
    npu.run_api(call_of("aclnnAdd", [HALF], [np.array([1, 2], dtype)]))
    counts = dtype in ("f4", "f2", ml_dtypes.bfloat16)
    assert [name for name, _ in written(npu)] == (["aclnnAdd_0_L0.AddAiCore"] if counts else [])


def test_in_saturation_mode_the_status_decides_and_the_values_are_finite(npu, arm):
    path = arm(dump_debug="on")
    npu.saturates = True
    npu.run_api(call_of("aclnnAdd", [HALF], [FULL], overflowed=True))
    npu.run_api(call_of("aclnnAdd", [FULL], [FULL]))
    assert written(npu) == [("aclnnAdd_0_L0.AddAiCore", "inputs+outputs")]
    [record] = ascend_dump.open(path).select(io="output")
    assert record.numpy().tolist() == [1, 65504]


def test_a_generated_operator_that_overflows_has_two_files(npu, arm):
    arm(dump_debug="on")
    npu.run_api(call_of("aclnnRmsNorm", [HALF], [INF], kernels=["RmsNorm"], generated=True))
    assert written(npu) == [("L2DfxAbscent_1._L0RmsNorm", "inputs"), ("L2DfxAbscent_2._L0RmsNorm", "outputs")]


@pytest.mark.parametrize("name", ["aclnnAdd", "AddAiCore"])
def test_the_fault_names_a_call_or_a_kernel(npu, arm, name):
    arm(dump_debug="on")
    npu.overflow(name)
    npu.run_api(ADD)
    npu.run_api(call_of("aclnnMul", [X], [Y], kernels=["MulAiCore"]))
    assert [name for name, _ in written(npu)] == ["aclnnAdd_0_L0.AddAiCore"]


def test_the_switch_for_overflow_is_read_at_the_first_call_and_stays_off(npu, arm):
    npu.run_api(ADD)
    arm(dump_debug="on")
    npu.run_api(call_of("aclnnAdd", [HALF], [INF]))
    assert npu.files == []
    # Generated APIs ask each time.
    npu.run_api(call_of("aclnnRmsNorm", [HALF], [INF], kernels=["RmsNorm"], generated=True))
    assert len(npu.files) == 2


def test_the_switch_stays_on_for_the_process(npu, arm):
    overflowing = call_of("aclnnAdd", [HALF], [INF])
    arm(dump_debug="on")
    npu.run_api(ADD)
    npu.disarm_acl()
    npu.run_api(overflowing)
    assert npu.files == [], "nothing is written without a dump"
    arm(dump_debug="on")
    npu.run_api(overflowing)
    assert len(npu.files) == 1
    npu.disarm_acl()
    npu.files.clear()
    arm()
    npu.run_api(overflowing)
    assert [sides for _, sides in written(npu)] == ["inputs", "inputs", "outputs", "inputs+outputs", "outputs"]


# Exceptions.


@pytest.mark.parametrize(("scene", "form"), [("aic_err_brief_dump", "brief"), ("aic_err_norm_dump", "normal")])
def test_a_failing_kernel_leaves_an_exception_file(npu, arm, scene, form):
    path = arm(dump_scene=scene)
    npu.run_api(ADD)
    npu.fail("AddAiCore")
    with pytest.raises(OperatorFailed, match=r"aclnnAdd \(AddAiCore\) failed"):
        npu.run_api(ADD)
    [file] = npu.files
    assert file.parent == path / "extra-info" / "data-dump" / "3"
    name = parse_name(file.name)
    assert name.form == form
    if form == "normal":
        assert eager_name(name) == ("aclnnAdd", 1, "AddAiCore", False)


def test_a_generated_operator_fails_with_its_own_name(npu, arm):
    arm(dump_scene="aic_err_norm_dump")
    npu.fail("RmsNorm")
    with pytest.raises(OperatorFailed):
        npu.run_api(RMS_NORM)
    assert npu.files[0].name.startswith("RmsNorm.RmsNorm.")


@pytest.mark.parametrize(("scene", "files"), [("aic_err_brief_dump", 1), ("aic_err_norm_dump", 0)])
def test_the_switch_for_norm_exceptions_is_read_at_the_first_call(npu, arm, scene, files):
    npu.run_api(ADD)
    arm(dump_scene=scene)
    npu.fail("aclnnAdd")
    with pytest.raises(OperatorFailed):
        npu.run_api(ADD)
    assert len(npu.files) == files


def test_what_follows_a_failure_is_not_dumped(npu, arm):
    arm()
    npu.fail("MatMulCommon")
    with pytest.raises(OperatorFailed):
        npu.run_api(call_of("aclnnMatmul", [X], [Y], kernels=["Cast", "MatMulCommon", "Cast"]))
    assert written(npu)[-1] == ("aclnnMatmul_0_L0.MatMulCommon", "inputs")
    assert len(npu.files) == 4


# Graphs.


def test_a_captured_call_has_a_number_for_each_file_and_replays_append(npu, arm):
    path = arm()
    captured = npu.capture_api(ADD, stream=5)
    assert (npu.files, npu.executed) == ([], [])
    for factor in (1, 2):
        npu.replay_api(captured, call_of("aclnnAdd", [X, X], [Y * factor]), stream=5)
    assert len(npu.files) == 8
    names = [parse_name(file.name) for file in dict.fromkeys(npu.files)]
    assert [(name.form, name.dump_number, name.stream_id) for name in names] == [("aclgraph", n, 5) for n in range(4)]
    assert [name.op_name for name in names] == ["aclnnAdd", "AddAiCore", "AddAiCore", "aclnnAdd"]
    first, *_ = dict.fromkeys(npu.files)
    assert first.stat().st_size == 2 * (read_header(first).inputs[1].offset + X.nbytes)
    assert {record.numpy().max() for record in ascend_dump.open(path).select(io="output")} == {10}, "the first replay"
    assert len(npu.executed) == 2


def test_characters_of_captured_names_are_kept(npu, arm):
    path = arm()
    call = call_of("aclnnAdd", [X], [Y], kernels=["block/add.1"])
    npu.replay_api(npu.capture_api(call), call)
    assert npu.files[1].relative_to(npu.dump_root / "3").parts[0] == "aclnnAdd_0_L0.block"
    assert "block/add.1" in {record.kernel for record in ascend_dump.open(path)}


def test_the_other_side_of_a_captured_call_is_a_file_without_tensors(npu, arm):
    path = arm(dump_mode="output")
    npu.replay_api(npu.capture_api(ADD), ADD)
    assert [sides for _, sides in written(npu)] == ["", "", "outputs", "outputs"]
    assert len(ascend_dump.open(path)) == 2


@pytest.mark.parametrize("keys", [{"dump_data": "stats"}, {"dump_debug": "on"}, {"dump_level": "op"}])
def test_captured_calls_have_no_statistics_and_no_overflow(npu, arm, keys):
    arm(**keys)
    call = call_of("aclnnAdd", [HALF], [INF])
    npu.replay_api(npu.capture_api(call), call)
    assert npu.files == []


def test_calls_that_were_captured_without_a_dump_are_never_dumped(npu, arm):
    captured = npu.capture_api(ADD)
    arm()
    npu.replay_api(captured, ADD)
    assert npu.files == []
    captured = npu.capture_api(ADD)
    npu.disarm_acl()
    npu.replay_api(captured, ADD)
    assert npu.files == []
