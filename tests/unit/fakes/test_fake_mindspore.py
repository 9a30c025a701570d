"""The fake MindSpore: when it reads the configuration, with which words it refuses it, and which trees it writes.

The moments and counts are those measured with MindSpore 2.10.0 on a CPU.
"""

from __future__ import annotations

import csv
import io
import json
import os
import re
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import mindspore_programs
import numpy as np
import places
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays
from mindspore_programs import (
    conv_net,
    dense_net,
    environment,
    images,
    in_graph_mode,
    infer,
    names,
    rows,
    settings,
    train,
    write_settings,
)

import ascend_dump
from ascend_dump import fakes
from ascend_dump.fakes.device.npu import Npu
from ascend_dump.fakes.mindspore._disk import npy_bytes

VARIABLE = "MINDSPORE_DUMP_CONFIG"
DATA = places.DATA / "mindspore"
VECTORS = [json.loads(line) for line in (DATA / "config_vectors.jsonl").read_text().splitlines()]
#: What a JSON parser says of bad syntax is its own.
PARSER = "Parse dump json failed, error:[json.exception.parse_error.101]"
OUT = "out"


@pytest.fixture
def npu(monkeypatch: pytest.MonkeyPatch) -> Iterator[Npu]:
    monkeypatch.delenv(VARIABLE, raising=False)
    with fakes.install("mindspore") as device:
        yield device


@pytest.fixture
def config(tmp_path: Path) -> Any:
    """Writes a dump JSON and points the environment at it; the dump goes to `tmp_path/out`."""

    def make(**common: Any) -> None:
        os.environ[VARIABLE] = write_settings(tmp_path / "dump.json", settings(tmp_path / OUT, **common))

    with environment(**{VARIABLE: ""}):
        yield make


def tensors(tmp_path: Path) -> list[str]:
    return sorted(name for name in names(tmp_path / OUT) if name.endswith(".npy"))


def load(path: Path) -> Any:
    return np.load(path, allow_pickle=False)


# When the configuration is read.


def test_without_the_variable_nothing_is_written(npu, tmp_path):
    in_graph_mode()
    dense_net()(rows())
    assert not (tmp_path / OUT).exists()


@pytest.mark.parametrize("moment", ["import", "context", "cell", "tensor"])
def test_before_the_first_operator_it_is_read(npu, config, tmp_path, moment):
    ms = None
    for step in ("import", "context", "cell", "tensor"):
        if step == "import":
            import mindspore as ms
        elif step == "context":
            in_graph_mode()
        elif step == "cell":
            net = dense_net()
        else:
            x = rows()
        if step == moment:
            config()
    assert not ms.hal.device.is_initialized("CPU")
    net(x)
    assert ms.hal.device.is_initialized("CPU")
    assert len(tensors(tmp_path)) == 14
    assert len(names(tmp_path / OUT)) == 14 + 4 + 2


def test_after_an_operator_only_the_metadata_is_missing(npu, config, tmp_path):
    ms = in_graph_mode()
    ms.set_context(mode=ms.PYNATIVE_MODE)
    _ = rows() + 1
    assert ms.hal.device.is_initialized("CPU")
    config()
    ms.set_context(mode=ms.GRAPH_MODE)
    dense_net()(rows())
    assert len(tensors(tmp_path)) == 14
    assert not (tmp_path / OUT / "rank_0" / ".dump_metadata").exists()


def test_after_compiling_it_is_silent(npu, config, tmp_path):
    in_graph_mode()
    net = dense_net()
    net.compile(rows())
    config()
    net(rows())
    assert not (tmp_path / OUT).exists()


def test_after_a_run_another_cell_leaves_its_graph_only(npu, config, tmp_path):
    in_graph_mode()
    net = dense_net()
    net(rows())
    config()
    net(rows())
    assert not (tmp_path / OUT).exists()
    # The compilation that reads it does so too late for its own graph.
    dense_net()(rows())
    assert not (tmp_path / OUT).exists()
    dense_net()(rows())
    graph = "ms_output_trace_code_graph_2"
    assert sorted(names(tmp_path / OUT)) == [
        "rank_0/execution_order/ms_execution_order_graph_2.csv",
        f"rank_0/graphs/{graph}.ir",
        f"rank_0/graphs/{graph}.pb",
    ]


