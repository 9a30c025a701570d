"""Offline models: their file, the operators the simulated device computes, and graphs that run on it."""

from __future__ import annotations

import base64
import contextlib
import json
import math

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import ascend_dump
from ascend_dump import ConfigError, CorruptDump, DumpNotFound, NotSupported, ReadError

# Private: every operator of the table is run.
from ascend_dump.fakes.device.graph import output_specs
from ascend_dump.fakes.device.npu import Npu
from ascend_dump.fakes.device.offline_model import OfflineModel, OfflineNode, TensorSpec, check, load, save
from ascend_dump.fakes.kernels.npu_ops import OPERATORS, compute

RANDOM = np.random.default_rng(7)
WEIGHT = RANDOM.standard_normal((4, 2)).astype("f4")
MLP = OfflineModel(
    "mlp",
    (TensorSpec("x", (3, 4), "float32"),),
    (
        OfflineNode("w", "Const", const=WEIGHT),
        OfflineNode("dense", "MatMul", ("x:0", "w:0"), {"transpose_x1": False}),
        OfflineNode("act", "Relu", ("dense:0",), original_names=("relu", "act")),
        OfflineNode("halves", "SplitD", ("act:0",), {"split_dim": 1, "num_split": 2}),
        OfflineNode("out", "NetOutput", ("halves:1",), no_task=True),
    ),
    ("out:0", "halves:0"),
    status_check=True,
)
X = RANDOM.standard_normal((3, 4)).astype("f4")


def run(op_type, *inputs, **attrs):
    """The first output of an operator."""
    return compute(op_type, "op", inputs, attrs)[0]


def same(first, second):
    assert first._replace(nodes=()) == second._replace(nodes=())
    for one, other in zip(first.nodes, second.nodes):
        assert one._replace(const=None) == other._replace(const=None)
        assert (one.const is None) is (other.const is None)
        if one.const is not None:
            assert one.const.dtype == other.const.dtype
            np.testing.assert_array_equal(one.const, other.const)


def test_a_model_survives_its_file(tmp_path):
    save(MLP, tmp_path / "mlp.json")
    loaded = load(tmp_path / "mlp.json")
    same(loaded, MLP)
    same(load((tmp_path / "mlp.json").read_bytes()), MLP)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float8_e4m3fn", "int8", "uint64", "bool", "complex64"])
def test_constants_of_every_type_survive(tmp_path, dtype):
    value = np.array([[0, 1, 1]]).astype(getattr(ml_dtypes, dtype, dtype))
    model = MLP._replace(nodes=(OfflineNode("c", "Const", const=value),), outputs=("c:0",))
    save(model, tmp_path / "m.json")
    same(load(tmp_path / "m.json"), model)


def test_constants_may_be_written_as_numbers():
    found = check(_document(const={"dtype": "float16", "shape": [2, 1], "values": [1, 2.5]}))
    np.testing.assert_array_equal(found.nodes[0].const, np.float16([[1], [2.5]]))


def _document(**node):
    first = {"name": "c", "type": "Const", "const": {"dtype": "int32", "shape": [1], "values": [1]}, **node}
    return {"model": "m", "inputs": [], "nodes": [first], "outputs": ["c:0"]}


