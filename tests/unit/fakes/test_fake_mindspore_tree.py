"""The tree that the fake MindSpore writes: files, names, graphs and values, as MindSpore 2.10.0 does on a CPU."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import places
import pytest
from mindspore_programs import (
    OUT,
    conv_net,
    dense_net,
    doubled,
    images,
    in_graph_mode,
    infer,
    load,
    names,
    rows,
    tensors,
    train,
)

import ascend_dump
from ascend_dump import fakes

DATA = places.DATA / "mindspore"


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
