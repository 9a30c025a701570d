"""Compare programs of two frameworks that compute parts in other ways: a loss, an optimizer, images in another layout.

The dumps of the other framework are written here, as a graph of TensorFlow or MindSpore on the host has them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from host_dumps import item, model_directory

import ascend_dump
from ascend_dump.analysis.explaining.results import Origin
from ascend_dump.writing import HostWriter

pytest.importorskip("rapidfuzz")

Array = np.ndarray


class Op(NamedTuple):
    """An operator with its inputs and outputs."""

    op_type: str
    name: str
    inputs: Sequence[Array]
    outputs: Sequence[Array]
    source: str = ""
    parameter: str = ""


def write(root: Path, *steps: Sequence[Op]) -> Path:
    writer = HostWriter(model_directory(root), metadata={})
    for number, operators in enumerate(steps):
        writer.begin_step(number)
        for seq, op in enumerate(operators):
            more = {"op_type": op.op_type, "seq": seq, "source": op.source}
            inputs = [item(op.name, x, io="input", index=index, **more) for index, x in enumerate(op.inputs)]
            if op.parameter:
                inputs[-1].line.parameter = op.parameter
            outputs = [item(op.name, x, index=index, **more) for index, x in enumerate(op.outputs)]
            items = [*inputs, *outputs]
            writer.put(items, sum(one.payload.nbytes for one in items if one.payload is not None))
        writer.end_step()
    writer.close()
    return root


def draw(seed: int, *shape: int) -> Array:
    return np.random.RandomState(seed).standard_normal(shape).astype("f4")


def one(value: float) -> Array:
    return np.asarray(value, "f4")


def rounded(x: Array) -> Array:
    """Return the values of another order of additions."""
    return (x * np.float32(1 + 1e-7)).astype("f4")


def names(origin: Origin) -> set[str]:
    return {record.op_name for record in (origin.pair.actual, origin.pair.reference) if record is not None}


def test_a_mean_on_one_side_is_a_sum_and_a_division_on_the_other(tmp_path: Path) -> None:
    x, matrix = draw(1, 6, 4), draw(2, 4, 4)
    losses = np.abs(x @ matrix).sum(1)
    total, mean = one(losses.sum()), one(losses.mean())
    actual = [
        Op("aten::mm", "mm_0", [x, matrix], [x @ matrix]),
        Op("aten::other_losses", "losses_0", [x @ matrix], [losses]),
        Op("aten::mean", "mean_0", [losses], [mean]),
    ]
    reference = [
        Op("MatMul", "net/MatMul-op0", [x, matrix], [rounded(x @ matrix)]),
        Op("Losses", "net/Losses-op0", [rounded(x @ matrix)], [rounded(losses)]),
        Op("ReduceSum", "net/ReduceSum-op0", [rounded(losses)], [total]),
        Op("ReduceSum", "net/ReduceSum-op1", [np.ones(6, "f4")], [one(6)]),
        Op("Div", "net/Div-op0", [total, one(6)], [rounded(mean)]),
        Op("ReduceMax", "net/ReduceMax-op0", [rounded(x @ matrix)], [one((x @ matrix).max())]),
        Op("Div", "net/Div-op1", [one((x @ matrix).max()), one(6)], [one((x @ matrix).max() / 6)]),
    ]
    found = ascend_dump.compare(write(tmp_path / "a", actual), write(tmp_path / "b", reference))
    assert not found.origins
    assert "different" not in found.counts
    pairs = [(pair.actual, pair.reference) for pair in found.pairs]
    paired = {(a.op_name, b.op_name) for a, b in pairs if a is not None and b is not None and a.io == "output"}
    assert ("mean_0", "net/Div-op0") in paired


@pytest.mark.parametrize("channels", [8, 5])
def test_the_layout_of_images_is_no_cause_even_if_all_sizes_are_equal(tmp_path: Path, channels: int) -> None:
    x, kernel, y, wrong = draw(1, 2, 3, 8, 8), draw(2, channels, 3, 3, 3), draw(3, 2, channels, 8, 8), draw(4, 2, 8, 8)
    z = np.tanh(y)

    def last(image: Array) -> Array:
        return np.ascontiguousarray(image.transpose(0, 2, 3, 1))

    actual = [
        Op("aten::convolution", "convolution_0", [x, kernel], [y]),
        Op("aten::tanh", "tanh_0", [y], [z + 0.1 * wrong[:, None]]),
    ]
    reference = [
        Op("Conv2D", "Conv2D", [last(x), kernel.transpose(2, 3, 1, 0).copy()], [rounded(last(y))]),
        Op("Tanh", "Tanh", [rounded(last(y))], [last(z)]),
    ]
    found = ascend_dump.compare(write(tmp_path / "a", actual), write(tmp_path / "b", reference))
    assert [(origin.kind, origin.op_name) for origin in found.origins] == [("compute", "tanh_0")]


def test_swapped_axes_are_the_cause_behind_a_mask(tmp_path: Path) -> None:
    """The mask is far larger than the scores, which are those of a key and a query in each other's place."""
    query, key, mask = draw(1, 2, 6, 4), draw(2, 2, 6, 4), np.triu(np.full((6, 6), -1e9, "f4"), 1)
    scores = query @ key.swapaxes(1, 2)
    moved = np.ascontiguousarray(scores.swapaxes(1, 2))
    actual = [
        Op("aten::bmm", "bmm_0", [key, query.swapaxes(1, 2).copy()], [moved]),
        Op("aten::add", "add_0", [moved, mask], [moved + mask]),
    ]
    reference = [
        Op("BatchMatMulV2", "scores", [query, key], [rounded(scores)]),
        Op("AddV2", "masked", [rounded(scores), mask], [rounded(scores) + mask]),
    ]
    found = ascend_dump.compare(write(tmp_path / "a", actual), write(tmp_path / "b", reference))
    assert [(origin.kind, origin.op_name) for origin in found.origins] == [("wiring", "bmm_0")]


