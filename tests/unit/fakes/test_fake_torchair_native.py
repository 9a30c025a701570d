"""torchair's native boundary, called as torchair calls it. The real frontend is in tests/real/torchair."""

from __future__ import annotations

import json
import sys

import numpy as np
import pytest
from places import DATA

pytest.importorskip("torch")

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import ascend_dump
from ascend_dump import AscendDumpError, CorruptDump, NotSupported, fakes

# Private: every operator and every type of the tables is run.
from ascend_dump.fakes.kernels import _ge_table
from ascend_dump.fakes.kernels import ge_model as _ge_model
from ascend_dump.fakes.kernels import npu_ops as _npu_ops
from ascend_dump.fakes.kernels.ge_compute import compute, known_types
from ascend_dump.fakes.kernels.ge_model import GeOp, parse_model
from ascend_dump.fakes.kernels.ge_values import constant, ge_number, to_array, to_tensor, torch_dtype

MLP = DATA / "torchair" / "mlp_modeldef.pb"
#: x, then weight and bias of three layers, in the order of the graph's inputs.
SHAPES = {0: (16, 8), 1: (16,), 2: (5, 8), 3: (16, 16), 4: (16,), 5: (4, 16), 6: (4,)}
FLOAT, INT64 = 0, 9


@pytest.fixture
def native():
    with fakes.install("torchair_native", clock=lambda: 1.7e9) as npu:
        module = sys.modules["torchair.core._torchair"]
        module.npu = npu
        yield module
        del module.npu


@pytest.fixture
def inputs():
    torch.manual_seed(0)
    return [torch.randn(SHAPES[index]) for index in SHAPES]


def mlp(inputs):
    w1, b1, x, w2, b2, w3, b3 = inputs
    linear = torch.nn.functional.linear
    return linear(linear(linear(x, w1, b1).relu(), w2, b2).relu(), w3, b3)


def options(**dump):
    return {"ge.exec.deviceId": "0", "ge_run_with_torch_npu": "0", **{f"ge.exec.{name}": v for name, v in dump.items()}}


def dumping(path, **more):
    return options(enableDump="1", dumpPath=str(path), dumpMode="all", dumpData="tensor", **more)


def load(native, serialized=None, dtypes=(FLOAT,), executor=0):
    graph = native.TorchNpuGraphBase("graph_1")
    graph.load(MLP.read_bytes() if serialized is None else serialized, {"mode": "max-autotune"}, [], dtypes, executor)
    graph.set_hint_shape([[5, 8]], [[5, 4]])
    graph.compile()
    return graph


def build(*ops, name="graph_1"):
    """A serialized model. ops: (name, type, inputs, attrs)."""
    message, _ = _ge_model._model_class()
    model = message(name="model")
    graph = model.graph.add(name=name)
    for op_name, op_type, sources, attrs in ops:
        op = graph.op.add(name=op_name, type=op_type, input=sources)
        for key, value in attrs.items():
            entry = op.attr.add(key=key).value
            if isinstance(value, bool):
                entry.b = value
            elif isinstance(value, int):
                entry.i = value
            else:
                entry.list.val_type = 2
                entry.list.i.extend(value)
    return model.SerializeToString()


# Parsing.


def test_a_graph_of_torchair_is_read():
    graph = parse_model(MLP.read_bytes())
    assert graph.name == "graph_1"
    types = [op.type for op in graph.ops]
    assert types.count("Data") == 7
    assert types.count("MatMulV2") == 3
    assert types[-1] == "NetOutput"
    [first] = [op for op in graph.ops if op.name == "MatMulV2"]
    assert [str(each) for each in first.inputs] == ["arg2_1:0", "Transpose:0", "None", "None"]
    assert first.attrs["transpose_x1"] is False
    [const] = [op for op in graph.ops if op.name == "Const"]
    assert constant(const.attrs["value"]).tolist() == [1, 0]


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_damaged_graphs_give_our_errors_only(data):
    raw = bytearray(MLP.read_bytes())
    for _ in range(data.draw(st.integers(1, 6))):
        raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    cut = data.draw(st.integers(0, len(raw)))
    try:
        graph = parse_model(bytes(raw[:cut]))
    except AscendDumpError:
        return
    assert all(isinstance(op, GeOp) for op in graph.ops)