@pytest.mark.parametrize(
    ("document", "words"),
    [
        ([], "not a JSON object"),
        ({"inputs": [], "nodes": [], "outputs": []}, "no text under the key 'model'"),
        ({"model": "m", "nodes": [], "outputs": []}, "'inputs' is missing"),
        ({"model": "m", "inputs": [], "nodes": [], "outputs": []}, "no outputs"),
        ({**_document(), "outputs": ["d:0"]}, "no node has that name"),
        ({**_document(), "outputs": ["c"]}, "not `name:output`"),
        ({**_document(), "inputs": [{"name": "x", "shape": [-1], "dtype": "int8"}]}, "sizes"),
        ({**_document(), "inputs": [{"name": "x", "shape": [1 << 20, 1 << 20], "dtype": "int8"}]}, "elements"),
        ({**_document(), "inputs": [{"name": "x", "shape": [1], "dtype": "int5"}]}, "'int5'"),
        ({**_document(), "inputs": [{"name": "c", "shape": [1], "dtype": "int8"}]}, "are called 'c'"),
        (_document(inputs=["later:0"]), "no earlier node"),
        (_document(type=""), "no text under the key 'type'"),
        (_document(const=None), "not a JSON object"),
        (_document(const={"dtype": "int8", "shape": [2], "values": [1]}), "1 numbers"),
        (_document(const={"dtype": "int8", "shape": [2], "data": "AA=="}), "1 bytes"),
        (_document(const={"dtype": "int8", "shape": [2], "data": "*"}), "base64"),
        (_document(const={"dtype": "int8", "shape": [1], "values": ["a"]}), "const"),
        (_document(original_names=[1]), "original_names"),
        (_document(attrs=[]), "attrs"),
    ],
)
def test_what_is_wrong_with_a_document_is_named(document, words, tmp_path):
    with pytest.raises(ConfigError, match=words):
        check(document)
    with pytest.raises(CorruptDump):
        load(json.dumps(document).encode())


@pytest.mark.parametrize("data", [b"", b"\xff", b"{", b"[" * 100_000])
def test_what_is_no_json_is_no_model(data):
    with pytest.raises(CorruptDump, match="not an offline model"):
        load(data)


def test_files_that_cannot_be_read_are_told(tmp_path):
    with pytest.raises(DumpNotFound):
        load(tmp_path / "none.json")
    with pytest.raises(ReadError):
        load(tmp_path)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(list(_document())), inner, max_size=3),
    max_leaves=8,
)


@given(
    st.dictionaries(st.sampled_from(["model", "inputs", "outputs", "status_check"]), JSON),
    st.dictionaries(st.sampled_from(["name", "type", "inputs", "attrs", "const", "original_names", "no_task"]), JSON),
    st.dictionaries(st.sampled_from(["dtype", "shape", "values", "data"]), JSON),
)
def test_hostile_documents_give_typed_errors_only(root, node, const):
    document = _document(**node)
    document["nodes"].append({"name": "d", "type": "Const", "const": const})
    document.update(root)
    with contextlib.suppress(ConfigError):
        found = check(document)
        ports = {spec.name for spec in found.inputs} | {node.name for node in found.nodes}
        assert {port.rpartition(":")[0] for port in found.outputs} <= ports


def test_saving_what_could_not_be_loaded_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="no earlier node"):
        save(MLP._replace(nodes=MLP.nodes[1:]), tmp_path / "m.json")
    assert not (tmp_path / "m.json").exists()


def test_a_graph_runs_and_is_dumped(tmp_path):
    npu = Npu(environ={}, cwd=tmp_path)
    config = {"dump": {"dump_path": str(tmp_path), "dump_mode": "all", "dump_list": [{"model_name": "mlp"}]}}
    (tmp_path / "acl.json").write_text(json.dumps(config))
    assert npu.arm_acl("acl.json") == 0
    found = npu.execute_graph(MLP, {"x": X})
    expected = np.maximum(X @ WEIGHT, 0)
    np.testing.assert_array_equal(found["halves:0"], expected[:, :1])
    np.testing.assert_array_equal(found["out:0"], expected[:, 1:])
    dump = ascend_dump.open(npu.dump_root)
    assert {record.op_name for record in dump} == {"x", "dense", "act", "halves"}
    (record,) = dump.select(op="act", io="output")
    np.testing.assert_array_equal(record.numpy(), expected)
    assert npu.models == ()


def test_a_loaded_graph_runs_step_by_step(tmp_path):
    npu = Npu(environ={}, cwd=tmp_path)
    options = {"ge.exec.enableDump": "1", "ge.exec.dumpPath": str(tmp_path), "ge.exec.dumpStep": "1"}
    assert npu.arm_ge(options) == 0
    loaded = npu.load_model("mlp", ops=MLP.node_infos())
    for step in range(3):
        npu.execute_graph(MLP, {"x": X}, model_id=loaded, step=step)
    assert {record.step for record in ascend_dump.open(npu.dump_root)} == {1}


