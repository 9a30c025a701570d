"""A whole self-test on the host and on the simulated device; what each check finds; and the report."""

from __future__ import annotations

import dataclasses
import gzip
import json
import shutil
import socket
import zipfile
from pathlib import Path
from typing import Any, Callable

import numpy as np
import pytest
from preloaded import write_python

from ascend_dump.cli import main
from ascend_dump.selftest.checks import check_runs
from ascend_dump.selftest.processes import SUBJECTS, ProcessResult
from ascend_dump.selftest.report import Private, private_names, write_report
from ascend_dump.selftest.run import SelfTest, run_selftest

pytest.importorskip("torch")

FRAMEWORKS = ("torch", "torch_npu")


@pytest.fixture(scope="module")
def work(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("selftest")


@pytest.fixture(scope="module")
def tested(work: Path, tmp_path_factory: pytest.TempPathFactory) -> SelfTest:
    python = write_python(tmp_path_factory.mktemp("python") / "python", "torch")
    return run_selftest(work, frameworks=FRAMEWORKS, simulated=True, python=str(python))


@pytest.mark.thorough
@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_every_promise_is_kept(tested: SelfTest, framework: str) -> None:
    results = [result for result in tested.results if result.framework == framework]
    assert [result for result in results if result.state != "PASS"] == []
    assert len(results) == 18
    assert {result.road for result in results} == {"with", "decorator", "launcher"}


def test_the_simulated_device_agrees_and_confirms_nothing(tested: SelfTest) -> None:
    found = tested.assumptions()
    assert not tested.failed
    assert {one["state"] for one in found} == {"unknown"}
    assert [one for one in found if one["simulated"] == "refuted"] == []
    assert sum(one["simulated"] == "confirmed" for one in found) >= 45
    states = {one["id"]: one["simulated"] for one in found}
    asked = ("cann.exception_first", "cann.captured_name", "cann.empty_operator", "torch_npu.overflow_values")
    assert [states[name] for name in asked] == ["confirmed"] * 4
    assert {"id", "state", "probe"} <= found[0].keys()


def test_a_device_confirms(tested: SelfTest) -> None:
    on_device = dataclasses.replace(tested, simulated=False)
    states = {one["id"]: one["state"] for one in on_device.assumptions()}
    assert states["torch_npu.step_numbering"] == "confirmed"
    assert states["cann.captured_characters"] == "unknown"


# What the checks find. Each spoils one process of a run on the host.


def files(ran: ProcessResult, pattern: str) -> list[Path]:
    return [path for path in ran.dumps.rglob(pattern) if path.is_file()]


def without_a_step(ran: ProcessResult) -> ProcessResult:
    shutil.rmtree(next(path for path in ran.dumps.rglob("3") if path.is_dir()))
    return ran


def with_other_values(ran: ProcessResult) -> ProcessResult:
    return dataclasses.replace(ran, arrays={name: array + np.float32(1) for name, array in ran.arrays.items()})


def with_broken_files(ran: ProcessResult) -> ProcessResult:
    for path in files(ran, "*.safetensors"):
        path.chmod(0o600)
        path.write_bytes(path.read_bytes()[:100])
    return ran


def failed(ran: ProcessResult) -> ProcessResult:
    return dataclasses.replace(ran, code=1, output="Traceback\nRuntimeError: no")


def with_truth(**noted: Any) -> Callable[[ProcessResult], ProcessResult]:
    return lambda ran: dataclasses.replace(ran, truth={**ran.truth, **noted})


def emptied(ran: ProcessResult) -> ProcessResult:
    shutil.rmtree(ran.dumps)
    ran.dumps.mkdir()
    return ran


def with_a_file(ran: ProcessResult) -> ProcessResult:
    ran.dumps.mkdir(exist_ok=True)
    (ran.dumps / "manifest.json").write_text("{}")
    return ran


SPOILT = [
    ("with", "only the selected steps are in the dump", without_a_step),
    ("decorator", "only the selected steps are in the dump", without_a_step),
    ("launcher-1", "names and layout can be read", emptied),
    ("with", "values are those that the program had", with_other_values),
    ("with", "values are those that the program had", with_broken_files),
    ("with", "results are the same without a capture", with_other_values),
    ("with", "nothing is written after the block", with_truth(after=["index.jsonl"])),
    ("statistics", "statistics are those of the tensors", with_other_values),
    ("overflow", "a planted overflow is found", without_a_step),
    ("unwritable", "a path that cannot be written is reported", with_truth(messages=[])),
    ("unwritable", "a path that cannot be written is reported", with_truth(messages=["warning: steps [AD297]"])),
    ("full", "a full disk is reported", failed),
    ("full", "a full disk is reported", with_truth(messages=["warning: steps [AD297]"])),
    ("launcher-0", "the rank that is not selected writes nothing", with_a_file),
]


@pytest.mark.parametrize(("scenario", "check", "spoil"), SPOILT)
def test_a_broken_promise_is_found(tested: SelfTest, tmp_path: Path, scenario: str, check: str, spoil: Any) -> None:
    runs = dict(tested.runs["torch"])
    directory = tmp_path / scenario
    shutil.copytree(runs[scenario].directory, directory)
    ran = dataclasses.replace(runs[scenario], directory=directory)
    if spoil is without_a_step and scenario == "overflow":
        shutil.rmtree(next(path for path in ran.dumps.rglob("1") if path.is_dir()))
    else:
        ran = spoil(ran)
    road = {"decorator": "decorator", "launcher-1": "launcher", "launcher-0": "launcher"}.get(scenario, "with")
    [result] = [
        one for one in check_runs(SUBJECTS[0], {**runs, scenario: ran}) if (one.road, one.check) == (road, check)
    ]
    assert result.state == "FAIL"
    assert result.reason


def test_a_program_that_does_not_run_is_one_failure(tested: SelfTest) -> None:
    [result] = check_runs(SUBJECTS[0], {"plain": failed(tested.runs["torch"]["plain"])})
    assert (result.state, result.reason) == ("FAIL", "RuntimeError: no")


def test_what_an_adapter_refuses_is_skipped_with_its_reason(tested: SelfTest) -> None:
    runs = dict(tested.runs["torch"])
    runs["statistics"] = with_truth(refused="no statistics here\nHint: none")(runs["statistics"])
    [result] = [one for one in check_runs(SUBJECTS[0], runs) if one.check.startswith("statistics")]
    assert (result.state, result.reason) == ("SKIP", "no statistics here")


# The report.


def members(file: Path) -> dict[str, bytes]:
    with zipfile.ZipFile(file) as opened:
        return {name: opened.read(name) for name in opened.namelist()}


def test_the_report_has_what_it_takes_to_look_into_a_run(tested: SelfTest, work: Path, tmp_path: Path) -> None:
    file = tmp_path / "report.zip"
    write_report(file, work, {"results": [result._asdict() for result in tested.results]})
    found = members(file)
    assert json.loads(found["versions.json"])["packages"]["torch"]
    assert json.loads(found["selftest.json"])["results"]
    assert b"aclnnMuls_0_L0.Muls" in found["tree.txt"]
    assert any("aclnn" in name for name in found)
    assert file.stat().st_mode & 0o777 == 0o600
    assert file.stat().st_size < 2 << 20


def test_the_report_has_nothing_private(tested: SelfTest, work: Path, tmp_path: Path) -> None:
    """Neither the paths of this run nor the host's name, which the manifests of host dumps hold."""
    assert any(socket.gethostname() in path.read_text() for path in work.rglob("manifest.json"))
    file = tmp_path / "report.zip"
    write_report(file, work, {"messages": [run.truth for run in tested.runs["torch"].values()]})
    words = [str(work), *([socket.gethostname()] if len(socket.gethostname()) > 2 else [])]
    for name, data in members(file).items():
        for word in words:
            assert word not in name
            assert word.encode() not in data, f"{name} holds {word}"


def test_home_host_and_user_are_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = tmp_path / "home" / "ada"
    work = home / "tmp" / "run"
    work.mkdir(parents=True)
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("LOGNAME", "ada")
    monkeypatch.setenv("ASCEND_HOME_PATH", f"{home}/Ascend")
    monkeypatch.setenv("MS_API_TOKEN", "secret-1")
    monkeypatch.setattr(socket, "gethostname", lambda: "analytical.engine")
    monkeypatch.setattr(socket, "getfqdn", lambda: "analytical.engine.example")
    text = f"{home}/code/train.py on analytical.engine by ada, {work}/dumps; adamant"
    (work / "manifest.json").write_text(json.dumps({"said": text}))
    (work / "a.0").write_bytes(b"\0\xff analytical")
    (work / "b.0").write_bytes(b"\0\xff nothing")
    (work / "index.jsonl.gz").write_bytes(gzip.compress(text.encode()))
    file = tmp_path / "report.zip"
    write_report(file, work, {"said": text})
    found = members(file)
    together = b"".join(found.values()) + "".join(found).encode()
    for word in (b"analytical", str(home).encode(), b"secret-1", b" ada,"):
        assert word not in together
    assert json.loads(found["files/manifest.json"])["said"] == "~/code/train.py on HOST by USER, WORK/dumps; adamant"
    assert "files/b.0" in found
    assert "files/a.0" not in found
    assert "files/index.jsonl.gz" not in found, "nobody could see what is private in it"
    assert json.loads(found["settings.json"])["ASCEND_HOME_PATH"] == "~/Ascend"


def test_a_short_or_common_name_is_no_name() -> None:
    assert Private({}).clean("root") == "root"
    assert private_names(Path("work")).clean("the root of it") == "the root of it"


# The command.


def test_without_a_device_the_exit_code_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["selftest", "--framework", "torch_npu"]) == 4
    said = capsys.readouterr().out
    assert "SKIP" in said
    assert "torch_npu is not installed" in said
    assert "--simulated" in said


def test_the_document_lists_assumptions(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    report = tmp_path / "report.zip"
    assert main(["selftest", "--framework", "torch_npu", "--json", "-o", str(report)]) == 4
    document = json.loads(capsys.readouterr().out)
    assert document["schema"] == "ascend-dump/selftest/1"
    assert len(document["assumptions"]) >= 60
    assert {one["state"] for one in document["assumptions"]} == {"unknown"}
    assert report.is_file()


def test_a_framework_without_a_self_test_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["selftest", "--framework", "paddle"]) == 2
    assert "torch_npu" in capsys.readouterr().err


def test_a_report_that_cannot_be_written_is_told(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert main(["selftest", "--framework", "torch_npu", "-o", str(tmp_path / "missing" / "r.zip")]) == 2
    assert "cannot be written" in capsys.readouterr().err
