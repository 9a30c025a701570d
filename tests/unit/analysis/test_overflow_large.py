"""`overflow` of large dumps: what the columns of the catalog tell is not read again, and the answer is the same."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from host_dumps import item, model_directory, noise, put

import ascend_dump
from ascend_dump.analysis.overflow import OverflowReport, find_overflows
from ascend_dump.cli import main
from ascend_dump.dump_format import NO_VALUES
from ascend_dump.reading import Dump
from ascend_dump.statistics import STATISTIC_NAMES
from ascend_dump.writing import HostWriter, Item

pytest.importorskip("polars")

#: What a step may have besides finite tensors; most have nothing.
ODD = ("", "", "", "nan", "inf", "mask", "collective", "no value", "not stored", "empty", "origin", "no statistics")


@pytest.fixture(autouse=True)
def every_dump_is_large(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ascend_dump.reading._dump._LARGE", 0)


def operator(seed: int, name: str, odd: str) -> list[Item]:
    """One input and one output; odd: of ODD."""
    inner, outer = noise(seed, 6), noise(seed + 1, 6)
    more: dict[str, Any] = {"op_type": "aten::op"}
    if odd in ("nan", "inf"):
        outer[3] = np.nan if odd == "nan" else np.inf
    elif odd == "mask":
        outer[:], more["op_type"] = -np.inf, "aten::full"
    elif odd == "collective":
        more["op_type"] = "c10d::allreduce_"
    elif odd == "empty":
        outer = outer[:0]  # recorders store nothing of it, no statistics either
    items = [item(name, inner, io="input", **more), item(name, outer, **more)]
    if odd in ("no value", "not stored"):
        items[1].payload = None
        items[1].line.skipped = sorted(NO_VALUES)[0] if odd == "no value" else "a nested tensor"
    elif odd == "origin":
        items[1].line.origin = True
    elif odd in ("no statistics", "empty"):
        items[1].payload = None
    return items


def write(root: Path, odd_of_steps: list[list[str]]) -> Dump:
    writer = HostWriter(model_directory(root), metadata={}, tensors=False, stats=STATISTIC_NAMES)
    for step, odds in enumerate(odd_of_steps):
        writer.begin_step(step)
        for number, odd in enumerate(odds):
            items = operator(100 * step + number, f"op_{number}", odd)
            for one in items:
                one.line.seq = number
            put(writer, *items)
        writer.end_step()
    writer.close()
    return ascend_dump.open(root)


def facts(report: OverflowReport) -> list[Any]:
    """The fields of a report, with texts for records and errors."""

    def overflow(one: Any) -> list[Any]:
        return [repr(value) for value in one]

    return [
        [overflow(one) for one in (*report.overflows, *report.harmless)],
        *(getattr(report, name) for name in ("answer", "operators", "followed", "masks", "reasons", "notes")),
        [str(error) for error in report.errors],
        report.checked,
    ]


@pytest.mark.parametrize("seed", range(16))
def test_the_answer_is_that_of_all_records(seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    draw = random.Random(seed)
    finite = draw.randrange(4)
    steps = [[""] * draw.randrange(1, 4) for _ in range(finite)]
    steps += [[draw.choice(ODD) for _ in range(draw.randrange(4))] for _ in range(3)]
    dump = write(tmp_path, steps)
    remaining, operators = dump.after_finite_start()
    assert operators >= sum(map(len, steps[:finite]))
    assert len(remaining) < len(dump) or not finite
    from_columns = facts(find_overflows(dump))
    monkeypatch.setattr(Dump, "after_finite_start", lambda dump: (dump, 0))
    assert from_columns == facts(find_overflows(dump))


@pytest.mark.parametrize("odd", [odd for odd in ODD if odd not in ("", "no value")])
def test_the_start_ends_before_a_step_that_may_have_nan(odd: str, tmp_path: Path) -> None:
    dump = write(tmp_path, [["", ""], ["", odd, ""], ["", ""]])
    remaining, operators = dump.after_finite_start()
    assert (remaining.steps, operators) == ([1, 2], 2)


def test_a_selection_is_kept(tmp_path: Path) -> None:
    dump = write(tmp_path, [["", ""], ["", "nan"], ["", ""]]).select(step="1-2")
    remaining, operators = dump.after_finite_start()
    assert (remaining.steps, operators) == ([1, 2], 0)
    remaining, operators = dump.select(op="op_0").after_finite_start()
    assert (len(remaining), operators) == (0, 2)


def test_nothing_is_left_of_a_dump_without_nan(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    dump = write(tmp_path, [["", ""], ["", "no value", ""]])
    remaining, operators = dump.after_finite_start()
    assert (len(remaining), operators) == (0, 5)
    assert main(["overflow", str(tmp_path)]) == 0
    assert "no overflow: 5 operators checked" in capsys.readouterr().out


def test_a_damaged_line_is_read_and_reported(tmp_path: Path) -> None:
    dump = write(tmp_path, [["", ""], ["", ""]])
    [index] = tmp_path.rglob("1/index.jsonl")
    index.write_bytes(index.read_bytes() + b"{broken}\n")
    remaining, operators = dump.after_finite_start()
    assert (remaining.steps, operators) == ([1], 2)
    assert len(find_overflows(dump).errors) == 1