def test_the_first_file_is_final(npu, config, tmp_path):
    in_graph_mode()
    config(iteration="0|1")
    net = dense_net()
    net.compile(rows())
    os.environ[VARIABLE] = ""
    net(rows())
    os.environ[VARIABLE] = str(tmp_path / "no such file.json")
    net(rows())
    net(rows())
    assert len(tensors(tmp_path)) == 28


def test_a_refused_file_is_read_again(npu, config, tmp_path):
    ms = in_graph_mode()
    config(dump_mode=3)
    net = dense_net()
    for _ in range(2):
        with pytest.raises(RuntimeError, match="dump_mode should be 0, 1 or 2, but got 3"):
            net(rows())
        assert not ms.hal.device.is_initialized("CPU")
    config()
    net(rows())
    assert len(tensors(tmp_path)) == 14


@pytest.mark.parametrize("entry", ["communication.init", "mint.distributed.init_process_group"])
def test_communication_reads_it(npu, config, tmp_path, entry, monkeypatch):
    ms = in_graph_mode()
    place, _, function = entry.rpartition(".")
    module = ms
    for name in place.split("."):
        module = getattr(module, name)
    with pytest.raises(RuntimeError, match="without using 'mpirun'"):
        getattr(module, function)()
    monkeypatch.setenv("RANK_ID", "1")
    monkeypatch.setenv("RANK_SIZE", "2")
    config(net_name="a/b")
    with pytest.raises(RuntimeError, match="net_name only supports"):
        getattr(module, function)()
    assert not ms.hal.device.is_initialized("CPU")
    config()
    getattr(module, function)()
    assert ms.hal.device.is_initialized("CPU")
    assert [ms.communication.get_rank(), ms.communication.get_group_size()] == [1, 2]
    dense_net()(rows())
    # Only the first rank has metadata and a history.
    assert {name.partition("/")[0] for name in names(tmp_path / OUT)} == {"rank_1"}
    assert len(names(tmp_path / OUT)) == 14 + 3


@pytest.mark.parametrize("vector", VECTORS, ids=lambda vector: vector["name"])
def test_every_configuration_has_the_recorded_verdict(vector, tmp_path, monkeypatch):
    """The message, and how many tensors three steps of the network write into which iterations."""
    (tmp_path / "file").touch()

    def put(text: str) -> str:
        return text.replace("@OUT@", str(tmp_path / OUT)).replace("@FILE@", str(tmp_path / "file"))

    file = tmp_path / "dump.json"
    file.write_bytes(put(vector["config"]).encode("latin-1" if "\0" in vector["config"] else "utf-8"))
    for name, value in {VARIABLE: str(file), **vector["env"]}.items():
        monkeypatch.setenv(name, put(value))
    said = ""
    with fakes.install("mindspore"):
        in_graph_mode()
        net = dense_net()
        try:
            for _ in range(3):
                net(rows())
        except RuntimeError as error:
            said = str(error)
    expected = put(vector["message"] or "")
    if expected.startswith(PARSER):
        said, expected = said[: len(PARSER)], PARSER
    assert said.strip() == expected.strip()
    written = [Path(name) for name in names(tmp_path / OUT) if name.endswith(".npy")]
    if vector["files"] is not None:
        assert len(written) == vector["files"]
    if vector["iterations"] or vector["files"] == 0:
        assert sorted({int(path.parent.name) for path in written}) == vector["iterations"]


# Steps.


def test_the_iteration_is_the_count_of_the_graph_that_ran_before(npu, config, tmp_path):
    in_graph_mode()
    config(input_output=2, dump_mode=1, kernels=["relu"])
    first, second, third = dense_net(), dense_net(), dense_net()
    for net in (first, first, first, second, third):
        net(rows())
    found = {tuple(name.split("/")[2:4]) for name in tensors(tmp_path)}
    assert found == {("0", "0"), ("0", "1"), ("0", "2"), ("1", "3"), ("2", "1")}


