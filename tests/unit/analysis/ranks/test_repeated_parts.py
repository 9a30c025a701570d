"""Parts of data and tensors that two ranks have in common, and positions of parts that are not on a line."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Optional

import pytest
from suspect_dumps import write_rows

from ascend_dump.analysis.suspects import Row, find_suspects
from ascend_dump.dump_format import CollectiveCall
from ascend_dump.statistics import Statistics

_VALUES = Statistics(8, 2.0, -2.0, 0.0, 3.0, 0, 0, 0, 0)
_EQUAL = Statistics(8, 1.0, 1.0, 1.0, 3.0, 0, 0, 0, 0)


def found(root: Path, rows: Sequence[Row]) -> list[tuple[str, str]]:
    report = find_suspects(write_rows(root, rows))
    return [(one.op_name, one.reason) for one in report.suspects if one.rule == "repeated-part"]


def read(contents: str, *, steps: int = 2, values: Statistics = _VALUES, changes: bool = True) -> list[Row]:
    """Return data that ranks read, each rank with one of these contents, which change from step to step."""
    return [
        Row("aten::mul", "mul_0", io, values, step=step, storage=storage, rank=rank, source="model.py:3",
            hash=f"{io} {content} {step if changes else ''}")
        for step in range(steps)
        for rank, content in enumerate(contents)
        for io, storage in (("input", 0), ("output", 1))
    ]  # fmt: skip


def test_two_ranks_that_read_the_same_rows_are_named(tmp_path: Path) -> None:
    [(name, reason)] = found(tmp_path / "repeated", read("abac"))
    assert name == "mul_0"
    assert "is the same on ranks 0|2 in all 2 steps, and other data on each other rank" in reason


@pytest.mark.parametrize(
    "rows",
    [
        read("abcd"),
        read("aabb"),
        read("aaaa"),
        # The other ones may be wrong.
        read("aaab"),
        read("aab"),
        # A sampler repeats rows at the end.
        read("abac", steps=1),
        read("abac", values=_EQUAL),
        # A table of positions is no data.
        read("abac", changes=False),
    ],
    ids=["none", "pairs", "all", "three", "few", "step", "constant", "table"],
)
def test_data_in_common_may_be_right(rows: list[Row], tmp_path: Path) -> None:
    assert found(tmp_path, rows) == []


def test_replicas_of_parts_may_differ_from_each_other(tmp_path: Path) -> None:
    call = CollectiveCall("all_reduce", "1", "0|2", 0)
    reduction = [Row("c10d::allreduce_", "r_0", "input", _VALUES, rank=0, source="model.py:4", collective=call)]
    assert found(tmp_path, [*read("abcb"), *reduction]) == []


def trained(contents: str, *, is_reduced: bool) -> list[Row]:
    """Return a parameter on all ranks, and a sum of its gradients."""
    rows = []
    for rank, content in enumerate(contents):
        site: dict[str, Any] = {"rank": rank, "source": "model.py:4"}
        rows.append(Row("aten::t", "t_0", "input", _VALUES, hash=content, parameter="w", requires_grad=True, **site))
        if is_reduced:
            call = CollectiveCall("all_reduce", "0", "0-3", 0)
            site["collective"] = call
            rows.append(Row("c10d::allreduce_", "r_0", "input", _VALUES, phase="other", parameter="w.grad", **site))
    return rows


def test_a_parameter_with_a_reduced_gradient_has_no_parts(tmp_path: Path) -> None:
    [(name, reason)] = found(tmp_path / "parts", trained("abbc", is_reduced=False))
    assert name == "t_0"
    assert "the part of w is the same on ranks 1-2" in reason
    assert found(tmp_path / "copies", trained("abbc", is_reduced=True)) == []


def flat(contents: str, *, gathered: bool = True) -> list[Row]:
    """Return flat tensors that ranks update, each with one of these contents, and then gather."""
    rows = []
    for rank, content in enumerate(contents):
        site: dict[str, Any] = {"storage": 0, "rank": rank, "phase": "other", "source": "model.py:5"}
        rows += [Row("aten::sub_", "sub_0", "input", _VALUES, hash=content, **site)]
        rows += [Row("aten::sub_", "sub_0", "output", _VALUES, hash=f"new {rank}", **site)]
        if gathered:
            call = CollectiveCall("all_gather", "0", "0-3", 0)
            rows += [Row("c10d::allgather", "g_0", "input", _VALUES, hash=f"new {rank}", collective=call, **site)]
    return rows


def test_a_part_that_two_ranks_update_is_named(tmp_path: Path) -> None:
    [(name, reason)] = found(tmp_path / "repeated", flat("abbc"))
    assert name == "sub_0"
    assert "is the same on ranks 1-2 in the first step" in reason
    assert found(tmp_path / "parts", flat("abcd")) == []
    assert found(tmp_path / "local", flat("abbc", gathered=False)) == []


def scattered(contents: str) -> list[Row]:
    """Return a scatter of tensors with these contents."""
    site: dict[str, Any] = {"phase": "other", "source": "model.py:6"}
    site["collective"] = CollectiveCall("scatter", "0", "0-3", 0, root=0)
    sent = [
        Row("c10d::scatter_", "scatter_0", "input", _VALUES, index=index, storage=index, hash=content, **site)
        for index, content in enumerate(contents)
    ]
    return [*sent, Row("c10d::scatter_", "scatter_0", "output", _VALUES, storage=9, rank=1, **site)]


def test_a_tensor_that_is_scattered_twice_is_named(tmp_path: Path) -> None:
    [(name, reason)] = found(tmp_path / "repeated", scattered("abca"))
    assert (name, reason[:29]) == ("scatter_0", "rank 0 scatters one tensor tw")
    assert "inputs 0 and 3 of scatter_0 are the same" in reason
    assert found(tmp_path / "parts", scattered("abcd")) == []
    assert found(tmp_path / "copies", scattered("aaaa")) == []


def sliced(
    *starts: int, steps: int = 2, longer: Optional[int] = None, changes: bool = False, is_stage: bool = False
) -> list[Row]:
    """Return calls with a number on each rank. longer: a rank with a tensor of another shape"""
    rows = []
    for step in range(steps):
        for rank, start in enumerate(starts):
            call = f'{{"op":"aten::arange","args":{{"start":{start + step * changes}}}}}'
            values = _VALUES._replace(count=9 if rank == longer else 8)
            site: dict[str, Any] = {"step": step, "rank": rank, "source": "model.py:7"}
            rows.append(Row("aten::arange", "arange_0", "output", values, call=call, **site))
            if is_stage:
                message = CollectiveCall("send", "0", "0-3", 0, peer=0)
                rows.append(Row("c10d::send", "send_0", "input", values, collective=message, **site))
    return rows


def test_a_part_at_another_position_than_the_number_of_the_rank_says_is_named(tmp_path: Path) -> None:
    [(name, reason)] = found(tmp_path / "wrong", sliced(0, 7, 16, 24))
    assert name == "arange_0"
    assert "start of aten::arange at model.py:7 is 7 on rank 1, and not 8: on ranks 0|2-3 it grows by 8" in reason


@pytest.mark.parametrize(
    "changed",
    [
        {"starts": (0, 8, 16, 24)},
        # Groups of two ranks.
        {"starts": (0, 0, 8, 8)},
        # The last part is smaller, or the first one larger.
        {"starts": (8, 16, 24, 30)},
        {"starts": (0, 9, 17, 25)},
        {"starts": (0, 7, 16)},
        {"starts": (5, 5, 7, 5)},
        {"steps": 1},
        {"longer": 1},
        {"changes": True},
        {"is_stage": True},
    ],
    ids=str,
)
def test_positions_that_are_no_line_may_be_right(changed: dict[str, Any], tmp_path: Path) -> None:
    others = {name: value for name, value in changed.items() if name != "starts"}
    assert found(tmp_path, sliced(*changed.get("starts", (0, 7, 16, 24)), **others)) == []