def test_a_trampled_output_is_what_later_operators_read():
    npu = Npu(environ={})
    clean = npu.execute_graph(MLP, {"x": X})["halves:0"]
    npu.trample("act", "act", offset=0, data=b"\0\0\x80\x7f")
    hit = npu.execute_graph(MLP, {"x": X})["halves:0"]
    assert hit[0, 0] == np.inf
    np.testing.assert_array_equal(hit[1:], clean[1:])


def test_output_specs_are_found_without_data():
    assert output_specs(MLP) == [("out:0", (3, 1), np.dtype("f4")), ("halves:0", (3, 1), np.dtype("f4"))]


@pytest.mark.parametrize(
    ("feeds", "words"),
    [({}, "nothing is fed to the input 'x'"), ({"x": X[:1]}, "but float32"), ({"x": X, "y": X}, "no input 'y'")],
)
def test_feeds_that_do_not_fit_are_told(feeds, words):
    with pytest.raises(ConfigError, match=words):
        Npu(environ={}).execute_graph(MLP, feeds)


def test_an_output_an_operator_does_not_have_is_told():
    with pytest.raises(ConfigError, match="'act' has 1 outputs"):
        Npu(environ={}).execute_graph(MLP._replace(outputs=("act:1",)), {"x": X})


def test_an_operator_the_device_lacks_is_named():
    model = MLP._replace(nodes=(OfflineNode("deep", "FlashAttentionScore", ("x:0",)),), outputs=("deep:0",))
    with pytest.raises(NotSupported, match=r"FlashAttentionScore \('deep'\)"):
        Npu(environ={}).execute_graph(model, {"x": X})


def test_inputs_that_do_not_fit_an_operator_are_told():
    with pytest.raises(ConfigError, match=r"MatMul 'op' cannot be computed from float32 \(3, 4\), float32 \(3, 4\)"):
        run("MatMul", X, X)
    with pytest.raises(ConfigError, match="ConcatD"):
        run("ConcatD", X, X)


def test_the_common_operators_are_there():
    promised = (
        "Conv2D MatMul BatchMatMul FullyConnection Add Sub Mul Div RealDiv Relu Sigmoid Tanh Gelu Swish SoftmaxV2 "
        "MaxPool AvgPool BatchNorm BNInference LayerNorm Reshape Flatten TransposeD ConcatD SplitD Cast ReduceMean "
        "ReduceSum Exp Sqrt Pow GatherV2 NetOutput"
    )
    assert set(promised.split()) <= set(OPERATORS)