def test_bytes_that_are_no_graph_are_refused():
    with pytest.raises(CorruptDump, match=r"not a ge\.proto\.ModelDef"):
        parse_model(b"\xff" * 20)
    with pytest.raises(NotSupported, match="0 graphs"):
        parse_model(b"")
    with pytest.raises(CorruptDump, match="'x:y'"):
        parse_model(build(("a", "Relu", ["x:y"], {})))


def test_control_edges_are_no_inputs():
    graph = parse_model(build(("a", "Relu", ["x:0", "b:-1", ""], {})))
    assert graph.ops[0].inputs == (("x", 0), None)


# Running.


def test_a_graph_computes_what_torch_computes(native, inputs):
    native.InitializeGraphEngine(options())
    graph = load(native)
    [found] = graph.run((inputs, [], None))
    torch.testing.assert_close(found, mlp(inputs))
    assert [one.name for one in native.npu.executed][:4] == ["Transpose", "MatMulV2", "Mul", "Add"]
    assert native.npu.files == []


@pytest.mark.parametrize("channel", ["options", "json", "config"])
def test_each_channel_arms_the_dump(native, inputs, tmp_path, channel):
    config = tmp_path / "dump.json"
    dump = {"dump_path": str(tmp_path / "json"), "dump_mode": "all", "dump_step": "1", "dump_data": "tensor"}
    config.write_text(json.dumps({"dump": {**dump, "dump_list": [{"model_name": "graph_1"}]}}))
    (tmp_path / "json").mkdir()
    (tmp_path / "options").mkdir()
    if channel == "options":
        native.InitializeGraphEngine(dumping(tmp_path / "options", dumpStep="1"))
    elif channel == "json":
        native.InitializeGraphEngine(dumping(tmp_path / "options", dumpStep="0-2"))
        native.AclmdlSetDump(str(config))
    else:
        native.InitializeGraphEngine({**options(), "ge_dump_with_acl_config": str(config)})
    graph = load(native)
    for _ in range(3):
        [found] = graph.run((inputs, [], None))
    dump = ascend_dump.open(tmp_path / ("options" if channel == "options" else "json"))
    assert {record.step for record in dump} == {1}
    assert {record.model for record in dump} == {"graph_1"}
    [record] = dump.select(op="Add_2", io="output")
    np.testing.assert_array_equal(record.numpy(), found.numpy())
    # Data, as producers of what is dumped, are in the tree too.
    names = {record.op_name for record in dump if record.op_type != "Data"}
    assert names == {op.name for op in native.npu.executed}
    assert len(names) == 14
    assert [path for path in native.npu.files if "options" in path.parts] == [] or channel == "options"


def test_an_input_that_is_not_fed_takes_no_number(native, inputs, tmp_path):
    native.InitializeGraphEngine(dumping(tmp_path))
    load(native).run((inputs, [], None))
    found = ascend_dump.open(tmp_path).select(op="MatMulV2")
    assert [(record.io, record.index, record.shape) for record in found] == [
        ("input", 0, (5, 8)),
        ("input", 1, (8, 16)),
        ("output", 0, (5, 16)),
    ]


def test_the_first_options_count(native, inputs, tmp_path):
    native.InitializeGraphEngine(options())
    native.InitializeGraphEngine(dumping(tmp_path))
    load(native).run((inputs, [], None))
    assert native.npu.files == []


def test_a_json_that_acl_refuses_is_in_the_log_only(native, tmp_path):
    native.InitializeGraphEngine(options())
    native.AclmdlSetDump(str(tmp_path / "missing.json"))
    [line] = [line for line in native.npu.log if line.startswith("AclmdlSetDump")]
    assert "Fail in acl set dump, return 100003" in line


def test_refused_options_fail_every_initialisation(native, tmp_path):
    with pytest.raises(RuntimeError, match="Device id is not specified"):
        native.InitializeGraphEngine({})
    for _ in range(2):
        with pytest.raises(RuntimeError, match="Failed to initialize GE"):
            native.InitializeGraphEngine(dumping(tmp_path / "missing"))
    with pytest.raises(RuntimeError, match="Failed to initialize GE"):
        load(native)


