"""`ascend-dump compare` prints a screen: the first origin in full, a line for each other one that has room."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import ascend_dump
from ascend_dump.cli import main
from ascend_dump.report import findings

torch = pytest.importorskip("torch")
pytest.importorskip("rapidfuzz")

FUNCTIONS = ("exp", "sin", "cos", "tanh", "erf", "neg", "abs", "sqrt", "log", "sigmoid", "floor", "ceil", "round")


class Functions(torch.nn.Module):
    """Functions of one tensor, the first `wrong` of them with a factor of their own behind them."""

    def __init__(self, wrong: int) -> None:
        super().__init__()
        self.wrong = wrong

    def forward(self, x: Any) -> Any:
        results = [getattr(torch, name)(x) for name in FUNCTIONS]
        factors = [1.5 + number if number < self.wrong else 1.0 for number in range(len(results))]
        return [result * factor for result, factor in zip(results, factors)]


def dump(path: Path, wrong: int) -> str:
    x = torch.rand(4, 8, generator=torch.Generator().manual_seed(0)) + 0.5
    with ascend_dump.capture(model := Functions(wrong), path=path):
        model(x)
    return str(path)


@pytest.mark.parametrize("wrong", [1, 2, 5, len(FUNCTIONS)])
def test_each_further_change_has_a_line_or_is_counted(
    wrong: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    actual, reference = dump(tmp_path / "actual", wrong), dump(tmp_path / "reference", 0)
    found = ascend_dump.compare(actual, reference)
    main(["compare", actual, reference])
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) <= 25
    named = [line for line in lines if line.startswith(("origin", "first seen", "and ", "changed"))]
    more = sum(int(line.split()[0]) for line in lines if line.endswith("--all prints them"))
    assert len(named) + more == len(found.origins) + len(found.changed)


@pytest.mark.parametrize(("wrong", "count"), [(1, 9), (1, 30), (5, 30)])
def test_notes_and_facts_that_have_no_room_are_counted(
    wrong: int, count: int, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    actual, reference = dump(tmp_path / "actual", wrong), dump(tmp_path / "reference", 0)
    monkeypatch.setattr(findings, "comparison_notes", lambda *a, **k: [f"note {number}" for number in range(count)])
    main(["compare", actual, reference])
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) <= 25
    notes = [line for line in lines if line.startswith("note ")]
    assert notes[:2] == ["note 0", "note 1"]
    [left_out] = [line for line in lines if line.startswith("left out: ")] or ["left out: 0 notes"]
    assert int(left_out.split()[2]) + len(notes) == count
    main(["compare", "--all", actual, reference])
    assert f"note {count - 1}" in capsys.readouterr().out.splitlines()