ERF = np.vectorize(math.erf)
SMALL = np.float32([-2, -0.5, 0, 1, 3])


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        (run("Add", X, X), X + X),
        (run("Sub", X, np.float32(1)), X - 1),
        (run("Mul", X, X), X * X),
        (run("RealDiv", np.float32([1, -1]), np.float32([0, 2])), [np.inf, -0.5]),
        (run("Div", np.int32([7, -7, 1]), np.int32([2, 2, 0])), [3, -3, 0]),
        (run("Relu", SMALL), [0, 0, 0, 1, 3]),
        (run("Relu", np.int8([-3, 4])), [0, 4]),
        (run("Sigmoid", SMALL), 1 / (1 + np.exp(-SMALL))),
        (run("Tanh", SMALL), np.tanh(SMALL)),
        (run("Swish", SMALL, scale=2.0), SMALL / (1 + np.exp(-2 * SMALL))),
        (run("Exp", SMALL), np.exp(SMALL)),
        (run("Exp", SMALL, base=2.0), np.exp2(SMALL)),
        (run("Sqrt", np.float32([4, 9])), [2, 3]),
        (run("Pow", np.float32([2, 3]), np.float32([3, 2])), [8, 9]),
        (run("SoftmaxV2", np.float32([[0, 0], [0, np.log(3)]])), [[0.5, 0.5], [0.25, 0.75]]),
        (run("SoftmaxV2", np.zeros((2, 4), "f4"), axes=[0]), np.full((2, 4), 0.5)),
        (run("MatMul", X, X, transpose_x2=True), X @ X.T),
        (run("MatMulV2", X, WEIGHT, np.float32([1, 2])), X @ WEIGHT + [1, 2]),
        (run("BatchMatMul", np.stack([X, X]), np.stack([X, X]), adj_x1=True), np.stack([X.T @ X] * 2)),
        (run("FullyConnection", X.reshape(3, 2, 2), WEIGHT.T, np.float32([1, 2])), X @ WEIGHT + [1, 2]),
        (run("Reshape", X, np.int64([2, -1])), X.reshape(2, 6)),
        (run("Reshape", X, shape=[12]), X.reshape(12)),
        (run("Flatten", X.reshape(3, 2, 2)), X),
        (run("TransposeD", X, perm=[1, 0]), X.T),
        (run("ConcatD", X, X, concat_dim=1), np.concatenate([X, X], 1)),
        (run("ReduceMean", X, np.int32([1]), keep_dims=True), X.mean(1, keepdims=True)),
        (run("ReduceSumD", X, axes=[0]), X.sum(0)),
        (run("ReduceSum", X), X.sum()),
        (run("GatherV2", X, np.int32([2, 0]), np.int32([0])), X[[2, 0]]),
        (run("GatherV2", X, np.int32([[1], [1]]), axis=1), X[:, [[1], [1]]]),
        (run("Cast", X, dst_type=3), X.astype("i4")),
        (run("BNInference", X, X[0], abs(X[1]), np.float32([0]), epsilon=1e-3), None),
    ],
)
def test_operators_compute(found, expected):
    if expected is None:
        expected = (X - X[0]) / np.sqrt(abs(X[1]) + 1e-3)
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


def test_gelu_is_the_one_with_tanh():
    exact = 0.5 * SMALL * (1 + ERF(SMALL / np.sqrt(2)))
    np.testing.assert_allclose(run("Gelu", SMALL), exact, atol=1e-3)


def test_layer_norm_gives_its_mean_and_variance_too():
    found, mean, variance = compute("LayerNorm", "ln", [X, np.ones(4, "f4"), np.zeros(4, "f4")], {"begin_norm_axis": 1})
    np.testing.assert_allclose(mean, X.mean(1, keepdims=True), rtol=1e-5)
    np.testing.assert_allclose(variance, X.var(1, keepdims=True), rtol=1e-5)
    np.testing.assert_allclose(found.std(1), np.ones(3), rtol=1e-3)


def test_batch_norm_normalises_channels():
    image = RANDOM.standard_normal((2, 3, 4, 5)).astype("f4")
    ones, zeros = np.ones(3, "f4"), np.zeros(3, "f4")
    found, mean, variance, *_ = compute("BatchNorm", "bn", [image, ones, zeros], {"is_training": True, "epsilon": 0.0})
    np.testing.assert_allclose(mean, image.mean((0, 2, 3)), atol=1e-6)
    np.testing.assert_allclose(found.std((0, 2, 3)), ones, rtol=1e-4)
    again = run("BatchNorm", image, ones, zeros, mean, variance, epsilon=0.0)
    np.testing.assert_allclose(again, found, atol=1e-5)
    last = run("BatchNorm", image.transpose(0, 2, 3, 1), ones, zeros, mean, variance, epsilon=0.0, data_format="NHWC")
    np.testing.assert_allclose(last, found.transpose(0, 2, 3, 1), atol=1e-5)