def test_another_device_is_refused(native):
    with pytest.raises(RuntimeError, match="ACL set device id failed"):
        native.InitializeGraphEngine({**options(), "ge.exec.deviceId": "3"})


def test_a_dump_begun_by_torch_npu_is_in_the_way(tmp_path):
    config = tmp_path / "dump.json"
    config.write_text(json.dumps({"dump": {"dump_path": str(tmp_path), "dump_list": []}}))
    with fakes.install("acl", "torchair_native"):
        import acl

        native = sys.modules["torchair.core._torchair"]
        assert acl.init() == 0
        assert acl.mdl.init_dump() == 0
        with pytest.raises(RuntimeError, match="Fail in acl init dump, return 100002"):
            native.InitializeGraphEngine({**options(), "ge_dump_with_acl_config": str(config)})


def test_a_dump_ended_by_other_means_is_told_by_finalize_and_not_by_the_block(tmp_path):
    config = tmp_path / "dump.json"
    config.write_text(json.dumps({"dump": {"dump_path": str(tmp_path), "dump_list": []}}))
    with fakes.install("acl", "torchair_native"):
        import acl

        native = sys.modules["torchair.core._torchair"]
        for _ in range(2):
            native.InitializeGraphEngine({**options(), "ge_dump_with_acl_config": str(config)})
            assert acl.mdl.finalize_dump() == 0
            with pytest.raises(RuntimeError, match="Fail in acl finalize dump"):
                native.FinalizeGraphEngine()
        native.InitializeGraphEngine({**options(), "ge_dump_with_acl_config": str(config)})
        assert acl.mdl.finalize_dump() == 0


def test_nothing_runs_before_its_time(native, inputs):
    graph = native.TorchNpuGraphBase("graph_1")
    with pytest.raises(RuntimeError, match="Executor is not initialized"):
        graph.run((inputs, [], None))
    with pytest.raises(RuntimeError, match="must after load"):
        graph.set_hint_shape([], [])
    with pytest.raises(RuntimeError, match="Session is not initialized"):
        load(native)
    with pytest.raises(RuntimeError, match="Executor type is unknown"):
        load(native, executor=2)


def test_what_is_no_tensor_is_refused(native, inputs):
    native.InitializeGraphEngine(options())
    graph = load(native)
    for wrong, message in ((None, "element 1 is None"), (3, "element 1 is not a Tensor")):
        with pytest.raises(RuntimeError, match=message):
            graph.run(([inputs[0], wrong], [], None))
    with pytest.raises(RuntimeError, match="not a list or tuple"):
        graph.run((iter(inputs), [], None))
    with pytest.raises(RuntimeError, match="'arg1_1' is input 1 of the graph, and 1 were given"):
        graph.run((inputs[:1], [], None))


def test_an_operator_that_is_missing_is_named(native):
    native.InitializeGraphEngine(options())
    graph = load(native, build(("x", "Data", [], {"index": 0}), ("wave_3", "Wavelet", ["x:0"], {})))
    with pytest.raises(NotSupported, match=r"no operator Wavelet \('wave_3'\)"):
        graph.run(([torch.ones(2)], [], None))


def test_control_flow_is_refused_when_it_is_loaded(native):
    message, _ = _ge_model._model_class()
    model = message()
    model.graph.add(name="g").op.add(name="If_1", type="If", subgraph_name=["then"])
    with pytest.raises(NotSupported, match="If 'If_1' has subgraphs"):
        load(native, model.SerializeToString())


def test_outputs_are_memory_of_their_own(native):
    native.InitializeGraphEngine(options())
    ops = [
        ("x", "Data", [], {"index": 0}),
        ("same", "Identity", ["x:0"], {}),
        ("out", "NetOutput", ["same:0", "same:0", "x:0"], {}),
    ]
    x = torch.arange(4.0)
    found = load(native, build(*ops), (FLOAT,) * 3).run(([x], [], None))
    assert len({tensor.data_ptr() for tensor in (x, *found)}) == 4
    assert all(torch.equal(tensor, x) for tensor in found)