def test_names_go_on_over_the_graphs_and_the_graph_texts_do_not(npu, config, tmp_path):
    in_graph_mode()
    config(dump_mode=1, kernels=["Default/relu-ReLU/ReLU-op1"])
    dense_net()(rows())
    dense_net()(rows())
    assert {name.split(".")[1] for name in tensors(tmp_path)} == {"Default_relu-ReLU_ReLU-op1"}
    text = (tmp_path / OUT / "rank_0/graphs/ms_output_trace_code_graph_1.ir").read_text()
    assert "# Fullname with scope: (Default/relu-ReLU/ReLU-op0)" in text
    assert f"# In file {mindspore_programs.__file__}:" in text
    assert "return self.relu(self.fc(x))" in text


def test_a_new_shape_is_a_new_graph(npu, config, tmp_path):
    in_graph_mode()
    config()
    net = dense_net()
    for count in (2, 2, 3):
        net(rows(count))
    graphs = {name.split("/")[2] for name in tensors(tmp_path)}
    assert graphs == {"0", "1"}


def test_the_program_can_count_steps_itself(npu, config, tmp_path):
    ms = in_graph_mode()
    config(iteration="0-9", dump_mode=1, kernels=["relu"], input_output=2)
    net = dense_net()
    native = ms._c_expression
    native._dump_step(1)
    assert "Costomized step function" in npu.log[-1]
    native._set_init_iter(5)
    for _ in range(2):
        net(rows())
    native._dump_step(2)
    net(rows())
    native._set_init_iter(10**6)
    net(rows())
    native._set_init_iter(0)
    net(rows())
    assert {name.split("/")[3] for name in tensors(tmp_path)} == {"0", "5", "7"}


def test_the_initial_iteration_shifts_the_numbers(npu, config, tmp_path):
    in_graph_mode()
    config(initial_iteration=5, iteration="5|6")
    net = dense_net()
    for _ in range(3):
        net(rows())
    assert {name.split("/")[3] for name in tensors(tmp_path)} == {"5", "6"}


def test_a_history_names_an_iteration_once(npu, config, tmp_path):
    """As measured: what runs in the iteration of the one before leaves no line."""
    in_graph_mode()
    config()
    for net in (dense_net(), dense_net(), dense_net()):
        net(rows())
    orders = tmp_path / OUT / "rank_0/execution_order"
    assert {path.name: path.read_text() for path in orders.glob("ms_global_*")} == {
        "ms_global_execution_order_graph_0.csv": "0\n",
        "ms_global_execution_order_graph_1.csv": "1\n",
    }


# What is written.


@pytest.mark.parametrize(
    ("program", "recorded"), [(infer, "conv_iter_0_2"), (lambda: train("plain"), "model_train")], ids=["infer", "train"]
)
def test_the_tree_has_the_names_of_a_recorded_one(npu, config, tmp_path, program, recorded):
    config(iteration="0|2")
    program()
    real, fake = names(DATA / recorded), names(tmp_path / OUT)
    # The copy has no .pb, and of the training one step.
    steps = {str(Path(name).parent) for name in real}
    assert {name for name in fake if str(Path(name).parent) in steps and not name.endswith(".pb")} == set(real)
    for file in (DATA / recorded / "rank_0/execution_order").iterdir():
        there = tmp_path / OUT / "rank_0/execution_order" / file.name
        strip = [re.sub(r"\d+$", "", line) if "/" in line else line for line in file.read_text().splitlines()]
        assert sorted(strip) == sorted(
            re.sub(r"\d+$", "", line) if "/" in line else line for line in there.read_text().splitlines()
        )


def test_the_dump_reads_back(npu, config, tmp_path):
    config(iteration="1")
    train("sgd")
    dump = ascend_dump.open(tmp_path / OUT)
    assert dump.errors() == []
    assert {record.step for record in dump} == {1}
    [record] = dump.select(op="*conv1*", op_type="Conv2D", io="output")
    assert record.numpy().shape == (2, 2, 6, 6)