def test_a_session_has_constants_that_an_eager_program_lacks(tmp_path: Path) -> None:
    x, matrix = draw(1, 6, 4), draw(2, 4, 4)
    y, wrong = x @ matrix, x @ (matrix * np.float32(1.1))
    graph = [
        Op("Const", "w/Initializer/initial_value", [], [matrix]),
        Op("MatMul", "MatMul", [x, matrix], [y]),
        Op("Relu", "Relu", [y], [np.maximum(y, 0)]),
    ]
    eager = [
        Op("MatMul", "MatMul", [x, matrix * np.float32(1.1)], [wrong], "train.py:3"),
        Op("Relu", "Relu", [wrong], [np.maximum(wrong, 0)], "train.py:4"),
    ]
    found = ascend_dump.compare(write(tmp_path / "a", eager), write(tmp_path / "b", graph))
    assert [(origin.kind, origin.op_name) for origin in found.origins] == [("parameter", "MatMul")]


def test_tensors_that_operators_in_between_read_prove_no_wiring(tmp_path: Path) -> None:
    """Both sides compute what enters the product in their own ways, from other tensors; the result differs."""
    x, first, second, matrix = draw(1, 6, 4), draw(2, 4, 4), draw(3, 4, 4), draw(4, 4, 3)
    y, z = x @ first, x @ second
    inside = np.tanh(y), np.exp(z)

    def program(types: Sequence[str], own: Callable[[Array], Array], number: int) -> list[Op]:
        product, name = types
        return [
            Op(product, f"{name}0", [x, first], [own(y)]),
            Op(product, f"{name}1", [x, second], [own(z)]),
            Op(("aten::tanh", "Exp")[number], f"inside{number}", [own((y, z)[number])], [inside[number]]),
            Op(product, f"{name}2", [inside[number], matrix], [inside[number] @ matrix]),
        ]

    actual = write(tmp_path / "a", program(("aten::mm", "mm_"), lambda array: array, 0))
    found = ascend_dump.compare(actual, write(tmp_path / "b", program(("MatMul", "MatMul_"), rounded, 1)))
    [origin] = found.origins
    assert names(origin) == {"mm_2", "MatMul_2"}
    assert origin.kind == "unknown"