def test_assigned_outputs_are_written_in_place(native):
    native.InitializeGraphEngine(options())
    ops = [("x", "Data", [], {"index": 0}), ("y", "Neg", ["x:0"], {}), ("out", "NetOutput", ["y:0", "x:0"], {})]
    place = torch.zeros(2)
    found = load(native, build(*ops), (FLOAT,) * 2).run(([torch.ones(2)], [place, None], None))
    assert found[0] is place
    assert place.tolist() == [-1, -1]


def test_the_npu_checks_the_types_of_outputs(native, inputs):
    native.InitializeGraphEngine(options())
    with pytest.raises(RuntimeError, match=r"are \[0\], the FX graph expects \[9\]"):
        load(native, dtypes=(INT64,), executor=1).run((inputs, [], None))
    with pytest.raises(RuntimeError, match="gave 1 outputs, the FX graph expects 2"):
        load(native, dtypes=(FLOAT, FLOAT)).run((inputs, [], None))


def test_a_trampled_output_is_what_later_operators_read(native, inputs):
    native.npu.trample("Relu", "MatMulV2", offset=0, data=b"\xff" * 4)
    native.npu.trample("MatMulV2_1", "Relu", offset=0, data=np.float32(7).tobytes())
    native.InitializeGraphEngine(options())
    ops = [
        ("x", "Data", [], {"index": 0}),
        ("a", "Neg", ["x:0"], {}),
        ("b", "Abs", ["x:0"], {}),
        ("c", "Add", ["a:0", "b:0"], {}),
        ("out", "NetOutput", ["c:0"], {}),
    ]
    native.npu.trample("b", "a", offset=4, data=np.float32(50).tobytes())
    [found] = load(native, build(*ops)).run(([torch.tensor([1.0, 2.0, 3.0])], [], None))
    assert found.tolist() == [0, 52, 0]


def test_an_operator_told_to_fail_fails(native, inputs):
    native.npu.fail("Relu")
    native.InitializeGraphEngine(options())
    with pytest.raises(RuntimeError, match="Relu 'Relu' failed"):
        load(native).run((inputs, [], None))


def test_a_finalised_session_starts_anew(native, inputs, tmp_path):
    native.InitializeGraphEngine(options())
    graph = load(native)
    graph.run((inputs, [], None))
    native.FinalizeGraphEngine()
    assert native.npu.models == ()
    with pytest.raises(RuntimeError, match="Session is not initialized"):
        graph.run((inputs, [], None))
    native.InitializeGraphEngine(dumping(tmp_path, dumpStep="0"))
    graph.run((inputs, [], None))
    assert {record.step for record in ascend_dump.open(tmp_path)} == {0}


def test_each_block_has_its_own_device(inputs):
    with fakes.install("torchair_native") as first:
        native = sys.modules["torchair.core._torchair"]
        native.InitializeGraphEngine(options())
        graph = load(native)
    with pytest.raises(RuntimeError, match="has ended"):
        native.InitializeGraphEngine(options())
    native.FinalizeGraphEngine()  # when the process ends
    with fakes.install("torchair_native") as second:
        assert sys.modules["torchair.core._torchair"] is native
        native.InitializeGraphEngine(options())
        load(native).run((inputs, [], None))
    assert (len(first.executed), len(second.executed)) == (0, 14)
    with pytest.raises(RuntimeError, match="Session is not initialized"):
        graph.run((inputs, [], None))
    assert "torchair.core._torchair" not in sys.modules


def test_what_cannot_be_done_says_so(native):
    with pytest.raises(NotSupported, match="cannot export graphs"):
        native.export(b"", {})
    with pytest.raises(NotSupported, match="llm_datadist"):
        native.as_torch_tensors([1], 0, [0])
    assert native.GetSocName() == "Ascend910B"
    assert native.check_cann_compat("Add", (), ()) == ""
    assert native.get_registered_ir_def("Mine") == ("None", [], [], [])


# Values.

