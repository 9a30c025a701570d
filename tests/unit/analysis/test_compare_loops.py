"""Compare programs of two frameworks whose operators look alike: unrolled loops, gates and optimizers."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from test_compare_frameworks import Array, Op, draw, names, one, rounded, write

import ascend_dump
from ascend_dump import Comparison
from ascend_dump.analysis.operators.names import continues

pytest.importorskip("rapidfuzz")

_PASSES = 3


def sigmoid(x: Array) -> Array:
    return (1 / (1 + np.exp(-x))).astype("f4")


def recurrent(*, of_torch: bool, is_wrong: bool = False) -> list[Op]:
    """Return a loop of gates that reads the same two matrices in each pass; the graph runs the second gate first.

    is_wrong: the second gate is taken for the first
    """
    of_input, of_state, state = draw(1, 5, 8), draw(2, 4, 8), draw(3, 6, 4)
    types = ("aten::mm", "aten::split", "aten::add", "aten::sigmoid", "aten::tanh", "aten::mul")
    if not of_torch:
        types = ("MatMul", "Split", "AddV2", "Sigmoid", "Tanh", "Mul")
    product, split, add, gate, tanh, mul = types
    operators: list[Op] = []
    for number in range(_PASSES):
        x = draw(10 + number, 6, 5)
        tensors = x @ of_input, state @ of_state
        parts = [np.split(tensor, 2, 1) for tensor in tensors]
        parts = [[np.ascontiguousarray(part) for part in of_tensor] for of_tensor in parts]
        sums = [of_input + of_state for of_input, of_state in zip(*parts)]
        gates = [sigmoid(total) if of_torch else rounded(sigmoid(total)) for total in sums]
        candidate = np.tanh(sums[1])
        state = gates[1 if is_wrong else 0] * candidate
        operators += [
            Op(product, f"x{number}/{product}", [x, of_input], [tensors[0]]),
            Op(split, f"x{number}/{split}", [tensors[0]], parts[0]),
            Op(product, f"h{number}/{product}", [parts_of(operators), of_state], [tensors[1]]),
            Op(split, f"h{number}/{split}", [tensors[1]], parts[1]),
        ]
        for index in (0, 1) if of_torch else (1, 0):
            operators += [
                Op(add, f"gate{index}{number}/{add}", [parts[0][index], parts[1][index]], [sums[index]]),
                Op(gate, f"gate{index}{number}/{gate}", [sums[index]], [gates[index]]),
            ]
        operators += [
            Op(tanh, f"candidate{number}/{tanh}", [sums[1]], [candidate]),
            Op(mul, f"state{number}/{mul}", [gates[1 if is_wrong else 0], candidate], [state]),
        ]
    return operators


def parts_of(operators: Sequence[Op]) -> Array:
    """Return the state that the last pass computed; that of the start if there is none."""
    return operators[-1].outputs[0] if operators else draw(3, 6, 4)


def partners(found: Comparison) -> set[tuple[str, str]]:
    """Return the names of paired operators."""
    return {(pair.actual.op_name, pair.reference.op_name) for pair in found.pairs if pair.actual and pair.reference}


def test_a_right_loop_is_quiet(tmp_path: Path) -> None:
    actual = write(tmp_path / "a", recurrent(of_torch=True))
    found = ascend_dump.compare(actual, write(tmp_path / "b", recurrent(of_torch=False)))
    assert found.verdict == "noise"


def test_the_passes_of_a_loop_are_paired_in_order(tmp_path: Path) -> None:
    """From the fault on all values differ, and only which parts they read tells the operators of a pass apart."""
    actual = write(tmp_path / "a", recurrent(of_torch=True, is_wrong=True))
    found = ascend_dump.compare(actual, write(tmp_path / "b", recurrent(of_torch=False)))
    assert [origin.kind for origin in found.origins] == ["wiring"]
    [origin] = found.origins
    assert names(origin) == {"state0/aten::mul", "state0/Mul"}
    assert "state0/aten::mul reads gate10/aten::sigmoid here, gate00/Sigmoid in the reference" in origin.evidence
    gates = {
        (f"gate{gate}{number}/aten::add", f"gate{gate}{number}/AddV2") for gate in (0, 1) for number in range(_PASSES)
    }
    assert gates <= partners(found)


def test_operators_that_read_one_part_are_partners_whatever_else_they_read(tmp_path: Path) -> None:
    """The graph runs the operator of the second gate first, and only the values of the parts tell the two apart."""
    x, matrices = draw(1, 6, 5), [draw(2, 5, 8), draw(3, 5, 4)]
    y, z = (x @ matrix for matrix in matrices)
    parts = [np.ascontiguousarray(part) for part in np.split(y, 2, 1)]
    others = np.exp(z), np.tanh(y[:, :4] * y[:, 4:])

    def program(types: Sequence[str], numbers: Sequence[int], *, of_torch: bool) -> list[Op]:
        product, split, add, mul, inside = types
        operators = [
            Op(product, f"{product}0", [x, matrices[0]], [y]),
            Op(product, f"{product}1", [x, matrices[1]], [z if of_torch else rounded(z)]),
            Op(split, f"{split}0", [y], parts),
            Op(mul, f"{mul}0", parts, [parts[0] * parts[1]]),
            Op(inside, f"{inside}0", [z if of_torch else parts[0] * parts[1]], [others[0 if of_torch else 1]]),
        ]
        read = others[0 if of_torch else 1]
        return operators + [
            Op(add, f"{add}{number}", [parts[number], read], [parts[number] + read]) for number in numbers
        ]

    actual = program(("aten::mm", "aten::split", "aten::add", "aten::mul", "aten::exp"), (0, 1), of_torch=True)
    reference = program(("MatMul", "Split", "AddV2", "Mul", "Tanh"), (1, 0), of_torch=False)
    found = ascend_dump.compare(write(tmp_path / "a", actual), write(tmp_path / "b", reference))
    assert {("aten::add0", "AddV20"), ("aten::add1", "AddV21")} <= partners(found)


def test_a_decay_that_is_computed_in_another_way_is_no_difference(tmp_path: Path) -> None:
    """One optimizer multiplies the parameter, and the other one computes what it takes away."""
    x, matrix = draw(1, 6, 4), draw(2, 4, 3)
    y = x @ matrix
    gradient = x.T @ y
    kept, taken = matrix * np.float32(0.999), matrix * np.float32(0.001)

    def program(product: str, mul: str, result: Array, label: str) -> list[Op]:
        return [
            Op(product, f"{label}_0", [x, matrix], [y]),
            Op(product, f"gradients/{label}_1", [x, y], [rounded(gradient) if label == "MatMul" else gradient]),
            Op(mul, f"update/{label}", [matrix, one(0.1)], [result]),
        ]

    actual = write(tmp_path / "a", program("aten::mm", "aten::mul", kept, "mm"))
    found = ascend_dump.compare(actual, write(tmp_path / "b", program("MatMul", "Mul", taken, "MatMul")))
    assert not found.origins
    assert "different" not in found.counts


@pytest.mark.parametrize("product", ["MatMul", "Conv2D", "Conv2DBackpropInput", "DepthwiseConv2dNative"])
def test_other_frameworks_run_a_layer_and_its_bias_as_one_operator(product: str) -> None:
    """A transposed convolution is the gradient of a convolution in TensorFlow."""
    assert product in continues("BiasAdd")
