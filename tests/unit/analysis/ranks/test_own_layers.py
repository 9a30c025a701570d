"""Stages of a pipeline, and experts of a rank, have layers under the names of other layers."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from host_dumps import item, rank_writer

import ascend_dump
from ascend_dump.analysis.compare import Comparison

pytest.importorskip("rapidfuzz")

_LAYERS = 4


def write(root: Path, ranks: int, *, wrong: int = -1) -> Path:
    """Write a pipeline: each rank counts its layers from 0. wrong: a layer with a wrong result."""
    rng = np.random.default_rng(5)
    weights = rng.standard_normal((_LAYERS, 6, 6)).astype("f4")
    x = rng.standard_normal((8, 6)).astype("f4")
    size = _LAYERS // ranks
    for rank in range(ranks):
        writer = rank_writer(root, rank, ranks)
        for number in range(size):
            layer = rank * size + number
            out = x @ weights[layer] + np.float32(0.5 if layer == wrong else 0)
            items = []
            for io, index, array in (("input", 0, x), ("input", 1, weights[layer]), ("output", 0, out)):
                one = item(
                    f"{number}/mm_0", array, io=io, index=index, op_type="aten::mm", seq=number, module=str(number)
                )
                one.line.phase = "forward"
                one.line.parameter = f"{number}.weight" if io == "input" and index else ""
                items.append(one)
            writer.put(items, sum(one.payload.nbytes for one in items if one.payload is not None))
            x = out
        writer.end_step()
        writer.close()
    return root


def compared(root: Path, ranks: int, *, wrong: int = -1) -> Comparison:
    return ascend_dump.compare(write(root / "actual", ranks, wrong=wrong), write(root / "reference", 1))


@pytest.mark.parametrize("ranks", [2, 4])
def test_layers_are_found_by_their_weights(tmp_path: Path, ranks: int) -> None:
    comparison = compared(tmp_path, ranks)
    assert [(one.op_name, one.evidence) for one in comparison.origins] == []
    assert comparison.verdict in ("equal", "noise")


def test_a_wrong_layer_is_named_as_its_rank_names_it(tmp_path: Path) -> None:
    comparison = compared(tmp_path, 2, wrong=3)
    first = comparison.origins[0]
    assert (first.op_name, first.rank) == ("1/mm_0", 1)
