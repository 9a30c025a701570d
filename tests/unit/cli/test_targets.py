"""Files named by options: a place where none can be written is told before the work, and not as a fault of ours."""

from __future__ import annotations

import json
import os
import subprocess
import sys
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

    def test_a_name_that_is_too_long(
        self, words: str, name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        assert "File name too long" in self.refusal(words, tmp_path / f"{'x' * 300}{name}", capsys)

    def test_a_directory_of_somebody_else(
        self, words: str, name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(os, "access", lambda *arguments: False)
        assert f"this user may not write {tmp_path}" in self.refusal(words, tmp_path / name, capsys)


def test_a_format_that_does_not_exist_is_told_before_the_work(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compare", "none", "none", "--save", "x.docx"]) == Exit.USAGE
    said = capsys.readouterr().err
    assert "the name of a comparison must end in .json, .csv, .html, .parquet or .xml [AD101]\n" in said
    assert "name it x.json" in said


def test_a_directory_is_not_taken_for_a_name_without_a_suffix(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["compare", "none", "none", "--save", str(tmp_path)]) == Exit.USAGE
    said = capsys.readouterr().err
    assert "is a directory" in said
    assert f"such as {tmp_path / 'result.json'}" in said


def test_no_file_is_written_twice(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = str(tmp_path / "x.json")
    for others in (["--write-mapping", file], ["--save", os.path.join(str(tmp_path), ".", "x.json")]):
        assert main(["compare", "none", "none", "--save", file, *others]) == Exit.USAGE
        assert f"{file} is to be written 2 times" in capsys.readouterr().err


def test_a_request_as_toml_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["triage", "none", "--next", "x.toml"]) == Exit.USAGE
    said = capsys.readouterr().err
    assert "the request is JSON" in said
    assert "name it next.json" in said


@pytest.mark.parametrize("name", ["x.json", "x.csv", "x.xml", "x.html", "names.json"])
def test_what_is_saved_is_private(name: str, dump: str, tmp_path: Path) -> None:
    option = "--write-mapping" if name.startswith("names") else "--save"
    assert main(["compare", dump, dump, option, str(tmp_path / name)]) == Exit.OK
    assert (tmp_path / name).stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("as_json", [True, False])
def test_a_full_disk_does_not_lose_the_comparison(
    as_json: bool, dump: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    full, names, other = (tmp_path / name for name in ("x.csv", "names.json", "x.xml"))
    for file in (full, names):
        file.symlink_to("/dev/full")
    words = ["--save", str(full), "--save", str(other), "--write-mapping", str(names)]
    assert main(["compare", dump, dump, *words, *(["--json"] if as_json else [])]) == Exit.USAGE
    told = capsys.readouterr()
    assert json.loads(told.out)["verdict"] == "equal" if as_json else told.out.startswith("equal: ")
    assert told.err.count("cannot be written: No space left on device") == 2
    assert other.stat().st_size


@pytest.mark.parametrize("as_json", [True, False])
@pytest.mark.parametrize("closed", [True, False])
def test_a_stdout_that_takes_nothing_does_not_keep_files_from_being_written(
    closed: bool, as_json: bool, dump: str, tmp_path: Path
) -> None:
    saved, names, full = (tmp_path / name for name in ("x.json", "names.json", "x.csv"))
    full.symlink_to("/dev/full")
    words = ["--save", str(saved), "--save", str(full), "--write-mapping", str(names), *(["--json"] if as_json else [])]
    command = [sys.executable, "-m", "ascend_dump", "compare", dump, dump, *words]
    if closed:
        reads, writes = os.pipe()
        os.close(reads)
    else:
        writes = os.open("/dev/full", os.O_WRONLY)
    with os.fdopen(writes, "wb") as stdout:
        done = subprocess.run(command, stdout=stdout, stderr=subprocess.PIPE, text=True, check=False)
    assert (done.returncode == Exit.PIPE_CLOSED) is closed
    assert json.loads(saved.read_text())["verdict"] == "equal"
    assert json.loads(names.read_text())
    assert f"{full}: the comparison cannot be written: No space left on device" in done.stderr


def test_a_fault_while_saving_does_not_lose_the_comparison(
    dump: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def exhausted(*arguments: object) -> None:
        raise MemoryError

    monkeypatch.setattr(ascend_dump.Comparison, "save", exhausted)
    assert main(["compare", dump, dump, "--save", str(tmp_path / "x.json")]) == Exit.INTERNAL
    told = capsys.readouterr()
    assert told.out.startswith("equal: ")
    assert "MemoryError" in told.err


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
