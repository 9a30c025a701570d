"""What `ls` and `stats` leave out unless they are asked for it, and what fits a terminal."""

from __future__ import annotations

import io
import json
import shutil
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

import pytest

import ascend_dump
from ascend_dump.cli import main

torch = pytest.importorskip("torch")


class Seen:
    def __init__(self, code: int, out: str, err: str) -> None:
        self.code, self.out, self.err = code, out, err


def shell(*words: object) -> Seen:
    out, err = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(err):
        code = main([str(word) for word in words])
    return Seen(code, out.getvalue(), err.getvalue())


class Block(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = torch.nn.Linear(4, 4), torch.nn.Linear(4, 4)

    def forward(self, x: Any) -> Any:
        return self.second(torch.log(self.first(x.view(-1, 4)).abs() - 1e9))


@pytest.fixture(scope="module")
def dump(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.manual_seed(0)
    path = tmp_path_factory.mktemp("listed")
    model = Block()
    with ascend_dump.capture(model, path=path, quiet=True):
        model(torch.ones(2, 2, 2)).sum().backward()
    return path


VIEWS = ("aten::t", "aten::view", "aten::detach", "aten::expand")


def folded(dump: Path) -> tuple[int, int]:
    """Operators and records of views."""
    found = [one for one in ascend_dump.open(dump) if one.op_type in VIEWS]
    return len({one.op_name for one in found}), len(found)


def test_operators_that_change_no_values_are_counted_and_not_listed(dump: Path) -> None:
    operators, records = folded(dump)
    assert operators > 3
    listed = shell("ls", dump)
    assert not any(name in listed.out for name in VIEWS)
    assert f"{operators} operators that change no values (views, detach, empty, ...) are left out: --all" in listed.out
    assert f"{records} records that change no values" in shell("ls", dump, "--records").out
    measured = shell("stats", dump)
    assert "/t_0" not in measured.out
    assert f"{records} tensors that change no values" in measured.err
    total = next(line for line in listed.out.splitlines() if " · " in line)
    assert f"{len(ascend_dump.open(dump))} records" in total


@pytest.mark.parametrize("words", [[], ["--json"], ["--nonfinite"], ["--sort", "max"]], ids=str)
def test_a_limit_changes_the_list_and_not_what_is_said_of_all_records(
    dump: Path, tmp_path: Path, words: list[str]
) -> None:
    whole = tmp_path / "whole"
    shutil.copytree(dump, whole)
    for index in whole.rglob("index.jsonl"):
        with index.open("a") as lines:
            lines.write("{ no JSON\n")
    every, cut = shell("stats", whole, *words), shell("stats", whole, *words, "--limit", 1)
    assert "cannot be read" in every.err
    assert (cut.err, cut.code, len(cut.out) < len(every.out)) == (every.err, every.code, True)


@pytest.mark.parametrize("words", [["--all"], ["--op", "*"], ["--op-type", "aten::*"]])
def test_whoever_asks_gets_them(dump: Path, words: list[str]) -> None:
    assert "aten::t " in shell("ls", dump, *words).out
    seen = shell("stats", dump, *words)
    assert "/t_0" in seen.out
    assert "left out" not in seen.out + seen.err


def test_a_view_that_alone_has_a_nan_is_counted(tmp_path: Path) -> None:
    tensor = torch.full((2, 3), torch.nan)
    with ascend_dump.capture(path=tmp_path, quiet=True):
        tensor.t()
    seen = shell("stats", tmp_path, "--nonfinite")
    assert (seen.code, seen.out) == (0, "")
    assert "2 tensors with NaN or Inf that change no values (views, detach, empty, ...) are left out: --all" in seen.err
    assert "no NaN" not in seen.err
    assert shell("stats", tmp_path, "--nonfinite", "--all").out.count("t_0") == 2


def test_documents_hold_all(dump: Path) -> None:
    for verb in ("ls", "stats"):
        assert len(json.loads(shell(verb, dump, "--json").out)["records"]) == len(ascend_dump.open(dump))


def test_one_line_per_module(dump: Path) -> None:
    rows = [line.split() for line in shell("stats", dump, "--by", "module").out.splitlines()]
    assert rows[0] == ["step", "module", "operators", "tensors", "bytes", "nan", "inf", "largest", "worst"]
    by_name = {row[1]: row for row in rows[1:]}
    assert set(by_name) == {"first", "second", "-"}
    first, second = by_name["first"], by_name["second"]
    assert int(second[5]) > 0
    assert not second[8].startswith("second/")
    assert (first[6], float(first[7]) < 1e9) == ("0", True)
    modules = json.loads(shell("stats", dump, "--by", "module", "--json").out)["modules"]
    assert {one["module"] for one in modules} == {"first", "second", ""}
    worst = next(one for one in modules if one["module"] == "second")["worst"]
    assert worst == f"second/{second[8]}"
    assert len(shell("stats", dump, "--by", "module", "--limit", 1).out.splitlines()) == 2
    refused = shell("stats", dump, "--by", "module", "--origin")
    assert (refused.code, "leave one of them out" in refused.err) == (2, True)


def test_ls_names_the_worst_tensor_of_a_module_where_statistics_are_recorded(dump: Path, tmp_path: Path) -> None:
    model = Block()
    with ascend_dump.capture(model, path=tmp_path, data="stats", quiet=True):
        model(torch.ones(2, 2, 2)).sum().backward()
    assert shell("ls", tmp_path, "--by", "module").out == shell("stats", tmp_path, "--by", "module").out
    listed, computed = shell("ls", dump, "--by", "module"), shell("stats", dump, "--by", "module")
    rows = [line.split() for line in listed.out.splitlines()]
    assert rows[0] == ["step", "module", "operators", "tensors", "bytes"]
    assert rows[1:] == [line.split()[:5] for line in computed.out.splitlines()[1:]]
    assert "`ascend-dump stats --by module` computes them" in listed.err
    (second,) = [
        one
        for one in json.loads(shell("ls", dump, "--by", "module", "--json").out)["modules"]
        if one["module"] == "second"
    ]
    assert (second["worst"], second["operators"] > 0) == (None, True)
    for other in ("--records", "--long"):
        refused = shell("ls", dump, "--by", "module", other)
        assert (refused.code, "leave one of them out" in refused.err) == (2, True)


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(("verb", "narrow"), [("ls", 60), ("stats", 100)])
def test_a_terminal_leaves_out_columns_before_it_cuts_names(
    dump: Path, verb: str, narrow: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    for width in (200, narrow):
        monkeypatch.setenv("COLUMNS", str(width))
        out = Terminal()
        with redirect_stdout(out), redirect_stderr(io.StringIO()):
            assert main([verb, str(dump)]) == 0
        heading, *rows = out.getvalue().splitlines()
        assert "…" not in out.getvalue()
        assert all(len(row) <= width for row in rows if row.lstrip().startswith("0 "))
        assert ("no room for" in out.getvalue()) == (width == narrow)
        assert ("bytes" in heading or "zero" in heading) == (width == 200)


def test_an_overflow_names_module_and_source(tmp_path: Path) -> None:
    model = torch.nn.Sequential(Block())
    with ascend_dump.capture(model, path=tmp_path, quiet=True):
        model(torch.ones(2, 2, 2))
    lines = [line.split() for line in shell("overflow", tmp_path).out.splitlines()]
    assert ["module", "0"] in lines
    (source,) = [line[1] for line in lines if line[:1] == ["source"]]
    file, _, number = source.rpartition(":")
    assert "torch.log(" in Path(file).read_text().splitlines()[int(number) - 1]


def test_a_plot_stands_instead_of_the_values(dump: Path) -> None:
    words = ["show", dump, "--op", "first/addmm_0", "--io", "output"]
    values, plot = shell(*words).out, shell(*words, "--plot").out
    assert "[[" in values
    assert "[[" not in plot
    assert "|###" in plot
