"""One renderer of origins, suspects and causes: a wording is changed in one file."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
from preloaded import COMPILER, write_python

import ascend_dump
from ascend_dump.cli import main
from ascend_dump.report import findings
from ascend_dump.report.findings import Finding, short_lines, text_lines


@pytest.fixture
def reworded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(findings.LABELS, "evidence", "proof")
    for table, name in ((findings.KINDS, "structure"), (findings.KINDS, "compute"), (findings.RULES, "non-finite")):
        monkeypatch.setitem(table, name, "reworded meaning")


@pytest.fixture
def dumps(tmp_path: Path) -> tuple[Path, Path]:
    torch: Any = pytest.importorskip("torch")
    paths = tmp_path / "actual", tmp_path / "reference"
    for path, factor in zip(paths, (1000.0, 2.0)):
        with ascend_dump.capture(path=path):
            (torch.ones(100) * factor).exp()
    return paths


@pytest.mark.usefixtures("reworded")
class TestOneFileChangesAWording:
    def test_in_the_text_and_the_page_of_a_comparison(
        self, dumps: tuple[Path, Path], capsys: pytest.CaptureFixture[str]
    ) -> None:
        comparison = ascend_dump.compare(*dumps)
        page = comparison.to_page()
        assert "reworded meaning" in page.sentence
        lines = dict(page.findings[0].lines)
        assert lines["kind"] == "structure: reworded meaning"
        assert lines["proof"] == "\n".join(comparison.origins[0].evidence)
        assert "reworded meaning" in comparison._repr_html_()
        assert comparison.origins[0].evidence[0].split(":")[0] in comparison._repr_html_()
        for verb in ("compare", "triage"):
            main([verb, *map(str, dumps)])
            out = capsys.readouterr().out
            assert "\nkind        structure: reworded meaning\n" in out
            assert "\nproof       " in out
            assert page.findings[0].title in out

    def test_in_the_text_and_the_page_of_a_triage(
        self, dumps: tuple[Path, Path], capsys: pytest.CaptureFixture[str]
    ) -> None:
        page = ascend_dump.triage(dumps[0]).to_page()
        lines = dict(page.findings[0].lines)
        assert lines["rule"] == "non-finite: reworded meaning"
        main(["triage", str(dumps[0])])
        out = capsys.readouterr().out
        assert "\nrule        non-finite: reworded meaning\n" in out
        assert f"\nproof       {lines['proof']}\n" in out

    def test_in_the_demo(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        pytest.importorskip("torch")
        monkeypatch.setattr(sys, "executable", str(write_python(tmp_path / "python", COMPILER)))
        assert main(["demo", str(tmp_path / "demo")]) == 0
        out = capsys.readouterr().out
        assert "\n  kind        structure: reworded meaning\n" in out
        assert out.count("\n  proof       ") >= 3
        assert "evidence" not in out


def test_a_finding_has_a_line_for_each_fact() -> None:
    finding = Finding(
        *("cause", "net/mul_0", "aten::mul", 3, "1"),
        phase="backward",
        module="net",
        source="train.py:7",
        stack=("train.py:7 in forward", "train.py:9 in step"),
        evidence=("its output has NaN", "\x1b its inputs are finite"),
        explains=1,
        settings={"layers": "net/mul_0"},
    )
    assert list(text_lines(finding)) == [
        "cause       net/mul_0 (aten::mul), step 3, rank 1",
        "phase       backward",
        "module      net",
        "source      train.py:7",
        "called from train.py:9 in step",
        "evidence    its output has NaN",
        "evidence    \\x1b its inputs are finite",
        "explains    1 later output that differs",
        "next        ascend_dump.capture(..., layers='net/mul_0')",
    ]


@pytest.mark.parametrize("width", [100, 60])
def test_the_lines_fit_a_terminal(width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """But for a command, which is copied, and words that are longer."""
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    monkeypatch.setenv("COLUMNS", str(width))
    evidence = (
        "net.layers.3/mul_0.output.0: one element differs by 1e+03 times the rounding envelope (relative error 3e-3)"
    )
    finding = Finding("origin", "net/mul_0", "aten::mul", 3, evidence=(evidence,), commands=(f"show {'x' * 200}",))
    lines = list(text_lines(finding))
    monkeypatch.undo()
    assert [line for line in lines if len(line) > max(width, 40)] == [lines[-1]]
    folded = " ".join(line.strip() for line in lines[1:-1])
    assert folded == f"evidence    {evidence}"


def test_a_long_changed_call_takes_one_line() -> None:
    """The first origin is on the same screen. The name and the first argument are kept."""
    origin = Finding("origin", "net/mul_0", "aten::mul", 3, kind="compute")
    arguments = tuple(f"argument_{number}: {number} here, {number + 1} in the reference" for number in range(6))
    call = Finding("changed", "net/attention_0", "aten::attention", 3, arguments=arguments)
    assert len(list(short_lines([origin], [call], room=12))) > 2
    lines = list(short_lines([origin], [call], room=3))
    assert len(lines) == 2
    assert lines[1].startswith("changed     net/attention_0: argument_0: 0 here, 1 in the reference")
    assert lines[1].endswith("…")