def test_files_are_private_and_hold_the_values(npu, config, tmp_path):
    in_graph_mode()
    config()
    net = dense_net()
    result = net(rows())
    root = tmp_path / OUT / "rank_0"
    for path in root.rglob("*"):
        assert stat.S_IMODE(path.stat().st_mode) == (0o700 if path.is_dir() else 0o400), path
    [output] = root.glob("Net/0/0/ReLU.*.output.0.DefaultFormat.Float32.npy")
    assert np.array_equal(load(output), result.asnumpy())
    assert output.read_bytes()[:10] == b"\x93NUMPY\x01\x00\x76\x00"
    assert b"'shape': (2,3,), }" in output.read_bytes()[:128]
    [flag] = root.glob("Net/0/0/MatMul.*.input.3.DefaultFormat.Bool.npy")
    assert load(flag).item() is True
    assert json.loads((root / ".dump_metadata/config.json").read_text()) == {
        "device_target": "CPU",
        "ms_version": "2.10.0",
    }


def test_inputs_are_seen_after_the_kernel_ran(npu, config, tmp_path):
    config(iteration="0", dump_mode=1, kernels=["AssignAdd"])
    train()
    [before] = (tmp_path / OUT).rglob("AssignAdd.*.input.0.*")
    assert load(before).tolist() == [1]


def test_training_is_what_the_mathematics_says(npu):
    """Three steps of Momentum on a network of one layer, against formulas."""
    ms = in_graph_mode()
    from mindspore import nn

    class Net(nn.Cell):
        def __init__(self):
            super().__init__()
            self.fc = nn.Dense(4, 3, weight_init="ones", bias_init="zeros")

        def construct(self, x):
            return self.fc(x)

    net, x, labels = Net(), np.arange(8, dtype=np.float32).reshape(2, 4) / 8, np.array([0, 2], np.int32)
    loss = nn.SoftmaxCrossEntropyWithLogits(sparse=True, reduction="mean")
    step = nn.TrainOneStepCell(nn.WithLossCell(net, loss), nn.Momentum(net.trainable_params(), 0.1, 0.9))
    weight, bias = np.ones((3, 4)), np.zeros(3)
    speed_w, speed_b = np.zeros((3, 4)), np.zeros(3)
    for _ in range(3):
        logits = x @ weight.T + bias
        chances = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
        expected = -np.log(chances[[0, 1], labels]).mean()
        assert float(step(ms.Tensor(x), ms.Tensor(labels))) == pytest.approx(expected, rel=1e-5)
        delta = chances.copy()
        delta[[0, 1], labels] -= 1
        speed_w, speed_b = 0.9 * speed_w + delta.T @ x / 2, 0.9 * speed_b + delta.sum(axis=0) / 2
        weight, bias = weight - 0.1 * speed_w, bias - 0.1 * speed_b
    assert np.allclose(net.fc.weight.asnumpy(), weight, atol=1e-5)
    assert np.allclose(net.fc.bias.asnumpy(), bias, atol=1e-5)


def test_gradients_of_the_layers_are_those_of_differences(npu):
    """The gradient of every weight of a network of convolution, normalisation, pooling and dense layer."""
    import mindspore as ms

    net = conv_net()
    net.set_train()
    target = ms.Tensor(np.array([0, 2], np.int32))

    def loss():
        return ms.ops.cross_entropy(net(images()), target)

    weights = [one for one in net.trainable_params() if one.name != "conv1.weight"]
    rng = np.random.RandomState(3)
    for one in weights:
        one.set_data(ms.Tensor((one.asnumpy() + 0.1 * rng.randn(*one.shape)).astype(np.float32)))
    _, grads = ms.value_and_grad(loss, None, weights)()
    for one, grad in zip(weights, grads):
        before, place = one.asnumpy(), tuple(0 for _ in one.shape)
        sides = []
        for delta in (1e-2, -1e-2):
            moved = before.copy()
            moved[place] += delta
            one.set_data(ms.Tensor(moved))
            sides.append(float(loss()))
        one.set_data(ms.Tensor(before))
        assert float(grad.asnumpy()[place]) == pytest.approx((sides[0] - sides[1]) / 2e-2, abs=2e-2), one.name


