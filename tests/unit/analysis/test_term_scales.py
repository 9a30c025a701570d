"""The size of the terms of a sum, without numbers that are no terms: masks, and memory that nothing has written."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from host_dumps import item, model_directory, write_step

import ascend_dump
from ascend_dump.analysis.judging.term_magnitude import natural_scale
from ascend_dump.analysis.operators.operator import operators
from ascend_dump.writing import HostWriter


def scale(path: Path, name: str, inputs: list[np.ndarray], output: np.ndarray) -> float:
    items = [
        item(f"{name}_0", array, io=io, index=index, op_type=f"aten::{name}", seq=0)
        for io, arrays in (("input", inputs), ("output", [output]))
        for index, array in enumerate(arrays)
    ]
    writer = HostWriter(model_directory(path), metadata={})
    write_step(writer, 0, *items)
    writer.close()
    [operator] = operators(ascend_dump.open(path))
    return natural_scale(operator, operator.outputs[0])


@pytest.mark.parametrize("fill", [np.finfo("f4").min, -1e9, -1e4])
def test_a_mask_is_no_scale_for_the_scores(tmp_path: Path, fill: float) -> None:
    scores = np.full((4, 4), 2.0, "f4")
    mask = np.triu(np.full((4, 4), fill, "f4"), 1)
    assert scale(tmp_path, "add", [scores, mask], scores + mask) == pytest.approx(2.0)


def test_large_terms_that_are_all_alike_are_no_masks(tmp_path: Path) -> None:
    large = np.full((4, 4), 3e4, "f4")
    assert scale(tmp_path, "add", [large, -large], large - large) == pytest.approx(3e4)


@pytest.mark.parametrize("name", ["index_add", "index_put", "scatter_add"])
def test_values_that_are_added_to_zeros_are_the_terms(tmp_path: Path, name: str) -> None:
    """They may cancel: then the output is as small as their rounding."""
    zeros, indices = np.zeros((2, 4), "f4"), np.array([0, 0, 1, 1, 0, 0, 1, 1])
    values = np.tile(np.array([[3.0], [-3.0]], "f4"), (4, 4))
    assert scale(tmp_path, name, [zeros, indices, values], zeros) == pytest.approx(2 * 3.0)


@pytest.mark.parametrize(("beta", "is_term"), [(0.0, False), (1.0, True)])
def test_an_addend_without_a_factor_is_no_term(tmp_path: Path, beta: float, is_term: bool) -> None:
    """Megatron passes memory that nothing has written as the addend of a product."""
    torch: Any = pytest.importorskip("torch")
    addend, matrix = torch.full((1, 4, 4), 1e30), torch.eye(4)[None]
    with ascend_dump.capture(path=tmp_path / "dump", steps="0", quiet=True):
        torch.baddbmm(addend, matrix, matrix, beta=beta)
    product = next(op for op in operators(ascend_dump.open(tmp_path / "dump")) if op.function == "baddbmm")
    assert (natural_scale(product, product.outputs[0]) > 1e20) == is_term
