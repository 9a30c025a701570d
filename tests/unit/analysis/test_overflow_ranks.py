"""NaN that another rank gave is not taken for what a collective made."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from host_dumps import item, put

import ascend_dump
from ascend_dump.analysis.overflow import OverflowReport, find_overflows
from ascend_dump.cli import Exit, main
from ascend_dump.dump_format import CollectiveCall
from ascend_dump.writing import HostWriter

FINE, WRONG = np.ones(4, "f4"), np.array([1, np.nan, 1, 1], "f4")
CALL = CollectiveCall("all_reduce", "0", "0-1", reduce="sum")

#: The operators of a rank: type, input, output.
Operators = list[tuple[str, Any, Any]]


def dump(root: Path, *ranks: Operators) -> Path:
    """What ran on each rank; the clock of rank 1 is ahead."""
    for rank, operators in enumerate(ranks):
        folder = root / f"worldsize2_global_rank{rank}" / f"2026010101010{rank}" / "0" / "Model" / "0"
        folder.mkdir(parents=True)
        writer = HostWriter(folder, metadata={}, tensors=True, stats=())
        writer.begin_step(0)
        for seq, (op_type, *tensors) in enumerate(operators):
            for io, array in zip(("input", "output"), tensors):
                told = {"collective": CALL} if "c10d" in op_type else {}
                more: dict[str, Any] = {"io": io, "index": 0, "op_type": op_type, "seq": seq, **told}
                put(writer, item(f"{op_type.rpartition(':')[2]}_{seq}", array, time=1000 * rank + seq, **more))
        writer.end_step()
        writer.close()
    return root


def told(report: OverflowReport) -> list[tuple[str, Any, str]]:
    return [(one.kind, one.record.rank, one.record.op_name) for one in report.overflows]


def test_the_rank_that_gave_it_is_told_and_its_operator_comes_first(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given: Operators = [("c10d::allreduce_", FINE, WRONG), ("aten::mul", WRONG, WRONG)]
    made: Operators = [("aten::log", FINE, WRONG), ("c10d::allreduce_", WRONG, WRONG)]
    root = dump(tmp_path, given, made)
    report = find_overflows(ascend_dump.open(root))
    assert told(report) == [("origin", 1, "log_0"), ("outside", 0, "allreduce__0")]
    assert report.overflows[1].source == (
        "received from rank 1: all_reduce of group 0 (ranks 0-1); what is wrong there begins with log_0"
    )
    assert report.followed == 2
    assert main(["overflow", str(root)]) == Exit.DIFFERENT
    assert capsys.readouterr().out.startswith("1. aten::log log_0  (first)\n")
    assert [one.op_name for one in ascend_dump.triage(root).suspects][:2] == ["log_0", "allreduce__0"]


def test_a_collective_that_is_given_finite_numbers_makes_it(tmp_path: Path) -> None:
    both: Operators = [("c10d::allreduce_", FINE, WRONG)]
    assert told(find_overflows(ascend_dump.open(dump(tmp_path, both, both)))) == [
        ("origin", 0, "allreduce__0"),
        ("origin", 1, "allreduce__0"),
    ]


def test_a_rank_that_is_not_there_is_not_accused(tmp_path: Path) -> None:
    root = dump(tmp_path, [("c10d::allreduce_", FINE, WRONG)], [("aten::log", FINE, WRONG)])
    assert ("origin", 0, "allreduce__0") in told(find_overflows(ascend_dump.open(root)))
    assert told(find_overflows(ascend_dump.open(root).select(rank=0))) == [("origin", 0, "allreduce__0")]