@pytest.mark.parametrize(
    ("strides", "pads", "dilations", "groups"),
    [((1, 1), (0, 0, 0, 0), (1, 1), 1), ((2, 1), (1, 2, 0, 1), (1, 2), 2), ((1, 2), (1, 1, 1, 1), (2, 1), 4)],
)
def test_convolution_sums_products_over_each_window(strides, pads, dilations, groups):
    x = RANDOM.standard_normal((2, 4, 7, 6)).astype("f4")
    w = RANDOM.standard_normal((8, 4 // groups, 3, 2)).astype("f4")
    bias = RANDOM.standard_normal(8).astype("f4")
    attrs = {"strides": [1, 1, *strides], "pads": list(pads), "dilations": [1, 1, *dilations], "groups": groups}
    padded = np.pad(x, ((0, 0), (0, 0), pads[:2], pads[2:]))
    height = (padded.shape[2] - 2 * dilations[0] - 1) // strides[0] + 1
    width = (padded.shape[3] - dilations[1] - 1) // strides[1] + 1
    expected = np.empty((2, 8, height, width))
    for n, c, i, j in np.ndindex(*expected.shape):
        group = c // (8 // groups)
        window = padded[n, group * w.shape[1] : (group + 1) * w.shape[1]]
        rows = i * strides[0] + dilations[0] * np.arange(3)
        columns = j * strides[1] + dilations[1] * np.arange(2)
        expected[n, c, i, j] = (window[:, rows][:, :, columns] * w[c]).sum() + bias[c]
    np.testing.assert_allclose(run("Conv2D", x, w, bias, **attrs), expected, rtol=1e-4, atol=1e-5)


def test_convolution_in_the_other_layout_is_the_same():
    x, w = RANDOM.standard_normal((1, 5, 5, 3)).astype("f4"), RANDOM.standard_normal((3, 3, 3, 2)).astype("f4")
    first = run("Conv2D", x.transpose(0, 3, 1, 2), w.transpose(3, 2, 0, 1), padding="SAME", strides=[1, 1, 2, 2])
    last = run("Conv2D", x, w, padding="SAME", strides=[1, 2, 2, 1], data_format="NHWC")
    assert last.shape == (1, 3, 3, 2)
    np.testing.assert_allclose(last, first.transpose(0, 2, 3, 1), rtol=1e-5)


def test_pools_take_each_window_without_its_padding():
    image = -np.arange(9, dtype="f4").reshape(1, 1, 3, 3) - 1
    attrs = {"ksize": [1, 1, 2, 2], "strides": [1, 1, 2, 2], "padding": "SAME"}
    np.testing.assert_array_equal(run("MaxPool", image, **attrs)[0, 0], [[-1, -3], [-7, -9]])
    np.testing.assert_array_equal(run("AvgPool", image, **attrs)[0, 0], [[-3, -4.5], [-7.5, -9]])
    assert run("MaxPool", image, ksize=[1, 1, 2, 2], strides=[1, 1, 1, 1]).shape == (1, 1, 2, 2)


@pytest.mark.parametrize("dtype", ["f2", ml_dtypes.bfloat16])
def test_narrow_floats_are_computed_wide_and_rounded_once(dtype):
    x = np.full((1, 4096), 1, dtype)
    found = run("ReduceSum", x, axes=[1])
    assert found.dtype == x.dtype
    assert float(found[0]) == 4096
    assert np.isinf(run("Mul", np.array([60000], "f2"), np.array([2], "f2")))[0]


@pytest.mark.parametrize("op_type", ["Relu", "Reshape", "TransposeD"])
def test_results_are_contiguous_arrays_of_the_same_type(op_type):
    found = run(op_type, X.T.astype("f2"), perm=[1, 0], shape=[-1])
    assert found.dtype == np.float16
    assert found.flags.c_contiguous


def test_the_bytes_of_a_constant_are_little_endian():
    data = base64.b64encode(np.array([1, 256], "<u2").tobytes()).decode()
    found = check(_document(const={"dtype": "uint16", "shape": [2], "data": data}))
    assert found.nodes[0].const.tolist() == [1, 256]


def test_constants_are_saved_as_little_endian(tmp_path):
    values = np.array([1.0, -2.5], ">f4")
    save(OfflineModel("m", (), (OfflineNode("w", "Const", const=values),), ("w:0",)), tmp_path / "m.om")
    assert load(tmp_path / "m.om").nodes[0].const.tolist() == [1.0, -2.5]
