"""Reductions that contradict what they reduce, and reductions that look alike but are right."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from suspect_dumps import write_rows

from ascend_dump.analysis.suspects import Row, find_suspects
from ascend_dump.dump_format import CollectiveCall
from ascend_dump.statistics import Statistics

_VALUES = Statistics(8, 2.0, -2.0, 0.0, 3.0, 0, 0, 0, 0)

#: A tensor: its storage, its content, and its name if it is a parameter or a gradient. A content that begins with "="
#: is the same on both ranks.
Tensor = tuple[int, str, str]


def call(
    op_type: str, number: int, rank: int, inputs: Sequence[Tensor], output: Tensor, reduce: str = "", **fields: Any
) -> list[Row]:
    """Return the rows of a call."""
    kind = op_type.rpartition(":")[2]
    fields = {"phase": "other", "source": "model.py:3", **fields}
    if op_type.startswith("c10d"):
        fields["collective"] = CollectiveCall(kind, "0", "0-1", number, reduce)
    return [
        Row(
            op_type, f"{kind}_{number}", io, _VALUES, index=index, storage=storage, parameter=name, rank=rank,
            hash=content if content.startswith("=") else f"{content} {rank}", **fields,
        )
        for io, tensors in (("input", inputs), ("output", [output]))
        for index, (storage, content, name) in enumerate(tensors)
    ]  # fmt: skip


def found(root: Path, *ranks: list[Row]) -> list[tuple[str, str]]:
    report = find_suspects(write_rows(root, [row for rank in ranks for row in rank]))
    return [(one.op_name, one.reason) for one in report.suspects if one.rule == "wrong-reduction"]


def flat(rank: int, reduce: str, *, is_norm: bool = False) -> list[Row]:
    """Return gradients that are joined, or their largest elements, and reduced."""
    gradients = [(1, "a", "a.weight.grad"), (2, "b", "b.weight.grad")]
    kind = "stack_of_maxima" if is_norm else "cat"
    return [
        *call(f"aten::{kind}", 0, rank, gradients, (3, "flat", "")),
        *call("c10d::reduce_scatter", 0, rank, [(3, "flat", "")], (4, "part", ""), reduce),
    ]


@pytest.mark.parametrize("reduce", ["max", "min"])
def test_gradients_have_no_maximum(reduce: str, tmp_path: Path) -> None:
    [(name, reason)] = found(tmp_path / "wrong", flat(0, reduce), flat(1, reduce))
    assert name == "reduce_scatter_0"
    assert f"are gradients, and ranks 0-1 take their {reduce} here" in reason
    assert found(tmp_path / "sum", flat(0, "sum"), flat(1, "sum")) == []
    assert found(tmp_path / "norm", flat(0, reduce, is_norm=True), flat(1, reduce, is_norm=True)) == []


def bucket(rank: int, *, is_copied: bool) -> list[Row]:
    """Return a maximum, and a copy of it into a gradient."""
    target = (6, "=most", "w.grad" if is_copied else "")
    return [
        *call("c10d::all_reduce", 0, rank, [(5, "terms", "")], (5, "=most", ""), "max"),
        *call("aten::copy_", 0, rank, [(6, "old", target[2]), (5, "=most", "")], target),
    ]


def test_a_bucket_that_is_copied_into_gradients_has_gradients(tmp_path: Path) -> None:
    [(name, _)] = found(tmp_path / "gradients", bucket(0, is_copied=True), bucket(1, is_copied=True))
    assert name == "all_reduce_0"
    assert found(tmp_path / "others", bucket(0, is_copied=False), bucket(1, is_copied=False)) == []


def summed(rank: int, *, between: str, phase: str = "forward") -> list[Row]:
    """Return two sums over ranks, with an operator between them."""
    second = "=sum" if between == "clone" else "another"
    return [
        *call("c10d::all_reduce", 0, rank, [(1, "term", "")], (1, "=sum", ""), "sum", phase=phase),
        *call(f"aten::{between}", 0, rank, [(1, "=sum", "")], (2, second, ""), phase=phase),
        *call("c10d::all_reduce", 1, rank, [(2, second, "")], (2, "=end", ""), "sum", phase=phase),
    ]


def test_a_sum_is_not_added_up_again(tmp_path: Path) -> None:
    [(name, reason)] = found(tmp_path / "twice", *(summed(rank, between="clone") for rank in range(2)))
    assert name == "all_reduce_1"
    assert "which is already their sum: the result is 2 times the sum" in reason
    assert found(tmp_path / "other", *(summed(rank, between="gelu") for rank in range(2))) == []
    # Programs measure the time of calls so.
    assert found(tmp_path / "timed", *(summed(rank, between="clone", phase="other") for rank in range(2))) == []


def biased(rank: int, *, bias: str = "=b", weight: str = "w", data: str = "x") -> list[Row]:
    """Return a product with a bias, whose results ranks add up."""
    inputs = [(1, bias, "down.bias"), (2, data, ""), (3, weight, "down.weight")]
    return [
        *call("aten::addmm", 0, rank, inputs, (4, "term", ""), phase="forward"),
        *call("aten::view", 0, rank, [(4, "term", "")], (4, "term", ""), phase="forward"),
        *call("c10d::all_reduce", 0, rank, [(4, "term", "")], (4, "=sum", ""), "sum", phase="forward"),
    ]


def test_a_bias_that_each_rank_adds_to_its_term_is_named(tmp_path: Path) -> None:
    [(name, reason)] = found(tmp_path / "wrong", biased(0), biased(1))
    assert name == "addmm_0"
    assert "add down.bias, which is the same on all of them, to their terms of a sum over these ranks" in reason


@pytest.mark.parametrize("changed", [{"bias": "b"}, {"weight": "=w"}, {"data": "=x"}], ids=str)
def test_a_sum_over_whole_layers_may_contain_their_biases(changed: dict[str, str], tmp_path: Path) -> None:
    assert found(tmp_path, biased(0, **changed), biased(1, **changed)) == []


def mixed(rank: int, *, name: str, content: str) -> list[Row]:
    """Return a parameter in the forward pass, and the sum of its gradients."""
    parameter, gradient = (1, content, name), (2, "term", f"{name}.grad")
    return [
        *call("aten::t", 0, rank, [parameter], (1, content, name), phase="forward"),
        *call("c10d::all_reduce", 0, rank, [gradient], (2, "=sum", gradient[2]), "sum"),
    ]


def test_gradients_of_different_parameters_are_not_added_up(tmp_path: Path) -> None:
    [(name, reason)] = found(
        tmp_path / "experts", *(mixed(rank, name=f"experts.{rank}.up", content="w") for rank in range(2))
    )
    assert name == "all_reduce_0"
    assert "of experts.0.up on rank 0, and of experts.1.up on rank 1" in reason
    # The embedding of the first stage and the head of the last one are one table.
    tied = [mixed(0, name="embedding.weight", content="=w"), mixed(1, name="head.weight", content="=w")]
    assert found(tmp_path / "tied", *tied) == []
    assert found(tmp_path / "same", *(mixed(rank, name="up", content="w") for rank in range(2))) == []
