"""The size of a tensor says nothing of its elements: masks beside scores, and operators that compute nothing."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from host_dumps import item, model_directory, write_step
from test_compare_elements import compared, last_place, normal, operator

import ascend_dump
from ascend_dump import Comparison
from ascend_dump.analysis.compare import Rules, judge, measure
from ascend_dump.writing import HostWriter, Item

pytest.importorskip("rapidfuzz")

STATS = ("min", "max", "mean", "l2norm", "nan", "posinf", "neginf")
MASKS = [np.finfo("f4").min, -1e9, -1e4]


def masked(value: float, size: int = 16) -> np.ndarray:
    return np.triu(np.full((size, size), value, "f4"), 1)


def add(scores: np.ndarray, mask: np.ndarray, result: np.ndarray) -> list[Item]:
    return operator("aten::add", [scores, mask], [result])


@pytest.mark.parametrize("value", MASKS)
@pytest.mark.parametrize("noise", [False, True], ids=["equal inputs", "inputs within rounding"])
def test_a_wrong_sum_beside_a_mask_is_seen(tmp_path: Path, value: float, noise: bool) -> None:
    scores, mask = normal(16, 16), masked(value)
    others = last_place(scores) if noise else scores
    found = compared(tmp_path, add(others, mask, 1.5 * others + mask), add(scores, mask, scores + mask))
    assert [one.op_name for one in found.origins] == ["add_0"]
    assert found.origins[0].pair.record.io == "output"


@pytest.mark.parametrize("value", MASKS)
def test_a_right_sum_beside_a_mask_is_noise(tmp_path: Path, value: float) -> None:
    scores, mask = normal(16, 16), masked(value)
    others = last_place(scores)
    found = compared(tmp_path, add(others, mask, others + mask), add(scores, mask, scores + mask))
    assert (found.verdict, found.origins) == ("noise", ())


def test_large_elements_that_are_equal_are_no_scale_for_the_others() -> None:
    scores, mask = normal(16, 16), masked(-1e9)
    wrong, right = measure(1.5 * scores + mask, scores + mask), measure(last_place(scores) + mask, scores + mask)
    assert wrong.rel_l2 == pytest.approx(0.5, rel=1e-3)
    assert judge(wrong, "float32", Rules())[0] == "different"
    assert right.rms == pytest.approx(np.sqrt(np.mean(scores[mask == 0] ** 2)), rel=1e-3)
    assert judge(right, "float32", Rules())[0] == "noise"


def test_a_few_elements_that_differ_are_compared_with_the_size_of_all() -> None:
    """Small sums of large terms are rounded relative to the terms."""
    b = normal(64, 64)
    b[:2, :4] *= np.float32(1e-4)
    a = b.copy()
    a[:2, :4] += np.float32(1e-7)
    assert judge(measure(a, b), "float32", Rules())[0] == "noise"


@pytest.mark.parametrize("name", ["clone", "index_select", "cat"])
def test_elements_that_are_moved_are_exact(tmp_path: Path, name: str) -> None:
    x = normal(8, 8)
    wrong = x.copy()
    wrong[3, 4] *= np.float32(1 + 1e-6)
    found = compared(tmp_path, operator(f"aten::{name}", [x], [wrong]), operator(f"aten::{name}", [x], [x.copy()]))
    assert found.origins[0].kind == "compute"
    assert "although the operator computes nothing" in found.origins[0].evidence[0]


def test_a_cast_may_be_rounded_to_either_neighbour(tmp_path: Path) -> None:
    x = normal(8, 8)
    narrow = x.astype("f2")
    found = compared(
        tmp_path, operator("aten::_to_copy", [x], [last_place(narrow)]), operator("aten::_to_copy", [x], [narrow])
    )
    assert found.verdict == "noise"


def of_statistics(path: Path, actual: list[Item], reference: list[Item]) -> Comparison:
    """Compare dumps of hashes and statistics."""
    for name, items in (("actual", actual), ("reference", reference)):
        writer = HostWriter(model_directory(path / name), metadata={}, tensors=False, stats=STATS)
        write_step(writer, 0, *items)
        writer.close()
    return ascend_dump.compare(path / "actual", path / "reference")


@pytest.mark.parametrize("name", ["clone", "embedding", "cat"])
def test_statistics_show_that_elements_were_moved_to_other_places(tmp_path: Path, name: str) -> None:
    x = normal(8, 8)
    actual, reference = (
        [*operator(f"aten::{name}", [x], [y]), *operator("aten::mm", [y, x], [y @ x], seq=1)]
        for y in (x[::-1].copy(), x)
    )
    found = of_statistics(tmp_path, actual, reference)
    assert [(one.kind, one.op_name) for one in found.origins] == [("compute", f"{name}_0")]


def test_statistics_that_agree_prove_nothing_of_a_sum(tmp_path: Path) -> None:
    x = normal(8, 8)
    found = of_statistics(
        tmp_path, operator("aten::add", [x, x], [(x + x)[::-1].copy()]), operator("aten::add", [x, x], [x + x])
    )
    assert (found.verdict, found.origins) == ("undecided", ())


def of_module(name: str, inputs: list[np.ndarray], output: np.ndarray) -> list[Item]:
    arrays = [*(("input", index, array) for index, array in enumerate(inputs)), ("output", 0, output)]
    return [
        item("layer/forward_0", array, io=io, index=index, op_type=name, module="layer") for io, index, array in arrays
    ]


@pytest.mark.parametrize("name", ["SelfAttention", "Dropout", "Add", "empty"])
def test_the_class_of_a_module_says_nothing_of_its_output(tmp_path: Path, name: str) -> None:
    x, output = 100 * normal(4, 8, 64), normal(4, 8, 64)
    found = compared(tmp_path, of_module(name, [x, x], 2 * output), of_module(name, [x, x], output))
    assert found.verdict == "different"
    assert [(one.kind, one.op_name) for one in found.origins] == [("unknown", "layer/forward_0")]


def test_an_operator_of_attention_is_not_twice_as_large_by_rounding(tmp_path: Path) -> None:
    x, output = 100 * normal(1, 2, 8, 64), normal(1, 2, 8, 64)
    name = "aten::_scaled_dot_product_attention_math"
    found = compared(tmp_path, operator(name, [x, x, x], [2 * output]), operator(name, [x, x, x], [output]))
    assert found.origins[0].kind == "compute"


def rounded(x: np.ndarray) -> np.ndarray:
    """Elements that are a few roundings larger or smaller."""
    moved: np.ndarray = x * (1 + np.float32(1e-6) * np.sign(normal(*x.shape, seed=7)))
    return moved


@pytest.mark.parametrize(("name", "origins"), [("ones_like", []), ("neg", ["neg_0"])])
def test_an_operator_that_reads_only_a_shape_is_no_origin(tmp_path: Path, name: str, origins: list[str]) -> None:
    x = normal(4, 4)
    found = compared(tmp_path, *(operator(f"aten::{name}", [data], [np.ones((4, 4), "f4")]) for data in (2 * x, x)))
    assert [one.op_name for one in found.origins] == origins


@pytest.mark.parametrize(("name", "kind"), [("rsqrt", "compute"), ("_softmax", "amplification")])
def test_an_operator_that_keeps_the_size_of_errors_enlarges_none(tmp_path: Path, name: str, kind: str) -> None:
    x = np.abs(normal(40, 40)) + 1
    y, output = rounded(x), np.reciprocal(np.sqrt(x))
    made = [operator("aten::mm", [normal(40, 3), normal(3, 40)], [data]) for data in (y, x)]
    found = compared(
        tmp_path,
        [*made[0], *operator(f"aten::{name}", [y], [output * np.float32(1 + 9e-5)], seq=1)],
        [*made[1], *operator(f"aten::{name}", [x], [output], seq=1)],
    )
    assert [(one.op_name, one.kind) for one in found.origins] == [(f"{name}_1", kind)]


def test_one_element_that_is_off_is_told_with_its_own_size(tmp_path: Path) -> None:
    x = normal(40, 40)
    y = rounded(x)
    wrong = y.copy()
    wrong[3, 3] += np.float32(0.002)
    made = [operator("aten::mm", [normal(40, 3), normal(3, 40)], [data]) for data in (y, x)]
    found = compared(
        tmp_path,
        [*made[0], *operator("aten::cumsum", [y], [wrong], seq=1)],
        [*made[1], *operator("aten::cumsum", [x], [x], seq=1)],
    )
    assert "one element differs by " in found.origins[0].evidence[0]
