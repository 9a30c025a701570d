"""Sums over ranks that tensor and sequence parallelism need, found by the sums of gradients."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from suspect_dumps import write_rows

from ascend_dump.analysis.suspects import Row, find_suspects
from ascend_dump.dump_format import CollectiveCall
from ascend_dump.statistics import Statistics

_VALUES = Statistics(8, 2.0, -2.0, 0.0, 3.0, 0, 0, 0, 0)


def rows_of(*calls: tuple[str, str, list[tuple[int, str]], tuple[int, str]], rank: int) -> Iterator[Row]:
    """Yield the rows of calls: operator, phase, and storage and content of its inputs and its output.

    A content that begins with "=" is the same on both ranks. Storages from 20 are parameters, those from 30 parts.
    """
    counts: dict[str, int] = {}
    for op_type, phase, inputs, output in calls:
        number = counts[op_type] = counts.get(op_type, -1) + 1
        module = "norm" if "norm" in op_type else ""
        name = f"{module and module + '/'}{op_type.rpartition(':')[2]}_{number}"
        place: dict[str, Any] = {"phase": phase, "rank": rank, "module": module, "source": "model.py:3"}
        kind = op_type.rpartition(":")[2]
        if op_type.startswith("c10d"):
            place["collective"] = CollectiveCall(kind, "0", "0-1", number)
        for io, tensors in (("input", inputs), ("output", [output])):
            for index, (storage, content) in enumerate(tensors):
                is_parameter = storage >= 20 and phase == "forward"
                name_of = f"{storage}.weight" if is_parameter else ""
                text = content if content.startswith("=") else f"{content} {rank}"
                yield Row(
                    op_type, name, io, _VALUES, index=index, storage=storage, hash=text,
                    requires_grad=is_parameter, parameter=name_of, **place,
                )  # fmt: skip


def normed(rank: int, *, is_reduced: bool, weight: str = "=n", data: str = "=data", sums: bool = True) -> list[Row]:
    """Return a split product, its sum over ranks, and a norm whose output gradient is added up."""
    whole = "=sum" if is_reduced else "term"
    calls = [("aten::mm", "forward", [(0, data), (30, "part")], (1, "term"))]
    if is_reduced:
        calls.append(("c10d::all_reduce", "forward", [(1, "term")], (1, whole)))
    calls += [
        ("aten::native_layer_norm", "forward", [(1, whole), (20, weight)], (2, "=out" if is_reduced else "out")),
        ("aten::mm", "forward", [(2, "=out" if is_reduced else "out"), (31, "other part")], (3, "loss")),
        ("c10d::all_reduce", "forward", [(3, "loss")], (3, "=loss")),
        ("aten::mm", "backward", [(3, "=loss"), (31, "other part")], (4, "gradient")),
    ]
    if sums:
        calls.append(("c10d::all_reduce", "backward", [(4, "gradient")], (4, "=gradient")))
    gradient = (4, "=gradient" if sums else "gradient")
    calls.append(("aten::native_layer_norm_backward", "backward", [gradient, (1, whole), (20, weight)], (5, "end")))
    return [*rows_of(*calls, rank=rank)]


def found(root: Path, *ranks: list[Row]) -> list[tuple[str, str]]:
    report = find_suspects(write_rows(root, [row for rank in ranks for row in rank]))
    return [(one.op_name, one.reason) for one in report.suspects if one.rule == "unreduced-term"]


def test_a_norm_of_a_term_whose_output_gradient_is_added_up_lacks_a_sum(tmp_path: Path) -> None:
    [(name, reason)] = found(tmp_path / "missing", *(normed(rank, is_reduced=False) for rank in range(2)))
    assert name == "norm/native_layer_norm_0"
    assert "add up the gradient of this layer's output: a sum over these ranks is missing before the layer" in reason
    assert found(tmp_path / "reduced", *(normed(rank, is_reduced=True) for rank in range(2))) == []


@pytest.mark.parametrize("changed", [{"weight": "n"}, {"data": "data"}, {"sums": False}], ids=str)
def test_a_norm_of_a_part_lacks_no_sum(changed: dict[str, Any], tmp_path: Path) -> None:
    assert found(tmp_path, *(normed(rank, is_reduced=False, **changed) for rank in range(2))) == []


def scattered(rank: int, *, sums: bool, trains: bool = True, backward: bool = True, forward: bool = True) -> list[Row]:
    """Return a norm of rows, a gather, a split product and a scattered sum; backward `sums` gradients or cuts them."""
    weight = (20, "=n") if trains else (10, "=n")
    calls = [
        ("aten::native_layer_norm", "forward", [(0, "rows"), weight], (1, "normed")),
        ("c10d::all_gather", "forward", [(1, "normed")], (2, "=whole")),
        ("aten::mm", "forward", [(2, "=whole"), (30, "part")], (3, "term")),
    ]
    if forward:
        calls.append(("c10d::reduce_scatter", "forward", [(3, "term")], (4, "scattered")))
    if backward:
        calls.append(("c10d::all_gather", "backward", [(5, "gradient")], (6, "=gradients")))
    calls.append(("aten::mm", "backward", [(6, "=gradients"), (30, "part")], (7, "term of gradient")))
    if sums:
        calls.append(("c10d::reduce_scatter", "backward", [(7, "term of gradient")], (8, "own gradient")))
    return [*rows_of(*calls, rank=rank)]


def test_gathered_rows_whose_gradients_are_not_added_up_are_named(tmp_path: Path) -> None:
    [(name, reason)] = found(tmp_path / "cut", *(scattered(rank, sums=False) for rank in range(2)))
    assert name == "all_gather_0"
    assert "backward does not add up their gradients over these ranks" in reason
    assert found(tmp_path / "sums", *(scattered(rank, sums=True) for rank in range(2))) == []


@pytest.mark.parametrize("changed", [{"trains": False}, {"backward": False}, {"forward": False}], ids=str)
def test_gathered_rows_without_such_gradients_need_no_sum(changed: dict[str, Any], tmp_path: Path) -> None:
    assert found(tmp_path, *(scattered(rank, sums=False, **changed) for rank in range(2))) == []