DTYPES = (torch.float32, torch.float16, torch.bfloat16, torch.float64, torch.int8, torch.uint8, torch.int16)
DTYPES = (*DTYPES, torch.int32, torch.int64, torch.bool, torch.complex64, torch.float8_e5m2, torch.float8_e4m3fn)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_tensors_become_arrays_and_back(dtype):
    tensor = torch.tensor([[0.0, 1.0, -2.0], [3.0, 4.0, 0.5]]).abs().to(dtype).t()
    array = to_array(tensor)
    assert array.shape == tuple(tensor.shape)
    assert array.dtype.itemsize == tensor.element_size()
    np.testing.assert_array_equal(array.astype("c16"), tensor.to(torch.complex128).numpy())
    assert torch.equal(to_tensor(array, tensor).cfloat(), tensor.cfloat())
    assert torch_dtype(ge_number(dtype)) is dtype


def test_a_type_that_torch_or_ge_lacks_is_refused():
    with pytest.raises(NotSupported, match="STRING"):
        torch_dtype(13)
    with pytest.raises(NotSupported, match="complex32"):
        ge_number(torch.complex32)


# Operators that the models of tests/real/torchair do not have. (type, attributes, inputs, expected)

X = torch.tensor([[1.0, -2.0, 3.0], [-4.0, 5.0, -6.0]])
I3 = torch.tensor([0, 2, 1])
CASES = {
    "Adds": ({"value": 2.0}, [X], X + 2),
    "Addcdiv": ({}, [X, X, X + 9, torch.tensor(2.0)], X + 2 * X / (X + 9)),
    "Addcmul": ({}, [X, X, X, torch.tensor(2.0)], X + 2 * X * X),
    "ArgMaxV2": ({"dtype": 9}, [X, torch.tensor(1)], X.argmax(1)),
    "ArgMaxWithValue": ({"dimension": 1, "keep_dims": True}, [X], (torch.tensor([[2], [1]]), X.amax(1, True))),
    "AsStrided": ({}, [X, torch.tensor([2, 2]), torch.tensor([3, 1]), torch.tensor(1)], X[:, 1:]),
    "Axpy": ({"alpha": 3.0}, [X, X], X * 4),
    "AxpyV2": ({}, [X, X, torch.tensor(3.0)], X * 4),
    "Bitcast": ({"type": 3}, [X], X.view(torch.int32)),
    "ClipByValueV2": ({}, [X, torch.tensor(-1.0), torch.tensor(1.0)], X.clamp(-1, 1)),
    "ConcatD": ({"concat_dim": 1}, [X, X], torch.cat([X, X], 1)),
    "Cumsum": ({"exclusive": True, "reverse": True}, [X, torch.tensor(1)], torch.tensor([[1.0, 3, 0], [-1, -6, 0]])),
    "Div": ({}, [torch.tensor([7, -7]), torch.tensor([2, 2])], torch.tensor([3, -3])),
    "Exp": ({"base": 2.0, "scale": 2.0, "shift": 1.0}, [X], torch.exp2(2 * X + 1)),
    "ExpandDims": ({}, [X, torch.tensor(-1)], X[..., None]),
    "Gather": ({}, [X, torch.tensor([1, 1])], X[[1, 1]]),
    "GatherElements": ({"dim": 1}, [X, torch.tensor([[2], [0]])], torch.tensor([[3.0], [-4.0]])),
    "HardSigmoid": ({}, [X], torch.nn.functional.hardsigmoid(X)),
    "HardSwish": ({}, [X], torch.nn.functional.hardswish(X)),
    "LeakyRelu": ({"negative_slope": 0.1}, [X], torch.nn.functional.leaky_relu(X, 0.1)),
    "LeakyReluGrad": ({"negative_slope": 0.1}, [X * 0 + 1, X], (X > 0) + (X <= 0) * 0.1),
    "Lerp": ({}, [X, X * 3, torch.tensor(0.5)], X * 2),
    "Log": ({"base": 2.0}, [X.abs()], X.abs().log2()),
    "MaskedFill": ({}, [X, X > 0, torch.tensor([9.0])], X.masked_fill(X > 0, 9)),
    "Muls": ({"value": 2.0}, [X], X * 2),
    "PadV3": (
        {},
        [X, torch.tensor([0, 1, 2, 0]), torch.tensor(5.0)],
        torch.nn.functional.pad(X, [2, 0, 0, 1], value=5),
    ),
    "Permute": ({"order": [1, 0]}, [X], X.t()),
    "ReduceAll": ({"keep_dims": True}, [X > -5, torch.tensor([0, 1])], torch.tensor([[False]])),
    "ReduceMax": ({}, [X, torch.tensor([-1])], X.amax(1)),
    "ReduceProd": ({}, [X, torch.tensor([0, 1])], X.prod()),
    "ReduceSumD": ({"axes": [0]}, [X], X.sum(0)),
    "ReverseV2": ({}, [X, torch.tensor([1])], X.flip(1)),
    "RmsNorm": (
        {"epsilon": 0.0},
        [X, X[0]],
        (X * X[0] * X.square().mean(1, True).rsqrt(), X.square().mean(1, True).rsqrt()),
    ),
    "ScatterElements": (
        {"axis": 1},
        [X, torch.tensor([[0], [1]]), X[:, :1] * 0],
        X * torch.tensor([[0, 1, 1], [1, 0, 1]]),
    ),
    "Size": ({"dtype": 9}, [X], torch.tensor(6)),
    "Slice": ({}, [X, torch.tensor([0, 1]), torch.tensor([1, -1])], X[:1, 1:]),
    "Sort": ({"axis": 0, "descending": True}, [X[0]], (X[0].sort(descending=True)[0], torch.tensor([2, 0, 1]))),
    "Split": ({"num_split": 3}, [torch.tensor(1), X], X.split(1, 1)),
    "SplitV": ({"num_split": 2}, [X, torch.tensor([1, -1]), torch.tensor(1)], (X[:, :1], X[:, 1:])),
    "Square": ({}, [X], X * X),
    "Squeeze": ({"axis": []}, [X[:, None]], X),
    "StridedSliceV2": ({}, [X, torch.tensor([0]), torch.tensor([3]), torch.tensor([1]), torch.tensor([2])], X[:, ::2]),
    "Tile": ({}, [X, torch.tensor([1, 2])], X.repeat(1, 2)),
    "TopKV2": ({}, [X[0], torch.tensor(2)], (torch.tensor([3.0, 1.0]), torch.tensor([2, 0]))),
    "Tril": ({"diagonal": -1}, [X], X.tril(-1)),
    "TruncateDiv": ({}, [torch.tensor([7.5]), torch.tensor([2.0])], torch.tensor([3.0])),
    "Unpack": ({"axis": 1}, [X], X.unbind(1)),
}