def training(root: Path, *rates: float, of_mindspore: bool = False) -> Path:
    """Write steps of a linear layer with these learning rates, whose optimizer is one operator without a result."""
    steps = []
    matrix, bias = draw(1, 3, 4).T.copy(), draw(2, 3)
    for number, rate in enumerate((*rates, 0.01)):
        x = draw(10 + number, 6, 4)
        product = x @ matrix
        y = product + bias
        gradient = 2 * y
        of_matrix, of_bias = x.T @ gradient, gradient.sum(0)
        scope = "gradients/"
        steps.append(
            [
                Op("MatMul", "MatMul", [x, matrix], [product]),
                Op("BiasAdd", "BiasAdd", [product, bias], [y]),
                Op("Square", "Square", [y], [y * y]),
                Op("Sum", "Sum", [y * y], [one((y * y).sum())]),
                Op("Mul", f"{scope}Square_grad/Mul_1", [y, one(2)], [gradient]),
                Op("BiasAddGrad", f"{scope}BiasAdd_grad/BiasAddGrad", [gradient], [of_bias]),
                Op("MatMul", f"{scope}MatMul_grad/MatMul_1", [x, gradient], [of_matrix]),
                Op("ResourceApplyGradientDescent", "update/matrix", [one(rate), of_matrix], []),
                Op("ResourceApplyGradientDescent", "update/bias", [one(rate), of_bias], []),
            ]
        )
        matrix, bias = matrix - np.float32(rate) * of_matrix, bias - np.float32(rate) * of_bias
        if of_mindspore:
            matrix, bias = rounded(matrix), rounded(bias)
    if of_mindspore:
        steps = [[op._replace(name=f"{op.name}-op{seq}") for seq, op in enumerate(step)] for step in steps]
    return write(root, *steps)


def dump_of_torch(root: Path, steps: int = 2, *, averages: bool = False) -> Path:
    """Dump the same training in PyTorch, whose optimizer has several operators; the learning rate is 0.01.

    averages: an average of the matrix over the steps is computed too, which nothing reads
    """
    torch: Any = pytest.importorskip("torch")
    layer = torch.nn.Linear(4, 3)
    with torch.no_grad():
        layer.weight.copy_(torch.from_numpy(draw(1, 3, 4)))
        layer.bias.copy_(torch.from_numpy(draw(2, 3)))
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.01, foreach=False)
    average = layer.weight.detach().clone()
    with ascend_dump.capture(layer, path=root, steps=f"0-{steps - 1}", quiet=True):
        for number in range(steps):
            optimizer.zero_grad()
            layer(torch.from_numpy(draw(10 + number, 6, 4))).square().sum().backward()
            optimizer.step()
            if averages:
                average.lerp_(layer.weight.detach(), 0.1)
    return root


def test_optimizers_that_compute_in_other_ways_are_quiet(tmp_path: Path) -> None:
    found = ascend_dump.compare(dump_of_torch(tmp_path / "a"), training(tmp_path / "b", 0.01))
    assert not found.origins
    assert "different" not in found.counts


def test_two_updates_and_the_steps_after_them_prove_an_optimizer(tmp_path: Path) -> None:
    found = ascend_dump.compare(dump_of_torch(tmp_path / "a", 3), training(tmp_path / "b", 0.01, 0.01))
    assert found.verdict == "noise"
    [note] = found.aligned
    assert note.startswith("updates and gradients that nothing reads: 2 operators of actual and 0 of the reference")
    assert "the updates of the last step are not compared" in note


def test_one_update_proves_no_optimizer(tmp_path: Path) -> None:
    """The momentum has no effect yet."""
    found = ascend_dump.compare(dump_of_torch(tmp_path / "a", 2), training(tmp_path / "b", 0.01))
    assert found.verdict == "unmatched"


def test_an_average_that_no_step_reads_is_not_proven(tmp_path: Path) -> None:
    actual = dump_of_torch(tmp_path / "a", 3, averages=True)
    found = ascend_dump.compare(actual, training(tmp_path / "b", 0.01, 0.01))
    assert not found.origins
    assert found.verdict == "unmatched"


def test_parameters_that_were_updated_differently_are_one_origin(tmp_path: Path) -> None:
    """The operators of an optimizer are no cause, although only one side has them."""
    found = ascend_dump.compare(dump_of_torch(tmp_path / "a"), training(tmp_path / "b", 0.02))
    [origin] = found.origins
    assert (origin.kind, origin.op_name) == ("parameter", "addmm_0")
    assert origin.pair.reference is not None
    assert origin.pair.reference.step == 1
    assert any("it agrees in step 0: the update after it is the probable cause" in line for line in origin.evidence)


def test_parameters_without_names_were_updated_differently(tmp_path: Path) -> None:
    """No framework records names of parameters here: the operators that read them say which they are."""
    actual = training(tmp_path / "a", 0.01, 0.01, of_mindspore=True)
    found = ascend_dump.compare(actual, training(tmp_path / "b", 0.01, 0.02))
    [origin] = found.origins
    assert (origin.kind, origin.op_type) == ("parameter", "MatMul")
    assert any("it agrees in step 1: the update after it is the probable cause" in line for line in origin.evidence)


