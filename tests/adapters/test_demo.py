"""`ascend-dump demo` finds the fault that its script plants."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from preloaded import COMPILER, write_python

import ascend_dump
from ascend_dump.cli import Exit, main

pytest.importorskip("torch")


def test_it_names_the_operator_module_and_source_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", "/usr/bin:/bin")  # where no ascend-dump is
    # The command starts this one for its trainings, so that they need not import PyTorch; `make demo` runs all of it.
    monkeypatch.setattr(sys, "executable", str(write_python(tmp_path / "python", COMPILER)))
    assert main(["demo", "--json", str(tmp_path / "a b")]) == Exit.OK
    found = json.loads(capsys.readouterr().out)
    assert found["schema"] == "ascend-dump/demo/1"
    record = found["record"]
    assert (record["op_type"], record["op_name"], record["step"]) == ("aten::exp", "gate/exp_0", 1)
    assert (record["module"], found["origin"]) == ("gate", True)
    file, _, line = record["source"].rpartition(":")
    assert "torch.exp(self.weight * x)" in Path(file).read_text().splitlines()[int(line) - 1]
    assert int(found["statistics"]["posinf"]) > 0

    second = found["comparison"]
    assert second["verdict"] == "different"
    origin = second["origin"]
    assert (origin["kind"], origin["op_name"], origin["step"]) == ("structure", "norm/native_layer_norm_0", 0)
    assert any(text.startswith("eps: 0.01 here, 1e-05 ") for text in origin["evidence"])
    assert origin["explains"] > 10
    file, _, line = origin["source"].rpartition(":")
    assert "self.norm(" in Path(file).read_text().splitlines()[int(line) - 1]

    dump = ascend_dump.open(found["dump"])
    assert {one.step for one in dump} == {0, 1, 2}
    show = subprocess.run(
        found["command"],
        shell=True,  # the demo prints a line for the user's shell
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    assert "gate/exp_0.output.0" in show.stdout
    assert "inf" in show.stdout


def test_where_nothing_can_be_written(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["demo", "/dev/null/demo"]) == Exit.USAGE
    assert "error: /dev/null/demo: the demo cannot be written there: Not a directory" in capsys.readouterr().err


@pytest.mark.parametrize("kind", ["file", "directory", "link", "dangling link"])
def test_what_it_did_not_write_it_leaves(kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    script, other = tmp_path / "train.py", tmp_path / "mine.py"
    if kind == "file":
        script.write_text("print('mine')")
    elif kind == "directory":
        script.mkdir()
    else:
        script.symlink_to(other)
    if kind == "link":
        other.write_text("print('mine')")
    before = {path: path.is_file() and path.read_text() for path in tmp_path.iterdir()}
    assert main(["demo", str(tmp_path)]) == Exit.USAGE
    assert f"{script} exists and was not written by this demo" in capsys.readouterr().err
    assert {path: path.is_file() and path.read_text() for path in tmp_path.iterdir()} == before
