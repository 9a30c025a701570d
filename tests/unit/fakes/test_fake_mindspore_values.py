"""What the fake MindSpore computes and refuses: values, types and errors as measured with MindSpore 2.10.0 on a CPU."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import ascend_dump
from ascend_dump import fakes


@pytest.fixture
def ms() -> Iterator[Any]:
    with fakes.install("mindspore"):
        import mindspore

        yield mindspore


def tensor(ms: Any, *values: Any, dtype: Any = np.float32) -> Any:
    return ms.Tensor(np.array(values, dtype))


def is_tensor(found: Any, label: str, values: Any) -> None:
    assert (str(found.dtype), list(found.shape)) == (label, list(np.shape(values)))
    assert np.allclose(found.asnumpy(), values, rtol=1e-4, equal_nan=True)


@pytest.mark.parametrize(
    ("one", "other", "met"),
    [
        ("int32", "float32", "Float32"),
        ("int64", "float16", "Float16"),
        ("bool_", "int32", "Int32"),
        ("bfloat16", "int32", "BFloat16"),
        ("bfloat16", "float16", "Float32"),
        ("uint8", "int8", "Int16"),
        ("float32", "float64", "Float64"),
    ],
)
def test_two_types_meet(ms, one, other, met):
    for left, right in ((one, other), (other, one)):
        is_tensor(ms.Tensor([1, 0], getattr(ms, left)) + ms.Tensor([1, 1], getattr(ms, right)), met, [2, 1])


def test_unsigned_and_signed_types_do_not_meet(ms):
    with pytest.raises(TypeError, match="implicit conversion"):
        ms.Tensor([1], ms.uint32) + ms.Tensor([1], ms.int32)


def test_numbers_change_the_type_of_integers_and_booleans(ms):
    flags, whole = ms.Tensor([True, False]), ms.Tensor([1, 2], ms.int32)
    is_tensor(flags + 2, "Int64", [3, 2])
    is_tensor(flags * 1.5, "Float32", [1.5, 0])
    assert (flags == 2).asnumpy().tolist() == [False, False]
    is_tensor(whole * np.float32(1.5), "Float32", [1.5, 3])
    is_tensor(whole / 2, "Float32", [0.5, 1])
    is_tensor(flags / flags, "Float32", [1, np.nan])
    is_tensor(ms.ops.sqrt(whole), "Float32", [1, 2**0.5])
    is_tensor(whole.sum(), "Int64", 3)
    is_tensor(flags.sum(), "Int64", 1)


def test_arange_of_fractions_is_float32(ms):
    is_tensor(ms.ops.arange(0, 1, 0.25), "Float32", [0, 0.25, 0.5, 0.75])


def test_arrays_are_no_operands_of_tensors(ms):
    with pytest.raises(TypeError, match="ndarray"):
        tensor(ms, 1.0) + np.ones(1, np.float32)
    found = np.ones(1, np.float32) + tensor(ms, 1.0)
    assert isinstance(found, np.ndarray)
    assert found.tolist() == [2.0]


def test_a_tensor_is_equal_to_nothing_else(ms):
    for other in (None, "text", [1.0], object()):
        assert (tensor(ms, 1.0) == other) is False
        assert (tensor(ms, 1.0) != other) is True


def test_a_tensor_keeps_its_values_when_the_array_changes(ms):
    buffer = np.zeros(2, np.float32)
    made, parameter, of_a_part = ms.Tensor(buffer), ms.Parameter(ms.Tensor(buffer)), ms.Tensor(buffer[:1])
    shared = ms.from_numpy(buffer)
    buffer[:] = 5
    assert made.asnumpy().tolist() == parameter.asnumpy().tolist() == [0, 0]
    assert of_a_part.asnumpy().tolist() == [0]
    assert shared.asnumpy().tolist() == [5, 5]


def test_tensors_index_and_convert(ms):
    x = ms.Tensor(np.arange(6, dtype=np.float32).reshape(2, 3))
    assert x[ms.Tensor([0, 1]), ms.Tensor([1, 2])].asnumpy().tolist() == [1, 5]
    is_tensor(ms.Tensor([ms.Tensor(1.0), ms.Tensor(2.0)]), "Float32", [1, 2])
    assert (int(tensor(ms, 3.7)), float(tensor(ms, 3.5))) == (3, 3.5)
    with pytest.raises(ValueError, match="integer tensors"):
        _ = [1, 2][ms.Tensor(1.0)]
    is_tensor(x.transpose(), "Float32", x.asnumpy().T)


def test_flattening_one_dimension_changes_nothing(ms):
    is_tensor(ms.ops.flatten(tensor(ms, 1.0, 2.0)), "Float32", [1, 2])


def test_no_axes_are_all_axes(ms):
    x = ms.Tensor(np.arange(6, dtype=np.float32).reshape(2, 3))
    is_tensor(ms.ops.mean(x, ()), "Float32", 2.5)
    is_tensor(ms.ops.sum(x, (), True), "Float32", [[15]])
    is_tensor(ms.ops.amax(x, ()), "Float32", 5)


def test_a_sum_names_its_arguments_as_the_documents_do(ms):
    is_tensor(ms.ops.sum(ms.ops.ones((2, 3)), dim=1, keepdim=True), "Float32", [[3], [3]])


def test_logarithms_of_small_chances_are_finite(ms):
    is_tensor(ms.ops.log_softmax(tensor(ms, 0.0, 1000.0)), "Float32", [-1000, 0])
    is_tensor(ms.ops.cross_entropy(tensor(ms, [0.0, 1000.0]), ms.Tensor([0], ms.int32)), "Float32", 1000)


@pytest.mark.parametrize(
    ("refused", "error"),
    [
        (lambda ms: ms.ops.sigmoid(ms.Tensor([1])), TypeError),
        (lambda ms: ms.ops.softmax(ms.Tensor([1])), TypeError),
        (lambda ms: ms.ops.matmul(ms.ops.ones((1, 1)), ms.ops.ones((1, 1), ms.float16)), TypeError),
        (lambda ms: ms.ops.cat([ms.Tensor([1]), ms.Tensor([1.5])]), RuntimeError),
        (lambda ms: ms.ops.MatMul()(ms.ops.ones((1, 1, 1)), ms.ops.ones((1, 1, 1))), ValueError),
        (lambda ms: ms.ops.bias_add(ms.ops.ones((2, 3)), ms.ops.ones((1,))), ValueError),
        (lambda ms: ms.ops.assign(ms.Parameter(ms.ops.ones((2, 3))), ms.ops.ones(3)), ValueError),
        (lambda ms: ms.ops.assign_add(ms.Parameter(ms.ops.ones(2)), 1.0), ValueError),
        (lambda ms: ms.ops.assign_add(ms.Parameter(ms.ops.ones(1, ms.int32)), ms.Tensor([1.5])), TypeError),
        (lambda ms: ms.ops.cross_entropy(ms.ops.ones((1, 3)), ms.Tensor([-1])), ValueError),
        (lambda ms: ms.ops.cross_entropy(ms.ops.ones((1, 3)), ms.Tensor([-100])), ascend_dump.NotSupported),
        (lambda ms: ms.ops.cross_entropy(ms.ops.ones((1, 3)), ms.ops.ones((1, 3))), ascend_dump.NotSupported),
        (lambda ms: ms.ops.cross_entropy(ms.ops.ones((1, 3, 2)), ms.ops.ones((1, 2))), ascend_dump.NotSupported),
    ],
)
def test_operators_refuse_what_the_kernels_refuse(ms, refused, error):
    with pytest.raises(error):
        refused(ms)


def test_average_pooling_does_not_count_padding(ms):
    pool, x = ms.nn.AvgPool2d(2, 1, pad_mode="same"), ms.Tensor(np.float32([[[[1, 2], [3, 4]]]]))
    value, gradient = ms.value_and_grad(lambda x: pool(x).sum())(x)
    is_tensor(pool(x), "Float32", [[[[2.5, 3], [3.5, 4]]]])
    is_tensor(value, "Float32", 13)
    is_tensor(gradient, "Float32", [[[[0.25, 0.75], [0.75, 2.25]]]])


def test_the_variance_of_one_element_is_not_a_number(ms):
    layer = ms.nn.BatchNorm2d(1).set_train()
    layer(ms.ops.ones((1, 1, 1, 1)))
    assert np.isnan(layer.moving_variance.asnumpy()).all()


# Gradients.


def test_the_gradient_of_several_outputs_is_that_of_their_sum(ms):
    def both(x):
        return (x * x).sum(), (3 * x).sum()

    x = tensor(ms, 1.0, 2.0)
    is_tensor(ms.grad(both)(x), "Float32", [5, 7])
    is_tensor(ms.value_and_grad(both)(x)[1], "Float32", [5, 7])
    is_tensor(ms.grad(both, has_aux=True)(x)[0], "Float32", [2, 4])


def test_frozen_weights_have_a_gradient_of_zeros(ms):
    net = ms.nn.Dense(2, 1, weight_init="ones")
    net.weight.requires_grad = False
    _, (weight, bias) = ms.value_and_grad(lambda x: net(x).sum(), None, (net.weight, net.bias))(ms.ops.ones((3, 2)))
    is_tensor(weight, "Float32", [[0, 0]])
    is_tensor(bias, "Float32", [3])


def test_negative_axes_of_a_transpose_have_the_gradient_of_positive_ones(ms):
    x = ms.Tensor(np.arange(24, dtype=np.float32).reshape(2, 3, 4))
    scale = ms.Tensor(np.arange(24, dtype=np.float32).reshape(4, 2, 3))
    gradient = ms.grad(lambda x: (ms.ops.transpose(x, (-1, 0, 1)) * scale).sum())(x)
    is_tensor(gradient, "Float32", scale.asnumpy().transpose(1, 2, 0))


def test_powers_batches_of_matrices_and_gelu_have_gradients(ms):
    x = tensor(ms, 0.5, 2.0, 3.0)
    is_tensor(ms.grad(lambda x: (x**3).sum())(x), "Float32", [0.75, 12, 27])
    is_tensor(ms.grad(lambda x: (x ** tensor(ms, 2.0)).sum())(x), "Float32", [1, 4, 6])
    is_tensor(ms.grad(lambda y: (x**y).sum())(tensor(ms, 2.0)), "Float32", [12.486813])
    y = tensor(ms, -1.0, 0.0, 2.0)
    is_tensor(ms.ops.gelu(y), "Float32", [-0.15865526, 0, 1.9544997])
    is_tensor(ms.grad(lambda y: ms.ops.gelu(y).sum())(y), "Float32", [-0.08331543, 0.5, 1.0852318])
    is_tensor(ms.ops.gelu(y, "tanh"), "Float32", [-0.15880796, 0, 1.9545977])
    is_tensor(ms.grad(lambda y: ms.nn.GELU()(y).sum())(y), "Float32", [-0.08296409, 0.5, 1.0860993])
    with pytest.raises(ValueError, match="'none' or 'tanh'"):
        ms.ops.gelu(y, "yes")
    queries = ms.Tensor(np.arange(12, dtype=np.float32).reshape(2, 2, 3))
    keys = ms.Tensor(np.arange(6, dtype=np.float32).reshape(1, 3, 2))
    weights = ms.Tensor(np.array([[[1, 2], [3, 4]], [[5, 6], [7, 8]]], np.float32))
    found = ms.grad(lambda q, k: (ms.ops.matmul(q, k) * weights).sum(), (0, 1))(queries, keys)
    is_tensor(found[0], "Float32", weights.asnumpy() @ keys.asnumpy().swapaxes(1, 2))
    expected = (queries.asnumpy().swapaxes(1, 2) @ weights.asnumpy()).sum(0, keepdims=True)
    is_tensor(found[1], "Float32", expected)


def test_gradients_are_by_tensors_at_positions(ms):
    with pytest.raises(ascend_dump.NotSupported, match="differentiates by tensors only"):
        ms.grad(lambda x, y: (x * y).sum(), (0, 1))(tensor(ms, 1.0), 2.0)
    with pytest.raises(TypeError, match="must be int or tuple"):
        ms.grad(lambda x: x, [0])


# Layers, optimizers, metrics and data.


def trained(ms: Any) -> Any:
    return [ms.Parameter(ms.ops.ones((2, 3)), name="p")]


@pytest.mark.parametrize(
    ("refused", "error"),
    [
        (lambda ms: ms.nn.Conv2d(1, 1, 3, padding=1), ValueError),
        (lambda ms: ms.nn.Conv2d(1, 1, 3, pad_mode="SAME"), ValueError),
        (lambda ms: ms.nn.MaxPool2d(2, pad_mode="none"), ValueError),
        (lambda ms: ms.nn.MaxPool2d(2, pad_mode="pad", padding=1), ascend_dump.NotSupported),
        (lambda ms: ms.nn.Flatten()(ms.ops.ones(3)), ValueError),
        (lambda ms: ms.nn.BatchNorm2d(3, momentum=2), ValueError),
        (lambda ms: ms.nn.BatchNorm2d(3)(ms.ops.ones((2, 3))), ValueError),
        (lambda ms: ms.nn.Dense(3, 2, weight_init=ms.ops.ones((3, 2))), ValueError),
        (lambda ms: ms.nn.Dense(3, 2, activation="logsoftmax"), ascend_dump.NotSupported),
        (lambda ms: ms.nn.Dense(3, 2)(ms.ops.ones((2, 3), ms.float16)), TypeError),
        (lambda ms: ms.nn.CrossEntropyLoss()(ms.ops.ones((1, 2)), ms.Tensor([1])), TypeError),
        (lambda ms: ms.nn.Momentum(trained(ms), -0.1, 0.9), ValueError),
        (lambda ms: ms.nn.Momentum(trained(ms), 0.1, -0.9), ValueError),
        (lambda ms: ms.nn.SGD(trained(ms), 0.1, weight_decay=-1.0), ValueError),
        (lambda ms: ms.nn.SGD(trained(ms), 0.1, nesterov=True), ValueError),
        (lambda ms: ms.nn.Adam(trained(ms), 0.1, beta1=1.5), ValueError),
        (lambda ms: ms.nn.SGD([{"params": trained(ms)}], 0.1), ascend_dump.NotSupported),
        (lambda ms: ms.nn.SGD(trained(ms), ms.Tensor([0.1, 0.2])), ascend_dump.NotSupported),
        (lambda ms: ms.nn.SGD(trained(ms), 0.1)((ms.ops.ones((2, 3)),) * 2), RuntimeError),
        (lambda ms: ms.nn.Momentum(trained(ms), 0.1, 0.9)((ms.ops.ones(3),)), ValueError),
        (lambda ms: ms.nn.SGD(trained(ms) + trained(ms), 0.1), ValueError),
        (lambda ms: ms.dataset.NumpySlicesDataset(([1, 2], [1])), ValueError),
        (lambda ms: list(ms.dataset.GeneratorDataset([(1, 2)], ["a"])), RuntimeError),
        (lambda ms: ms.dataset.NumpySlicesDataset([1, 2]).repeat(), ascend_dump.NotSupported),
        (lambda ms: ms.dataset.NumpySlicesDataset([1, 2]).repeat(-1), ascend_dump.NotSupported),
    ],
)
def test_arguments_are_refused_and_not_passed_over(ms, refused, error):
    with pytest.raises(error):
        refused(ms)


def test_pooling_takes_its_mode_in_capitals(ms):
    assert ms.nn.MaxPool2d(2, 2, pad_mode="SAME")(ms.ops.ones((1, 1, 3, 3))).shape == (1, 1, 2, 2)


def test_accuracy_takes_classes_and_scores(ms):
    outputs = tensor(ms, [0.2, 0.8], [0.6, 0.4])
    for labels in (ms.Tensor([1, 1]), tensor(ms, [0, 1], [0, 1]), np.array([1, 1])):
        accuracy = ms.nn.Accuracy()
        accuracy.update(outputs, labels)
        assert accuracy.eval() == 0.5


def test_a_single_column_is_named_by_a_string(ms):
    assert ms.dataset.NumpySlicesDataset([1, 2], "data").get_col_names() == ["data"]


def test_parameters_in_a_tuple_are_those_of_the_cell(ms):
    class Net(ms.nn.Cell):
        def __init__(self):
            super().__init__()
            self.both = ms.ParameterTuple([ms.Parameter(ms.ops.ones(2), name=name) for name in ("a", "b")])

    assert [one.name for one in Net().trainable_params()] == ["a", "b"]


def test_a_part_of_a_sequence_is_a_sequence(ms):
    part = ms.nn.SequentialCell([ms.nn.ReLU(), ms.nn.Tanh()])[:1]
    is_tensor(part(tensor(ms, -1.0, 2.0)), "Float32", [0, 2])
    for kind, first in ((ms.nn.SequentialCell, "1"), (ms.nn.CellList, "0")):
        part = kind([ms.nn.ReLU(), ms.nn.Dense(2, 2)])[1:]
        assert isinstance(part, kind)
        assert [one.name for one in part.get_parameters()] == [f"{first}.weight", f"{first}.bias"]


def test_operators_and_layers_take_tensors_only(ms):
    for layer in (ms.nn.ReLU(), ms.nn.Dense(2, 2), ms.nn.Tanh()):
        with pytest.raises(TypeError, match="with a Tensor"):
            layer(np.ones((1, 2), np.float32))