def test_a_parameter_has_its_name_on_one_side_only(tmp_path: Path) -> None:
    """The other framework multiplies by it as by any tensor."""
    x, gain = draw(1, 6, 4), draw(2, 4)
    wrong = gain * np.float32(1.1)
    actual = [Op("aten::tanh", "tanh_0", [x], [np.tanh(x)])]
    actual += [Op("aten::mul", "mul_0", [np.tanh(x), wrong], [np.tanh(x) * wrong], parameter="norm.weight")]
    reference = [Op("Tanh", "Tanh", [x], [rounded(np.tanh(x))])]
    reference += [Op("Mul", "Mul", [rounded(np.tanh(x)), gain], [np.tanh(x) * gain])]
    found = ascend_dump.compare(write(tmp_path / "a", actual), write(tmp_path / "b", reference))
    assert [(origin.kind, origin.op_name) for origin in found.origins] == [("parameter", "mul_0")]


def centered(root: Path, *, is_wrong: bool = False, rounding: Sequence[float] = (1e-7, -1e-7, 1e-7)) -> Path:
    """Write a layer whose output is centered, so that the gradient of its bias is rounding alone, and a step of Adam.

    is_wrong: the matrix, whose gradient is more than rounding, is not updated
    rounding: the gradient of the bias
    """
    steps = []
    matrix, bias = draw(1, 3, 4).T.copy(), draw(2, 3)
    for number in range(2):
        x = draw(10 + number, 6, 4)
        product = x @ matrix
        y = product + bias
        mean = y.mean(0, keepdims=True)
        rest = y - mean
        spread = np.full((6, 3), 1e-8, "f4")
        gradient = 2 * rest + spread
        of_matrix, of_bias = x.T @ gradient, np.asarray(rounding, "f4")
        scope = "gradients/"
        steps.append(
            [
                Op("MatMul", "MatMul", [x, matrix], [product]),
                Op("BiasAdd", "BiasAdd", [product, bias], [y]),
                Op("Mean", "Mean", [y], [mean]),
                Op("Sub", "Sub", [y, mean], [rest]),
                Op("Mul", f"{scope}Square_grad/Mul_1", [rest, one(2)], [2 * rest]),
                Op("AddN", f"{scope}AddN", [2 * rest, spread], [gradient]),
                Op("BiasAddGrad", f"{scope}BiasAdd_grad/BiasAddGrad", [gradient], [of_bias]),
                Op("MatMul", f"{scope}MatMul_grad/MatMul_1", [x, gradient], [of_matrix]),
            ]
        )
        matrix = matrix if is_wrong else matrix - np.float32(0.01) * np.sign(of_matrix)
        bias = bias - np.float32(0.01) * np.sign(of_bias)
    return write(root, *steps)


def centered_of_torch(root: Path) -> Path:
    torch: Any = pytest.importorskip("torch")
    layer = torch.nn.Sequential(torch.nn.Linear(4, 3))
    with torch.no_grad():
        layer[0].weight.copy_(torch.from_numpy(draw(1, 3, 4)))
        layer[0].bias.copy_(torch.from_numpy(draw(2, 3)))
    optimizer = torch.optim.Adam(layer.parameters(), lr=0.01, eps=1e-16, foreach=False)
    with ascend_dump.capture(layer, path=root, steps="0-1", quiet=True):
        for number in range(2):
            optimizer.zero_grad()
            y = layer(torch.from_numpy(draw(10 + number, 6, 4)))
            (y - y.mean(0, keepdim=True)).square().sum().backward()
            optimizer.step()
    return root


def test_an_optimizer_enlarges_a_gradient_that_is_rounding_alone(tmp_path: Path) -> None:
    actual = centered_of_torch(tmp_path / "a")
    # Which sign rounding has depends on the processor: the other framework has the opposite one.
    [record] = (one for one in ascend_dump.open(actual) if one.label == "lerp__1.input.1" and one.step == 0)
    rounding = [-1e-7 if value > 0 else 1e-7 for value in record.numpy()]
    found = ascend_dump.compare(actual, centered(tmp_path / "b", rounding=rounding))
    assert not found.origins
    reasons = {pair.reason for pair in found.pairs if pair.record.io == "input" and pair.record.shape == (3,)}
    assert any("its gradient is rounding alone" in reason for reason in reasons)


def test_a_parameter_whose_gradient_is_more_than_rounding_is_named(tmp_path: Path) -> None:
    found = ascend_dump.compare(centered_of_torch(tmp_path / "a"), centered(tmp_path / "b", is_wrong=True))
    [origin] = found.origins
    assert origin.kind == "parameter"
    assert origin.pair.record.index == 2
