"""Files named by options: a place where none can be written is told before the work, and not as a fault of ours."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from report_pages import write_training

import ascend_dump
from ascend_dump import WriteError
from ascend_dump.cli import Exit, main


@pytest.fixture(scope="module")
def dump(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(write_training(tmp_path_factory.mktemp("targets") / "dump"))


OPTIONS = [
    *(("compare none none --save", f"x{suffix}") for suffix in (".json", ".csv", ".xml", ".parquet", ".html")),
    ("compare none none --write-mapping", "x.json"),
    ("triage none --next", "x.json"),
    ("report none -o", "x.html"),
]


# There is no dump: who looks at the file first does not tell of it.
@pytest.mark.parametrize(("words", "name"), OPTIONS)
class TestBeforeTheWork:
    def refusal(self, words: str, file: Path, capsys: pytest.CaptureFixture[str]) -> str:
        assert main([*words.split(), str(file)]) == Exit.USAGE
        return capsys.readouterr().err

    def test_a_directory_that_is_missing(
        self, words: str, name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        said = self.refusal(words, tmp_path / "missing" / name, capsys)
        assert f"there is no directory {tmp_path / 'missing'}" in said

    def test_a_directory_in_place_of_a_file(
        self, words: str, name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        (tmp_path / name).mkdir()
        assert "is a directory" in self.refusal(words, tmp_path / name, capsys)

    def test_a_directory_of_somebody_else(
        self, words: str, name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(os, "access", lambda *arguments: False)
        assert f"this user may not write {tmp_path}" in self.refusal(words, tmp_path / name, capsys)


def test_a_format_that_does_not_exist_is_told_before_the_work(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compare", "none", "none", "--save", "x.docx"]) == Exit.USAGE
    assert "expected .json, .csv, .html, .parquet or .xml" in capsys.readouterr().err


def test_a_request_of_another_language_is_told_before_the_work(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["triage", "none", "--next", "x.toml", "--for", "mindspore"]) == Exit.USAGE
    assert "ends in .json" in capsys.readouterr().err


@pytest.mark.parametrize("suffix", [".json", ".csv", ".xml", ".parquet"])
def test_a_full_disk_is_told_as_what_it_is(suffix: str, dump: str, tmp_path: Path) -> None:
    if suffix == ".parquet":
        pytest.importorskip("polars")
    file = tmp_path / f"x{suffix}"
    file.symlink_to("/dev/full")
    with pytest.raises(WriteError, match="the comparison cannot be written: No space left on device"):
        ascend_dump.compare(dump, dump).save(file)


def test_a_full_disk_is_no_fault_of_a_mapping(dump: str, tmp_path: Path) -> None:
    file = tmp_path / "x.json"
    file.symlink_to("/dev/full")
    with pytest.raises(WriteError, match="the mapping cannot be written: No space left on device"):
        ascend_dump.compare(dump, dump).save_mapping(file)
