"""What looks wrong in a dump by itself: each rule on its own two programs, then in real ones."""

from __future__ import annotations

from pathlib import Path

import pytest
from suspect_dumps import write_rows

from ascend_dump.analysis.suspects import RULES, find_suspects


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
