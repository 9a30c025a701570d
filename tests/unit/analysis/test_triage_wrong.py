"""The operator that made a program wrong, among those that make NaN and Inf in healthy programs too."""

from __future__ import annotations

from pathlib import Path

from suspect_dumps import write_rows

from ascend_dump.analysis.suspects import Row
from ascend_dump.analysis.triage import triage_wrong
from ascend_dump.statistics import Statistics

RIGHT = Statistics(9, 2.0, -2.0, 0.0, 3.0, 0, 0, 0, 0)
ZEROS = RIGHT._replace(min=0.0, zero=3)
LOW = RIGHT._replace(min=float("-inf"), neginf=3)
HIGH = RIGHT._replace(max=float("inf"), posinf=3)
NAN = RIGHT._replace(nan=3)


def operator(name: str, given: Statistics, made: Statistics, *storages: int, step: int = 0) -> list[Row]:
    """One that reads the first storage and writes the second."""
    kind, (read, written) = f"aten::{name[:-2]}", storages
    return [
        Row(kind, name, "input", given, step=step, storage=read),
        Row(kind, name, "output", made, step=step, storage=written),
    ]


def named(root: Path, *operators: list[Row]) -> tuple[object, object]:
    cause = triage_wrong(write_rows(root, [row for rows in operators for row in rows])).cause
    return (None, None) if cause is None else (cause.op_name, cause.step)


def test_a_logarithm_of_zero_that_is_selected_away_is_no_cause(tmp_path: Path) -> None:
    habit = [operator("log_0", ZEROS, LOW, 1, 2, step=step) for step in (0, 1)]
    where = [operator("where_0", LOW, RIGHT, 2, 3, step=step) for step in (0, 1)]
    wrong = operator("div_0", RIGHT, NAN, 3, 4, step=1)
    assert named(tmp_path / "healthy", habit[0], where[0]) == (None, None)
    assert named(tmp_path / "wrong", habit[0], where[0], habit[1], where[1], wrong) == ("div_0", 1)


def test_a_logarithm_of_zero_from_which_inf_comes_is_the_cause(tmp_path: Path) -> None:
    rows = operator("log_0", ZEROS, LOW, 1, 2), operator("neg_0", LOW, HIGH, 2, 3), operator("mul_0", HIGH, NAN, 3, 4)
    assert named(tmp_path, *rows) == ("log_0", 0)


def test_nan_that_comes_from_outside_is_named_where_it_is_read(tmp_path: Path) -> None:
    assert named(tmp_path, operator("mul_0", NAN, NAN, 1, 2), operator("add_0", NAN, NAN, 2, 3)) == ("mul_0", 0)


def test_a_softmax_of_a_row_that_is_all_masked_is_the_cause(tmp_path: Path) -> None:
    masked = LOW._replace(max=0.0, zero=6)
    rows = operator("masked_fill_0", RIGHT, masked, 1, 2), operator("_softmax_0", masked, NAN, 2, 3)
    assert named(tmp_path, *rows) == ("_softmax_0", 0)


def test_what_computes_zeros_and_inf_alone_is_the_cause_of_inf_that_comes_of_it(tmp_path: Path) -> None:
    mask, low = LOW._replace(max=0.0, zero=6), LOW._replace(max=float("-inf"), neginf=9)
    given = ZEROS._replace(max=1.0)
    carried = operator("mean_0", mask, low, 2, 3), operator("neg_0", low, HIGH._replace(posinf=9), 3, 4)
    assert named(tmp_path / "computed", operator("log_0", given, mask, 1, 2), *carried) == ("log_0", 0)
    filled = named(tmp_path / "filled", operator("where_0", given, mask, 1, 2), *carried)
    assert filled == ("neg_0", 0)
