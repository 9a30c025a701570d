"""What looks wrong in a dump by itself: each rule on its own two programs, then in real ones."""

from __future__ import annotations

from pathlib import Path

import pytest
from suspect_dumps import write_rows

from ascend_dump.analysis.suspects import RULES, Row, find_suspects
from ascend_dump.statistics import Statistics


@pytest.mark.parametrize("name", RULES)
class TestEveryRule:
    def test_names_the_program_that_trips_it(self, tmp_path: Path, name: str) -> None:
        report = find_suspects(write_rows(tmp_path, RULES[name].trips))
        assert [one.rule for one in report.suspects] == [name]
        assert report.suspects[0].reason

    def test_passes_the_program_beside_it(self, tmp_path: Path, name: str) -> None:
        report = find_suspects(write_rows(tmp_path, RULES[name].passes))
        assert report.suspects == ()
        assert report.operators == len({(row.step, row.rank, row.op_name) for row in RULES[name].passes})


def test_what_a_rank_was_brought_comes_behind_what_another_one_made(tmp_path: Path) -> None:
    right = Statistics(9, 2.0, -2.0, 0.0, 3.0, 0, 0, 0, 0)
    wrong = right._replace(nan=3)
    rows = [
        Row("c10d::allreduce_", "0/allreduce__0", "input", right, rank=0),
        Row("c10d::allreduce_", "0/allreduce__0", "output", wrong, rank=0),
        Row("aten::log", "log_0", "input", right, rank=1),
        Row("aten::log", "log_0", "output", wrong, rank=1),
    ]
    suspects = find_suspects(write_rows(tmp_path, rows)).suspects
    assert [(one.op_name, one.rank) for one in suspects] == [("log_0", 1), ("0/allreduce__0", 0)]


def sized(rms: float) -> Statistics:
    return Statistics(1000, 2 * rms, -2 * rms, 0.0, rms * 1000**0.5, 0, 0, 0, 0)


def test_layers_of_which_one_cannot_be_read_to_its_end_are_not_held_against_each_other(tmp_path: Path) -> None:
    rows = []
    for number, (inside, end) in enumerate(((1.0, 0.01), (1.0, None))):
        module = f"layers.{number}.mlp"
        rows.append(Row("aten::mm", f"{module}/mm_0", "output", sized(inside), module=module))
        found = None if end is None else sized(end)
        rows.append(Row("aten::gelu", f"{module}/gelu_0", "output", found, module=module))
    assert not [one for one in find_suspects(write_rows(tmp_path, rows)).suspects if one.rule == "layer-growth"]


def test_a_constant_that_is_inf_is_the_programs_choice(tmp_path: Path) -> None:
    far = Statistics(1, float("inf"), float("inf"), float("inf"), float("inf"), 0, 1, 0, 0)
    rows = [Row("aten::lift_fresh", "lift_fresh_0", io, far) for io in ("input", "output")]
    assert find_suspects(write_rows(tmp_path / "a", rows)).suspects == ()
    wrong = far._replace(nan=1, posinf=0)
    rows = [Row("aten::lift_fresh", "lift_fresh_0", io, wrong) for io in ("input", "output")]
    assert [one.rule for one in find_suspects(write_rows(tmp_path / "b", rows)).suspects] == ["non-finite"]
