"""Parts of a parameter change between two steps, and no recorded operator of the rank writes them."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
from host_dumps import item, put, rank_writer

from ascend_dump.analysis.operators.operator_run import OperatorRun
from ascend_dump.analysis.ranks import ChangedParameters, RankFinding
from ascend_dump.dump_format import CollectiveCall
from ascend_dump.reading import open_dump


class Operator(NamedTuple):
    """An operator. into: what it writes to its input; name: that of the parameter, "" for a view such as `.data`"""

    op_type: str
    tensor: np.ndarray
    into: np.ndarray | None = None
    name: str = "w"
    storage: int = 1


def findings(root: Path, *ranks: Sequence[Sequence[Operator]], steps: Sequence[int] = (0, 1)) -> list[RankFinding]:
    """Write a dump, and return the findings. ranks: of each rank the operators of each step"""
    for rank, of_rank in enumerate(ranks):
        writer = rank_writer(root, rank, len(ranks))
        for number, operators in zip(steps, of_rank):
            if number:
                writer.begin_step(number)
            for seq, operator in enumerate(operators):
                items = []
                for io, array in (("input", operator.tensor), ("output", operator.into)):
                    if array is not None:
                        one = item(f"op_{seq}", array, io=io, op_type=operator.op_type, seq=seq, phase="other")
                        one.line.parameter, one.line.storage = operator.name, operator.storage
                        if operator.op_type.startswith("c10d"):
                            one.line.collective = CollectiveCall("broadcast", "0", "0-1")
                        items.append(one)
                put(writer, *items)
            writer.end_step()
        writer.close()
    gathered = ChangedParameters()
    # A gather is recorded when it has ended, here in the next step.
    records = sorted(open_dump(root), key=lambda it: (it.rank, it.step + ("gather" in it.op_type), it.attrs["seq"]))
    for _, members in groupby(records, key=lambda record: (record.rank, record.step, record.attrs["seq"])):
        gathered.look_at(OperatorRun([*members]))
    return [*gathered.findings()]


PARTS = [np.random.default_rng(rank).standard_normal((2, 3)).astype("f4") for rank in range(4)]


def trained(rank: int, *, changed: float = 0.0, start: str = "") -> list[list[Operator]]:
    """Return two steps that update the part of a rank. changed: what is added to an element in between

    start: the operator that reads the part first in the second step, without its name and shape
    """
    part = PARTS[rank]
    read = part + 1
    read[1, 2] += changed
    first = [Operator(start, read.reshape(-1), name="")] if start else []
    return [
        [Operator("aten::add_", part, part + 1)],
        [*first, Operator("aten::add_", read, read + 1)],
    ]


def test_a_part_that_changed_on_one_rank_is_named_where_it_is_first_read(tmp_path: Path) -> None:
    [finding] = findings(tmp_path, trained(0), trained(1, changed=0.5, start="aten::cat"))
    record = finding.record
    assert (record.rank, record.step, record.op_type) == (1, 1, "aten::cat")
    assert "w of rank 1 is not what op_0 wrote in step 0, and no recorded operator wrote it since" in finding.reason
    assert "on rank 0 it is: 1 of 6 elements differ" in finding.reason


def test_unchanged_parts_are_not_named(tmp_path: Path) -> None:
    assert findings(tmp_path, trained(0), trained(1)) == []


def test_code_that_changes_the_parameter_on_most_ranks_belongs_to_the_program(tmp_path: Path) -> None:
    parts = [trained(rank, changed=0.5 if rank else 0.0) for rank in range(4)]
    assert findings(tmp_path / "most", *parts) == []
    parts[3] = trained(3)
    assert [finding.record.rank for finding in findings(tmp_path / "half", *parts)] == [1, 2]


def test_steps_that_are_not_recorded_may_change_parameters(tmp_path: Path) -> None:
    assert findings(tmp_path, trained(0), trained(1, changed=0.5), steps=(0, 2)) == []


def test_copies_of_one_parameter_are_compared_as_such(tmp_path: Path) -> None:
    assert findings(tmp_path, trained(0), trained(0, changed=0.5)) == []


@pytest.mark.parametrize("rows", [1, 2])
def test_a_write_to_a_view_without_a_name_is_a_write(rows: int, tmp_path: Path) -> None:
    written = PARTS[1][:rows] * 2
    between = [Operator("aten::copy_", written, written, name="")]
    steps = trained(1)
    steps[0] += between
    steps[1] = [Operator("aten::add_", PARTS[1] * 2, PARTS[1])]
    assert findings(tmp_path / "written", trained(0), steps) == []
    steps[0][-1] = between[0]._replace(op_type="aten::relu")
    assert len(findings(tmp_path / "read", trained(0), steps)) == 1


def test_a_parameter_that_a_rank_loads_and_sends_is_not_named(tmp_path: Path) -> None:
    loaded = trained(1)
    loaded[1] = [Operator("c10d::broadcast_", PARTS[2], PARTS[2]), Operator("aten::add_", PARTS[2], PARTS[2] + 1)]
    assert findings(tmp_path, trained(0), loaded) == []


def test_the_end_of_an_asynchronous_call_belongs_to_its_own_step(tmp_path: Path) -> None:
    steps = [*trained(1), [Operator("aten::add_", PARTS[1] + 1 + 1, PARTS[1])]]
    steps[0].append(Operator("aten::relu", PARTS[1], name="", storage=2))
    steps[0].append(Operator("c10d::gather_", PARTS[1], PARTS[1]))
    others = [*trained(0), [Operator("aten::add_", PARTS[0] + 1 + 1, PARTS[0])]]
    assert findings(tmp_path, others, steps, steps=(0, 1, 2)) == []