@pytest.mark.parametrize("op_type", CASES)
def test_an_operator_computes_what_its_prototype_says(op_type):
    attrs, inputs, expected = CASES[op_type]
    before = [each.clone() for each in inputs]
    found = compute(GeOp("op", op_type, (), attrs), inputs)
    wanted = expected if isinstance(expected, tuple) else (expected,)
    assert len(found) == len(wanted)
    for one, other in zip(found, wanted):
        torch.testing.assert_close(one, other, check_dtype=False)
    assert all(torch.equal(one, other) for one, other in zip(before, inputs))


@pytest.mark.parametrize(("op_type", "name"), [("SwishGrad", "silu"), ("GeluGrad", "gelu"), ("SoftmaxGrad", "softmax")])
def test_a_gradient_is_the_one_autograd_finds(op_type, name):
    x = X.clone().requires_grad_()
    arguments = {"silu": {}, "gelu": {"approximate": "tanh"}, "softmax": {"dim": -1}}[name]
    y = getattr(torch.nn.functional, name)(x, **arguments)
    weights = torch.arange(6.0).reshape(2, 3)
    (y * weights).sum().backward()
    given = [y.detach(), weights] if name == "softmax" else [weights, X, y.detach()]
    [found] = compute(GeOp("op", op_type, (), {}), given)
    torch.testing.assert_close(found, x.grad)


@pytest.mark.parametrize(
    ("op_type", "attrs", "inputs"),
    [
        ("Gather", {"batch_dims": 1}, [X, I3]),
        ("PadV3", {"mode": "circular"}, [X, I3, X]),
        ("Reshape", {"axis": 1}, [X, I3]),
        ("StridedSliceV2", {"shrink_axis_mask": 1}, [X, I3, I3]),
    ],
)
def test_what_an_operator_does_not_do_here_says_so(op_type, attrs, inputs):
    with pytest.raises(NotSupported, match=f"{op_type} 'op_7'"):
        compute(GeOp("op_7", op_type, (), attrs), inputs)