def test_bfloat16_is_written_as_it_is(npu, config, tmp_path):
    ms = in_graph_mode()
    config()

    class Net(ms.nn.Cell):
        def construct(self, x):
            return ms.ops.cast(x, ms.float32)

    Net()(ms.Tensor(np.array([1.5, -2.25], np.float32), ms.bfloat16))
    [path] = (tmp_path / OUT).rglob("Cast.*.input.0.DefaultFormat.BFloat16.npy")
    assert b"'descr': '<E2'" in path.read_bytes()
    assert path.read_bytes()[128:] == bytes.fromhex("c03f10c0")


def test_empty_tensors_leave_no_file_and_complex_ones_stop_the_compilation(npu, config, tmp_path):
    ms = in_graph_mode()
    config()

    class Net(ms.nn.Cell):
        def construct(self, x):
            return x + x

    Net()(ms.Tensor(np.zeros((0, 3), np.float32)))
    assert tensors(tmp_path) == []
    with pytest.raises(RuntimeError, match="Unexpected type Complex"):
        Net()(ms.Tensor(np.ones(2, np.complex64)))


def test_pynative_mode_dumps_what_jit_compiles(npu, config, tmp_path):
    import mindspore as ms

    config()

    @ms.jit
    def compiled(a, b):
        return ms.ops.tanh(a * b)

    plain = ms.ops.exp(compiled(rows(), rows())) + 1
    assert plain.shape == (2, 4)
    assert {name.split("/")[-1].split(".")[0] for name in tensors(tmp_path)} == {"Mul", "Tanh", "Parameter"}
    assert {name.split(".")[1] for name in tensors(tmp_path) if "Parameter" in name} == {"a", "b"}


def test_a_second_run_into_the_same_directory_adds_files(config, tmp_path):
    for _ in range(2):
        config(iteration="0")
        with fakes.install("mindspore") as npu:
            in_graph_mode()
            dense_net()(rows())
    assert sum(names(tmp_path / OUT).values()) == 28 + 4 + 2
    assert any("is already exist, skip copy it." in line for line in npu.log)
    history = tmp_path / OUT / "rank_0/execution_order/ms_global_execution_order_graph_0.csv"
    assert history.read_text() == "0\n0\n"


@given(
    arrays(
        st.sampled_from(["?", "i1", "u2", "<i4", "<i8", "<f2", "<f4", "<f8"]),
        array_shapes(min_dims=0, max_dims=4, max_side=5),
    )
)
def test_the_npy_header_is_one_that_numpy_reads(array):
    data = npy_bytes(array)
    assert len(data) == 128 + array.nbytes
    read = np.load(io.BytesIO(data), allow_pickle=False)
    assert (read.dtype, read.shape) == (array.dtype, array.shape)
    assert read.tobytes() == array.tobytes()


def doubled(count: int) -> Any:
    """A network of one operator, and an input of so many elements of 4 bytes."""
    import mindspore as ms

    class Net(ms.nn.Cell):
        def construct(self, x):
            return x + x

    return Net(), ms.Tensor(np.ones(count, np.float32))


def test_a_full_disk_ends_the_run_and_leaves_what_fitted(npu, config, tmp_path):
    in_graph_mode()
    config()
    net, x = doubled(256)
    net.compile(x)
    npu.fill_disk(1152 + 500)
    with pytest.raises(RuntimeError, match=r"insufficient disk space\. Please check"):
        net(x)
    found = sorted((tmp_path / OUT / "rank_0/Net").rglob("*.npy"))
    assert [(path.stat().st_size, stat.S_IMODE(path.stat().st_mode)) for path in found] == [(1152, 0o400), (500, 0o644)]
    # A run that failed does not count.
    npu.fill_disk(1 << 20)
    dense_net()(rows())
    assert {name.split("/")[3] for name in tensors(tmp_path)} == {"0"}


def test_a_full_disk_swallows_small_tensors_and_texts(npu, config, tmp_path):
    """As measured: below 1024 bytes nobody learns of it, and the files are empty."""
    in_graph_mode()
    config()
    npu.fill_disk(0)
    net, x = doubled(255)
    net(x)
    assert sum(names(tmp_path / OUT).values()) == 4 + 4 + 2
    assert all(path.stat().st_size == 0 for path in (tmp_path / OUT).rglob("*") if path.is_file())


