"""keep=, until= and trigger() with the real MindSpore, which writes the iterations by itself."""

from __future__ import annotations

from pathlib import Path

import pytest
from processes import run_program

import ascend_dump


@pytest.mark.parametrize(
    ("how", "steps", "note"),
    [
        ("nothing", {6, 7}, "6 older steps were removed (keep=2)"),
        ("nan", {2, 3, 4}, "the recording ended at step 4: NaN in Default/Sqrt-op"),
        ("trigger", {2, 3, 4}, "the recording ended at step 4: loss spike"),
    ],
)
def test_only_some_iterations_stay(tmp_path: Path, how: str, steps: set[int], note: str) -> None:
    result, log = run_program("recorder", tmp_path / "dumps", cwd=tmp_path, HOW=how)
    dump = ascend_dump.open(result["path"])
    assert dump.errors() == []
    assert {record.step for record in dump} - {None} == steps
    (run,) = dump.runs()
    assert note in run.notes[-1]
    assert ("NaN in Default/Sqrt-op" in log) == (how == "nan")
