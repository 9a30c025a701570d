"""Differences around two programs come before all others: versions, variables, settings, commits."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any, Callable

import pytest

import ascend_dump
from ascend_dump.cli import main
from ascend_dump.writing.surroundings import loaded_versions, surroundings

torch = pytest.importorskip("torch")

Change = Callable[[dict[str, Any]], None]


@pytest.fixture(autouse=True)
def no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in surroundings():
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def sides(tmp_path: Path) -> Callable[[Change], tuple[Path, Path]]:
    """Two equal dumps; the manifest of the first is changed."""

    def make(change: Change) -> tuple[Path, Path]:
        paths = (tmp_path / "actual", tmp_path / "reference")
        for path in paths:
            torch.manual_seed(0)
            with ascend_dump.capture(path=path, quiet=True):
                torch.ones(3).add(1)
        manifest = next(paths[0].rglob("manifest.json"))
        document = json.loads(manifest.read_text())
        change(document)
        manifest.write_text(json.dumps(document))
        return paths

    return make


def test_settings_of_the_framework_are_recorded(tmp_path: Path) -> None:
    for name, precision in (("actual", "high"), ("reference", "highest")):
        torch.manual_seed(0)
        torch.set_float32_matmul_precision(precision)
        try:
            with ascend_dump.capture(path=tmp_path / name, quiet=True):
                torch.ones(3).add(1)
        finally:
            torch.set_float32_matmul_precision("highest")
    found = around((tmp_path / "actual", tmp_path / "reference"))
    assert ("torch.get_float32_matmul_precision()", "high", "highest") in found


def around(paths: tuple[Path, Path]) -> list[tuple[str, Any, Any]]:
    return [tuple(one) for one in ascend_dump.compare(*paths).around]


def test_a_variable_and_a_version_are_told(
    sides: Callable[[Change], tuple[Path, Path]], capsys: pytest.CaptureFixture[str]
) -> None:
    def change(manifest: dict[str, Any]) -> None:
        manifest["versions"]["numpy"] = "1.0"
        manifest["surroundings"]["HCCL_DETERMINISTIC"] = "true"

    paths = sides(change)
    [version, variable] = around(paths)
    assert version[:2] == ("numpy", "1.0")
    assert variable == ("HCCL_DETERMINISTIC", "true", None)
    main(["compare", *map(str, paths)])
    assert "HCCL_DETERMINISTIC true here, not set in the reference" in " ".join(capsys.readouterr().out.split())
    main(["compare", *map(str, paths), "--json"])
    document = json.loads(capsys.readouterr().out)
    assert {"name": "HCCL_DETERMINISTIC", "actual": "true", "reference": None} in document["around"]


def test_equal_programs_have_no_such_line(
    sides: Callable[[Change], tuple[Path, Path]], capsys: pytest.CaptureFixture[str]
) -> None:
    paths = sides(lambda manifest: None)
    assert around(paths) == []
    main(["compare", *map(str, paths)])
    assert "around the programs" not in capsys.readouterr().out


@pytest.mark.parametrize(
    "value", [None, [], 3, {"HCCL_ALGO": 3, "X_Y": ["a"]}, {"a" * 5000: "b" * 5000}, {str(i): "x" for i in range(9999)}]
)
def test_a_damaged_manifest_tells_nothing_wrong(sides: Callable[[Change], tuple[Path, Path]], value: Any) -> None:
    paths = sides(lambda manifest: manifest.update(surroundings=value))
    assert ascend_dump.compare(*paths).verdict == "equal"
    assert around(paths) == []


def test_a_setting_that_one_framework_has_is_no_difference(sides: Callable[[Change], tuple[Path, Path]]) -> None:
    paths = sides(lambda manifest: manifest["surroundings"].update({"tf.get_threads()": "1", "CANN": "8.5"}))
    assert around(paths) == []


def test_only_listed_variables_are_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "7")
    monkeypatch.setenv("HF_TOKEN", "secret")
    monkeypatch.setenv("TORCH_SECRET", "secret")
    found = surroundings()
    assert found["OMP_NUM_THREADS"] == "7"
    assert "secret" not in found.values()
    assert all(isinstance(text, str) for text in loaded_versions().values())


def run_git(directory: Path, *words: str) -> str:
    identity = ("-c", "user.name=a", "-c", "user.email=a@b")
    done = subprocess.run(["git", *identity, *words], cwd=directory, check=True, capture_output=True, text=True)
    return done.stdout.strip()


@pytest.mark.parametrize("state", ["branch", "packed", "detached", "further", "none", "damaged"])
def test_the_commit_of_the_program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, state: str) -> None:
    program = tmp_path / "work" / "train.py"
    program.parent.mkdir()
    program.write_text("")
    if state != "none":
        run_git(program.parent, "init", "-q")
        run_git(program.parent, "add", "train.py")
        run_git(program.parent, "commit", "-q", "-m", "one")
    if state == "packed":
        run_git(program.parent, "pack-refs", "--all")
    elif state == "detached":
        run_git(program.parent, "checkout", "-q", "--detach")
    elif state == "further":
        run_git(program.parent, "worktree", "add", "-q", "-b", "other", str(tmp_path / "further"))
        program = tmp_path / "further" / "train.py"
    elif state == "damaged":
        (program.parent / ".git" / "HEAD").write_bytes(b"\xff ref: ../../../../etc/passwd")
    monkeypatch.setattr(sys, "argv", [str(program)])
    expected = None if state in ("none", "damaged") else run_git(program.parent, "rev-parse", "HEAD")
    assert surroundings().get("git commit") == expected
