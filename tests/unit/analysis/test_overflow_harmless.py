"""`overflow` on NaN and Inf that no tensor has at the end of its step, and on operators that are ignored."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Callable

import pytest

import ascend_dump
from ascend_dump.analysis.overflow import OverflowReport, find_overflows
from ascend_dump.cli import Exit, main

torch = pytest.importorskip("torch")


def record(path: Path, program: Callable[[Any], object], **settings: Any) -> ascend_dump.Dump:
    model = torch.nn.Linear(4, 4)
    with torch.no_grad(), ascend_dump.capture(model, path=path, data="stats", **settings) as cap:
        for step in range(2):
            x = model(torch.ones(1, 4)).abs() + 1
            program(x if step else x * 1)
    return cap.dump()


def names(report: OverflowReport) -> tuple[list[str], list[str]]:
    sides = (report.overflows, report.harmless)
    told, harmless = ([overflow.record.op_type for overflow in side] for side in sides)
    return told, harmless


def negative_root(x: Any) -> Any:
    return (-x).sqrt()


@pytest.mark.parametrize(
    "program",
    [
        lambda x: torch.where(x < 0, negative_root(x), x),
        lambda x: negative_root(x).nan_to_num().sum(),
        lambda x: (negative_root(x) + 1).nansum(),
        lambda x: negative_root(x).zero_(),
    ],
)
def test_nan_that_is_gone_at_the_end_of_its_step_is_harmless(program: Callable[[Any], object], tmp_path: Path) -> None:
    report = find_overflows(record(tmp_path, program))
    assert names(report) == ([], ["aten::sqrt", "aten::sqrt"])
    assert report.answer == "none"


@pytest.mark.parametrize(
    "program",
    [
        negative_root,
        lambda x: negative_root(x).sum().item(),
        lambda x: torch.isnan(negative_root(x)).any(),
        lambda x: (negative_root(x) + 1, negative_root(x).nan_to_num()),
        lambda x: x.mul_(negative_root(x)[0, 0]),
    ],
)
def test_nan_that_is_left_is_an_overflow(program: Callable[[Any], object], tmp_path: Path) -> None:
    report = find_overflows(record(tmp_path, program))
    assert report.answer == "origin"
    assert report.overflows[0].record.op_type == "aten::sqrt"


def test_a_harmless_nan_hides_no_other(tmp_path: Path) -> None:
    """NaN that was there before the recording is found behind a harmless one of the same step."""
    outside = torch.full((4,), float("nan"))
    report = find_overflows(record(tmp_path, lambda x: (negative_root(x).nan_to_num(), x + outside)))
    assert names(report)[1] == ["aten::sqrt", "aten::sqrt"]
    assert [(overflow.kind, overflow.record.op_type) for overflow in report.overflows] == [("outside", "aten::add")]


@pytest.mark.parametrize("settings", [{"mode": "output"}, {"layers": ["*sqrt*", "*nan_to_num*"]}])
def test_an_incomplete_dump_makes_nothing_harmless(settings: dict[str, Any], tmp_path: Path) -> None:
    report = find_overflows(record(tmp_path, lambda x: negative_root(x).nan_to_num(), **settings))
    assert not report.harmless
    assert report.answer != "none"


def test_the_command_lists_and_ignores_them(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    record(tmp_path, lambda x: ((x - x).reciprocal().nan_to_num(), negative_root(x)))
    assert main(["overflow", str(tmp_path)]) == Exit.DIFFERENT
    said = capsys.readouterr()
    assert "aten::sqrt" in said.out
    assert "harmless so far: reciprocal_0 (aten::reciprocal), step 0" in said.err
    for ignored in ("sqrt", "aten::sqrt", f"{Path(__file__).name}:{negative_root.__code__.co_firstlineno + 1}"):
        assert main(["overflow", str(tmp_path), "--ignore", ignored]) == Exit.OK
    assert main(["overflow", str(tmp_path), "--ignore", "never"]) == Exit.DIFFERENT
    assert "ignore='never' selected no operator with NaN or Inf" in capsys.readouterr().err