def test_a_file_that_was_cut_off_is_told_by_the_reader(npu, config, tmp_path):
    in_graph_mode()
    config(dump_mode=1, kernels=["relu"])
    npu.truncate_files(130)
    dense_net()(rows())
    records = list(ascend_dump.open(tmp_path / OUT))
    assert len(records) == 2
    for record in records:
        with pytest.raises(ascend_dump.CorruptDump):
            record.numpy()


def test_entries_that_match_nothing_are_told_at_the_end(config):
    with fakes.install("mindspore") as npu:
        in_graph_mode()
        config(dump_mode=1, kernels=["relu", "Default/fc-Dense/MatMul-op9", "MatMul-op0", "fc.weight"])
        dense_net()(rows())
    unused = [line.rpartition(": ")[2] for line in npu.log if "Unused Kernel" in line]
    # A parameter has the name of the last entry.
    assert unused == ["Default/fc-Dense/MatMul-op9", "MatMul-op0"]


def test_what_the_fake_lacks_is_said(npu):
    ms = in_graph_mode()
    with pytest.raises(AttributeError, match=r"the fake mindspore\.nn has no 'LSTM'; it has .*Conv2d"):
        _ = ms.nn.LSTM
    with pytest.raises(ascend_dump.NotSupported, match=r"use nn\.Dropout\(p=0\.0\)"):
        ms.nn.Dropout(p=0.5).set_train()(rows())
    with pytest.raises(ascend_dump.NotSupported, match="no gradient of ArgMaxExt"):
        ms.grad(lambda x: ms.ops.argmax(x))(rows())


def fields(data: bytes) -> list[tuple[int, Any]]:
    """The fields of a protobuf message: numbers and, for what has a length, bytes."""
    found, at = [], 0

    def varint() -> int:
        nonlocal at
        value = shift = 0
        while True:
            byte = data[at]
            at += 1
            value |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                return value

    while at < len(data):
        key = varint()
        value: Any = varint()
        if key & 7 == 2:
            value, at = data[at : at + value], at + value
        found.append((key >> 3, value))
    return found


def test_the_protobuf_of_the_graph_names_operators_and_inputs(npu, config, tmp_path):
    in_graph_mode()
    config()
    dense_net()(rows())
    model = dict(fields((tmp_path / OUT / "rank_0/graphs/ms_output_trace_code_graph_0.pb").read_bytes()))
    operators = [fields(body) for _, body in fields(model[4])]
    assert [dict(one)[8].decode() for one in operators] == [
        "Default/fc-Dense/MatMul-op0",
        "Default/fc-Dense/BiasAdd-op0",
        "Default/relu-ReLU/ReLU-op0",
    ]
    inputs = [[dict(fields(body))[1].decode() for number, body in one if number == 1] for one in operators]
    assert inputs[0] == ["x", "fc.weight", "Bool(False)", "Bool(True)"]
    assert inputs[2] == ["2"]


