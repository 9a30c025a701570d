"""Finding the operator that made the first NaN or Inf."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any, Optional

import numpy as np

from ascend_dump import CorruptDump
from ascend_dump.analysis.operators.nonfinite import find_nonfinite, first_nonfinite, is_nonfinite
from ascend_dump.reading import Record
from ascend_dump.statistics import Statistics


class Values:
    """A loader whose records hold their array."""

    def tensor(self, record: Record, format: Optional[str]) -> Any:
        return record.key

    def statistics(self, record: Record) -> None:
        return None


def record(op: str, io: str, *values: float, step: int = 0, index: int = 0, **fields: Any) -> Record:
    array = np.array(values, np.float32)
    return Record(Values(), path=Path("x"), op_name=op, op_type="t", io=io, index=index, step=step, key=array, **fields)


CHAIN = [
    record("mask", "output", -np.inf),
    record("add", "input", 1.0),
    record("add", "output", 2.0),
    record("exp", "input", 1000.0),
    record("exp", "output", 1.0, np.inf),
    record("sub", "input", np.inf),
    record("sub", "output", np.nan),
]


def test_the_origin_has_finite_inputs() -> None:
    found = first_nonfinite(CHAIN)
    assert found is not None
    assert (found.record.op_name, found.origin) == ("exp", True)
    assert (found.statistics.posinf, found.statistics.count) == (1, 2)
    assert [one.op_name for one in found.inputs] == ["exp"]
    assert [one and one.max for one in found.input_statistics] == [1000.0]


def test_every_operator_with_such_an_output_is_listed_in_order() -> None:
    assert [(one.record.op_name, one.origin) for one in find_nonfinite(CHAIN)] == [
        ("mask", False),  # a constant has no inputs to be finite
        ("exp", True),
        ("sub", False),
    ]


def test_without_an_origin_the_first_one_is_given() -> None:
    found = first_nonfinite([CHAIN[0], *CHAIN[5:]])
    assert found is not None
    assert (found.record.op_name, found.origin) == ("mask", False)


def test_finite_dumps_have_none() -> None:
    assert first_nonfinite(CHAIN[1:3]) is None


def test_the_same_name_in_two_steps_is_two_operators() -> None:
    records = [
        record("exp", "input", 1.0, step=0),
        record("exp", "output", 1.0, step=0),
        record("exp", "input", np.nan, step=1),
        record("exp", "output", np.nan, step=1),
    ]
    found = first_nonfinite(records)
    assert found is not None
    assert (found.record.step, found.origin) == (1, False)


def test_unreadable_and_empty_records_are_passed_over() -> None:
    broken = Record(None, path=Path("x"), io="output", error=CorruptDump("cut off", path="x"))
    without_values = Record(None, path=Path("x"), io="output", op_name="meta")
    found = first_nonfinite([broken, without_values, *CHAIN[3:5]])
    assert found is not None
    assert found.record.op_name == "exp"


def test_what_a_dump_computed_tells_where_it_counted_nothing() -> None:
    assert is_nonfinite(Statistics(3, max=math.inf, min=0.0))
    assert is_nonfinite(Statistics(3, mean=math.nan))
    assert not is_nonfinite(Statistics(3, max=1.0, min=0.0, mean=0.5))
    assert not is_nonfinite(Statistics(3))
    assert is_nonfinite(Statistics(3, max=1.0, nan=0, neginf=2))
    assert not is_nonfinite(Statistics(3, max=1.0, nan=0))
