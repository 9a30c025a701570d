"""`ascend-dump report` from its arguments to its exit code."""

from __future__ import annotations

import json
import re
import webbrowser
from pathlib import Path

import pytest
from report_pages import write_training

from ascend_dump.cli import Exit, main


@pytest.fixture(scope="module")
def dumps(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    root = tmp_path_factory.mktemp("dumps")
    return str(write_training(root / "actual", fault=(1, 1))), str(write_training(root / "reference"))


def test_writes_a_page_and_says_what_is_on_it(
    dumps: tuple[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page = tmp_path / "page.html"
    assert main(["report", *dumps, "-o", str(page)]) == Exit.OK
    out = capsys.readouterr().out
    assert "different: Step 1: layers.1.up/mm_0 (aten::mm) on rank 1 is the first origin: the output differs" in out
    assert "126 pairs" in out
    assert page.read_text(encoding="utf-8").startswith("<!DOCTYPE html>")


def test_one_dump_alone(dumps: tuple[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = tmp_path / "page.html"
    assert main(["report", dumps[0], "--step", "1", "--json", "-o", str(page)]) == Exit.OK
    document = json.loads(capsys.readouterr().out)
    assert document["schema"] == "ascend-dump/report/1"
    assert (document["rows"], document["verdict"], document["unreadable"]) == (42, "nothing found", 0)
    assert document["bytes"] == page.stat().st_size


def test_a_page_that_exists_is_kept(dumps: tuple[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = tmp_path / "page.html"
    page.write_text("mine")
    assert main(["report", dumps[0], "-o", str(page)]) == Exit.USAGE
    assert "--overwrite" in capsys.readouterr().err
    assert page.read_text() == "mine"
    assert main(["report", dumps[0], "-o", str(page), "--overwrite"]) == Exit.OK
    assert page.read_text(encoding="utf-8") != "mine"


@pytest.mark.parametrize(
    ("name", "said"),
    [("page.pdf", "HTML"), ("missing/page.html", "no directory"), (".", "HTML"), ("d.html", "directory")],
)
def test_where_no_page_can_be(
    dumps: tuple[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str, said: str
) -> None:
    (tmp_path / "d.html").mkdir()
    assert main(["report", dumps[0], "-o", str(tmp_path / name)]) == Exit.USAGE
    assert said in capsys.readouterr().err


def test_a_dump_that_is_not_there(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", str(tmp_path / "none"), "-o", str(tmp_path / "page.html")]) == Exit.UNREADABLE
    assert "AD403" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_a_broken_dump_is_shown_and_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root = write_training(tmp_path / "broken", steps=1, ranks=1)
    [shard] = root.rglob("*.safetensors")
    with shard.open("r+b") as file:
        file.truncate(100)
    page = tmp_path / "page.html"
    assert main(["report", str(root), "-o", str(page)]) == Exit.UNREADABLE
    assert "cannot be read" in page.read_text(encoding="utf-8")
    told = capsys.readouterr()
    assert told.out.startswith("not all checked: Nothing looks wrong in what could be checked.")
    assert re.search(r"^\d+ records cannot be read; the page says why$", told.err, re.MULTILINE)


@pytest.mark.parametrize("sides", [1, 2])
def test_a_selection_that_matches_nothing_gives_no_page(
    sides: int, dumps: tuple[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page = tmp_path / "page.html"
    assert main(["report", *dumps[:sides], "--step", "7", "-o", str(page)]) == Exit.UNREADABLE
    told = capsys.readouterr()
    assert "no records with step='7'" in told.err
    assert "--step 7: the dump has 0, 1, 2" in told.err
    assert not page.exists()


@pytest.mark.parametrize("verb", ["overflow", "triage", "ls", "stats", "show", "replay", "compare", "convert"])
def test_a_selection_that_matches_nothing_has_one_exit_code(
    verb: str, dumps: tuple[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    if verb == "replay":
        pytest.importorskip("torch")
    words = {"compare": [*dumps, "--step", "7"], "convert": [dumps[0], "--select", "7", "-o", str(tmp_path)]}
    assert main([verb, *words.get(verb, [dumps[0], "--step", "7"])]) == Exit.UNREADABLE
    told = capsys.readouterr()
    if verb in ("overflow", "triage"):
        assert f"{dumps[0]} holds no record with step='7'" in told.out + told.err


def test_what_is_for_a_comparison_needs_a_reference(
    dumps: tuple[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["report", dumps[0], "--noise", dumps[1], "-o", str(tmp_path / "page.html")]) == Exit.USAGE
    assert "REFERENCE" in capsys.readouterr().err


@pytest.mark.parametrize("option", ["--noise", "--mapping", "--rules"])
def test_what_is_for_a_comparison_is_told_before_a_dump_is_opened(
    option: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["report", "none", option, "nowhere", "-o", str(tmp_path / "page.html")]) == Exit.USAGE
    assert f"{option} is for a comparison, and no REFERENCE is given" in capsys.readouterr().err


@pytest.mark.parametrize("opens", [True, False])
def test_opens_the_page(
    dumps: tuple[str, str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    opens: bool,
) -> None:
    asked: list[str] = []
    monkeypatch.setattr(webbrowser, "open", lambda address: asked.append(address) or opens)
    page = tmp_path / "page.html"
    assert main(["report", dumps[0], "--open", "-o", str(page)]) == Exit.OK
    assert asked == [page.as_uri()]
    assert ("no browser" in capsys.readouterr().err) is not opens