def test_the_network_of_the_document_trains(npu, config, tmp_path):
    """AlexNet as the document writes it, narrower: its names are those that the document prints."""
    ms = in_graph_mode()
    from mindspore import nn
    from mindspore.common.initializer import TruncatedNormal

    def weight_variable():
        return TruncatedNormal(0.02)

    def conv(in_channels, out_channels, kernel_size, stride=1, padding=0, pad_mode="valid"):
        weight = weight_variable()
        return nn.Conv2d(
            in_channels,
            out_channels,
            kernel_size=kernel_size,
            stride=stride,
            padding=padding,
            weight_init=weight,
            has_bias=False,
            pad_mode=pad_mode,
        )

    def fc_with_initialize(input_channels, out_channels):
        weight = weight_variable()
        bias = weight_variable()
        return nn.Dense(input_channels, out_channels, weight, bias)

    class AlexNet(nn.Cell):
        def __init__(self, num_classes=10, channel=3):
            super().__init__()
            self.conv1 = conv(channel, 6, 11, stride=4)
            self.conv2 = conv(6, 8, 5, pad_mode="same")
            self.conv3 = conv(8, 8, 3, pad_mode="same")
            self.relu = nn.ReLU()
            self.max_pool2d = nn.MaxPool2d(kernel_size=3, stride=2)
            self.flatten = nn.Flatten()
            self.fc1 = fc_with_initialize(6 * 6 * 8, 16)
            self.fc2 = fc_with_initialize(16, num_classes)

        def construct(self, x):
            x = self.max_pool2d(self.relu(self.conv1(x)))
            x = self.max_pool2d(self.relu(self.conv2(x)))
            x = self.max_pool2d(self.relu(self.conv3(x)))
            return self.fc2(self.relu(self.fc1(self.flatten(x))))

    config(dump_mode=1, kernels=["conv", "name-regex(Default/.+Flatten-op0)"], iteration="1", input_output=2)
    net = AlexNet()
    data = ms.dataset.NumpySlicesDataset(
        (np.random.RandomState(0).rand(4, 3, 227, 227).astype(np.float32), np.arange(4, dtype=np.int32)),
        ["image", "label"],
        shuffle=False,
    ).batch(2)
    loss = nn.SoftmaxCrossEntropyWithLogits(sparse=True, reduction="mean")
    model = ms.Model(net, loss, nn.SGD(net.trainable_params(), 0.1))
    model.train(1, data, callbacks=ms.train.TimeMonitor(), dataset_sink_mode=False)
    outputs = {name.split(".")[1] for name in tensors(tmp_path) if "Parameter" not in name}
    assert "Default_network-WithLossCell__backbone-AlexNet_conv3-Conv2d_Conv2D-op0" in outputs
    assert sum("Flatten-op0" in name for name in outputs) == 1
    assert sum("Conv2DBackpropInput" in name for name in outputs) == 2
    assert sum("Conv2DBackpropFilter" in name for name in outputs) == 3


def test_own_loops_over_data_are_iterations(npu, config, tmp_path):
    ms = in_graph_mode()
    config(dump_mode=1, kernels=["relu"], input_output=2)
    net = dense_net()
    data = ms.dataset.NumpySlicesDataset(np.ones((6, 4), np.float32), ["x"], shuffle=False).batch(2)
    for inputs in ms.DatasetHelper(data, dataset_sink_mode=False):
        net(*inputs)
    sunk = ms.data_sink(net, data, sink_size=2)
    assert [sunk().shape, sunk().shape] == [(2, 3), (2, 3)]
    with pytest.raises(ascend_dump.NotSupported, match="dataset_sink_mode=False"):
        ms.DatasetHelper(data)
    assert sorted({name.split("/")[3] for name in tensors(tmp_path)}) == ["0", "1", "2", "3", "4", "5", "6"]


@pytest.mark.parametrize("kind", ["file", "dangling", "loop", "long", "too long"])
def test_a_path_that_cannot_be_made_is_logged_and_the_run_goes_on(npu, tmp_path, kind):
    in_graph_mode()
    place = tmp_path / OUT
    if kind == "file":
        place.write_text("a file")
    elif "long" in kind:
        place = place.joinpath("d" * 300) if kind == "long" else place.joinpath(*["d" * 200] * 25)
    else:
        place.symlink_to(place if kind == "loop" else tmp_path / "nowhere")
    with environment(**{VARIABLE: write_settings(tmp_path / "dump.json", settings(place))}):
        assert dense_net()(rows()).shape == (2, 3)
    assert any("Create the dir(" in line for line in npu.log)


def test_a_net_name_that_no_directory_can_have_loses_the_tensors_only(npu, config, tmp_path):
    in_graph_mode()
    config(net_name="n" * 256)
    dense_net()(rows())
    assert tensors(tmp_path) == []
    assert len(names(tmp_path / OUT)) == 4 + 2


def test_a_net_name_that_no_directory_can_have_loses_the_statistics_of_a_gpu(npu, config, tmp_path):
    in_graph_mode("GPU")
    config(net_name="n" * 256, saved_data="full")
    dense_net()(rows())
    assert len(names(tmp_path / OUT)) == 4