def test_each_operator_stands_in_one_table():
    assert not set(_ge_table.OPERATORS) & set(_npu_ops.OPERATORS)
    assert len(known_types()) == len(_ge_table.OPERATORS) + len(_npu_ops.OPERATORS)


DTYPES_OF_KERNELS = (torch.float32, torch.float64, torch.float16, torch.bfloat16)
IMAGE = torch.linspace(-2, 2, 2 * 4 * 5 * 5).reshape(2, 4, 5, 5)
KERNEL = torch.linspace(-1, 1, 6 * 2 * 3 * 3).reshape(6, 2, 3, 3)
CONVOLUTION = {"strides": [1, 1, 2, 2], "pads": [1, 1, 1, 1], "dilations": [1, 1, 1, 1], "groups": 2}
SHARED = {
    "Add": ({}, [X, X[0]], lambda x, y: x + y),
    "BatchMatMulV2": ({"adj_x2": True}, [X[None], X[None], None, None], lambda x, y: x @ y.mT),
    "Cast": ({"dst_type": 3}, [X], lambda x: x.int()),
    "Conv2D": (CONVOLUTION, [IMAGE, KERNEL, None], lambda x, w: torch.nn.functional.conv2d(x, w, None, 2, 1, 1, 2)),
    "Flatten": ({"axis": 1, "end_axis": 2}, [IMAGE], lambda x: x.flatten(1, 2)),
    "GatherV2": ({}, [X, I3[:2], torch.tensor([1])], lambda x, index, axis: x[:, index]),
    "Gelu": ({}, [X], lambda x: torch.nn.functional.gelu(x, approximate="tanh")),
    "MatMulV2": ({"transpose_x1": True}, [X, X, X[0], None], lambda x, y, b: x.T @ y + b),
    "Neg": ({}, [X], torch.neg),
    "Pow": ({}, [X, torch.tensor(3.0)], torch.pow),
    "RealDiv": ({}, [X, X + 9], torch.div),
    "ReduceMean": ({"keep_dims": True}, [X, torch.tensor([0, -1])], lambda x, axes: x.mean((0, -1), True)),
    "ReduceSum": ({}, [X, torch.empty(0, dtype=torch.int64)], lambda x, axes: x),
    "Relu": ({}, [X], torch.relu),
    "Reshape": ({}, [X, torch.tensor([3, -1])], lambda x, shape: x.reshape(3, -1)),
    "Sigmoid": ({}, [X], torch.sigmoid),
    "SoftmaxV2": ({"axes": [0]}, [X], lambda x: x.softmax(0)),
    "Swish": ({}, [X], torch.nn.functional.silu),
    "TransposeD": ({"perm": [1, 0]}, [X], lambda x: x.T),
}


@pytest.mark.parametrize("dtype", DTYPES_OF_KERNELS, ids=str)
@pytest.mark.parametrize("op_type", SHARED)
def test_what_numpy_computes_is_what_torch_computes(op_type, dtype):
    attrs, inputs, call = SHARED[op_type]
    inputs = [each if each is None or not each.is_floating_point() else each.to(dtype) for each in inputs]
    [found] = compute(GeOp("op", op_type, (), attrs), inputs)
    torch.testing.assert_close(found, call(*(each for each in inputs if each is not None)))


def test_a_softmax_in_half_precision_may_give_single_precision():
    [found] = compute(GeOp("op", "SoftmaxV2", (), {"axes": [-1], "half_to_float": True}), [X.bfloat16()])
    torch.testing.assert_close(found, X.bfloat16().float().softmax(-1))


def test_inputs_that_do_not_fit_name_the_operator():
    with pytest.raises(ascend_dump.ConfigError, match=r"MatMul 'm' cannot be computed from float32 \(2, 3\)"):
        compute(GeOp("m", "MatMul", (), {}), [X, X])
    with pytest.raises(ascend_dump.ConfigError, match=r"Tile 't' cannot be computed from torch.float32 \(2, 3\)"):
        compute(GeOp("t", "Tile", (), {}), [X])
    assert "Conv2DBackpropFilter" in known_types()
