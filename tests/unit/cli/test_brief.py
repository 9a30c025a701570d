"""`--brief`: the answer, the first finding and the next command in at most 2 kB, for assistants and scripts."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import Any

import pytest
from suspect_dumps import write_rows

import ascend_dump
from ascend_dump.analysis.suspects import RULES
from ascend_dump.cli import Exit, main
from ascend_dump.report.findings import Finding, brief_text

PROGRAM = """
import torch

print("printed by the program")
model = torch.nn.Linear(2, 2)
torch.nn.init.constant_(model.weight, 1e30)
for _ in range(2):
    model(torch.full((1, 2), 1e30))
"""


def lines_of(text: str) -> list[tuple[str, str]]:
    assert len(text.encode()) <= 2048
    return [(line[:12].rstrip(), line[12:]) for line in text.splitlines()]


@pytest.fixture
def dumps(tmp_path: Path) -> tuple[str, str]:
    torch: Any = pytest.importorskip("torch")
    for name, factor in (("actual", 1000.0), ("reference", 2.0)):
        with ascend_dump.capture(path=tmp_path / name):
            (torch.ones(100) * factor).exp()
    return str(tmp_path / "actual"), str(tmp_path / "reference")


@pytest.mark.parametrize("verb", ["compare", "triage"])
def test_of_two_dumps_are_verdict_origin_and_commands(
    verb: str, dumps: tuple[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([verb, *dumps, "--brief"]) == Exit.DIFFERENT
    labels = dict(lines := lines_of(capsys.readouterr().out))
    assert labels["answer"].startswith("different: ")
    assert labels["origin"] == "mul_0 (aten::mul), step 0"
    assert ("evidence", "other: 1000.0 here, 2.0 in the reference") in lines
    assert Path(__file__).name in labels["source"]
    assert lines[-1][0] == "next"
    assert f"ascend-dump show {dumps[0]} --op mul_0 --step 0" in " ".join(text for _, text in lines)


def test_of_equal_dumps_there_is_no_next_step(dumps: tuple[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compare", dumps[0], dumps[0], "--brief"]) == Exit.OK
    labels = dict(lines_of(capsys.readouterr().out))
    assert labels["note"] == "both dumps are the same, bit for bit"
    assert labels.keys() == {"answer", "note"}


def test_of_indexes_the_next_step_reads_one_rank(dumps: tuple[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("polars")
    assert main(["compare", *dumps, "--index-only", "--brief"]) == Exit.DIFFERENT
    labels = dict(lines_of(capsys.readouterr().out))
    assert labels["next"] == f"ascend-dump compare {dumps[0]} {dumps[1]} --rank=0"


def test_of_an_overflow_it_shows_the_operator(dumps: tuple[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["overflow", dumps[0], "--brief"]) == Exit.DIFFERENT
    labels = dict(lines_of(capsys.readouterr().out))
    assert labels["answer"].startswith("origin: an operator made NaN or Inf of finite inputs")
    assert labels["operator"] == "exp_0 (aten::exp), step 0"
    assert labels["next"] == f"ascend-dump show {dumps[0]} --op exp_0 --step 0"
    # The command of the answer runs.
    assert main(shlex.split(labels["next"])[1:]) == Exit.OK
    capsys.readouterr()
    assert main(["overflow", dumps[1], "--brief"]) == Exit.OK
    assert [label for label, _ in lines_of(capsys.readouterr().out)] == ["answer"]


def test_what_was_not_checked_is_in_the_answer(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    torch: Any = pytest.importorskip("torch")
    with ascend_dump.capture(path=tmp_path) as cap:
        torch.ones(100) + 1
    for shard in cap.path.rglob("*.safetensors"):
        shard.unlink()
    assert main(["overflow", str(cap.path), "--brief"]) == Exit.UNREADABLE
    labels = dict(lines_of(capsys.readouterr().out))
    assert labels["answer"].startswith("unchecked: ")
    assert "is missing" in labels["not checked"]


def test_of_suspects_it_has_the_request_of_the_next_dump(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_rows(tmp_path / "dumps", RULES["growth"].trips)
    assert main(["triage", str(tmp_path / "dumps"), "--brief"]) == Exit.DIFFERENT
    lines = lines_of(capsys.readouterr().out)
    assert ("suspect", "0/mm_0 (aten::mm), step 2") in lines
    assert lines[-1][0] == "next"
    assert lines[-1][1].startswith("ASCEND_DUMP=")


def test_a_run_is_answered_by_its_cause_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("torch")
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    monkeypatch.chdir(tmp_path)
    assert main(["triage", "--brief", "--run", "--", sys.executable, str(program)]) == Exit.DIFFERENT
    labels = dict(lines_of(capfd.readouterr().out))
    assert "aten::addmm" in labels["cause"]
    assert "next" in labels


@pytest.mark.parametrize("options", [["--json", "--brief"], ["--brief", "--json"]])
def test_one_form_of_output_is_chosen(options: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["overflow", "dumps", *options]) == Exit.USAGE
    assert "--brief and --json" in capsys.readouterr().err


def test_a_long_answer_keeps_its_operator_its_reasons_and_its_next_step() -> None:
    finding = Finding("origin", "fc/mm_0", "aten::mm", evidence=["é" * 500] * 30, commands=("ascend-dump ls dumps",))
    text = brief_text("different", finding, not_checked=["rank 3 was lost"], notes=["a note"] * 20)
    lines = lines_of(text)
    assert ("origin", "fc/mm_0 (aten::mm)") in lines
    assert ("not checked", "rank 3 was lost") in lines
    assert ("next", "ascend-dump ls dumps") in lines
    shown = len(lines) - 1
    assert text.splitlines()[-1] == f"{1 + 1 + 30 + 1 + 20 + 1 - shown} more lines without --brief"


def test_a_command_is_whole_or_absent() -> None:
    command = f"ascend-dump show {'d' * 1900} --op mm"
    assert command in brief_text("different", None, next_steps=[command])
    long = f"ascend-dump show {'d' * 3000} --op mm"
    assert "ddd" not in brief_text("different", None, next_steps=[long])