def test_a_text_that_cannot_be_opened_is_logged_and_the_run_goes_on(npu, config, tmp_path):
    in_graph_mode()
    (tmp_path / OUT / "rank_0/graphs/ms_output_trace_code_graph_0.ir").mkdir(parents=True)
    config()
    dense_net()(rows())
    assert len(tensors(tmp_path)) == 14
    assert any("Open file" in line and "Is a directory" in line for line in npu.log)


def test_blanks_and_backslashes_of_names_are_written_like_slashes(npu, config, tmp_path):
    ms = in_graph_mode()
    config()

    class Net(ms.nn.Cell):
        def __init__(self):
            super().__init__()
            self.w = ms.Parameter(ms.Tensor(np.ones(4, np.float32)), name="a b.c/d\\e:f")

        def construct(self, x):
            return x + self.w

    Net()(rows())
    [path] = (tmp_path / OUT).rglob("Parameter.a*")
    assert path.name.startswith("Parameter.a_b_c_d_e:f.0.0.")
    [record] = ascend_dump.open(tmp_path / OUT).select(op="a b.c/d\\e:f")
    assert record.path == path


def test_inputs_that_nothing_takes_are_not_written(npu, config, tmp_path):
    ms = in_graph_mode()
    config()

    class Net(ms.nn.Cell):
        def construct(self, x, returned, unused):
            return x + x, returned

    Net()(rows(), rows(), rows())
    assert {name.split(".")[1] for name in tensors(tmp_path) if "Parameter" in name} == {"x", "returned"}


def echo_net():
    import mindspore as ms

    class Net(ms.nn.Cell):
        def construct(self, x):
            return x

    return Net()


def test_a_graph_without_an_operator_is_none(npu, config, tmp_path):
    in_graph_mode()
    config(dump_mode=1, kernels=["relu"])
    same, net = echo_net(), dense_net()
    for one in (same, net, same, same, net):
        one(rows())
    same.compile(rows(3))
    dense_net()(rows())
    assert {tuple(name.split("/")[2:4]) for name in tensors(tmp_path)} == {("0", "0"), ("0", "1"), ("1", "2")}


def test_a_graph_without_an_operator_reads_nothing(npu, config, tmp_path):
    ms = in_graph_mode()
    config(dump_mode=3)
    echo_net()(rows())
    assert not ms.hal.device.is_initialized("CPU")
    config()
    dense_net()(rows())
    assert len(tensors(tmp_path)) == 14


def test_a_compilation_that_fails_changes_no_parameter(npu, config):
    ms = in_graph_mode()
    config()

    class Net(ms.nn.Cell):
        def __init__(self):
            super().__init__()
            self.w = ms.Parameter(ms.Tensor(np.ones(2, np.float32)), name="w")

        def construct(self, x):
            ms.ops.assign_add(self.w, self.w)
            return x + x

    net = Net()
    with pytest.raises(RuntimeError, match="Unexpected type Complex"):
        net(ms.Tensor(np.ones(2, np.complex64)))
    assert net.w.asnumpy().tolist() == [1, 1]


def test_a_graph_that_cannot_be_compiled_loses_its_number_and_no_name(npu, config, tmp_path):
    ms = in_graph_mode()
    config()
    net, x = doubled(2)
    with pytest.raises(RuntimeError, match="Unexpected type Complex"):
        net(ms.Tensor(np.ones(2, np.complex64)))
    net(x)
    assert {tuple(name.split("/")[2:4]) for name in tensors(tmp_path)} == {("1", "0")}
    assert {name.split(".")[1] for name in tensors(tmp_path)} == {"Default_Add-op0", "x"}


def test_abnormal_dump_has_no_history(npu, config, tmp_path):
    in_graph_mode()
    config(op_debug_mode=4)
    dense_net()(rows())
    assert not any("global" in name for name in names(tmp_path / OUT))
    assert {name.split(".")[0].split("/")[-1] for name in tensors(tmp_path)} == {"Parameter"}


# The older and the other devices.


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
