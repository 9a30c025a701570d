"""Files for users' own repositories and channels: a workflow, a hook of pre-commit, a recipe of conda."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from places import REPOSITORY

import ascend_dump
from ascend_dump.cli import main

EXAMPLE = REPOSITORY / "examples" / "15_in_your_repository"
RECIPE = (REPOSITORY / "docker" / "conda" / "meta.yaml").read_text()
#: conda-forge's names of packages that have another one on the package index.
CONDA_NAMES = {"ml-dtypes": "ml_dtypes", "xxhash": "python-xxhash"}


def commands() -> list[str]:
    text = (EXAMPLE / "numerics.yml").read_text()
    return [
        line.partition("ascend-dump ")[2] for line in text.splitlines() if re.match(r" *(run: )?ascend-dump ", line)
    ]


@pytest.mark.parametrize("line", commands())
def test_each_command_of_the_workflow_can_be_typed(line: str, capsys: pytest.CaptureFixture[str]) -> None:
    verb, *words = shlex.split(line)
    words = words[: words.index("--")] if "--" in words else words
    assert main([verb, "--help", *words]) == 0
    assert main([verb, "--help", "--no-such-option", *words]) == 2


def test_the_workflow_dumps_what_it_compares() -> None:
    paths = [words[words.index("--path") + 1] for words in map(shlex.split, commands()) if "--path" in words]
    compared = next(words for words in map(shlex.split, commands()) if words[0] == "compare")
    # The first one is written from the directory of the base branch.
    assert [Path(path).name for path in paths] == compared[2:0:-1] == ["reference", "dumps"]


@pytest.mark.parametrize(("setting", "expected"), [("path", 0), ("paht", 1)])
def test_the_hook_refuses_settings_without_effect(setting: str, expected: int, tmp_path: Path) -> None:
    config = (EXAMPLE / "pre-commit-config.yaml").read_text()
    (entry,) = re.findall(r"entry: (.*)", config)
    (pattern,) = re.findall(r"files: (.*)", config)
    assert re.search(pattern, "deploy/data_dump.json")
    assert not re.search(pattern, "package.json")
    program = tmp_path / "ascend-dump"
    program.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -m ascend_dump "$@"\n')
    program.chmod(0o700)
    (tmp_path / "dump.json").write_text(f'{{"steps": "0|1", "{setting}": "dumps"}}')
    done = subprocess.run(
        [*shlex.split(entry), "dump.json", "dump.json"],
        cwd=tmp_path,
        env={"PATH": f"{tmp_path}:/usr/bin:/bin", "PYTHONPATH": f"{REPOSITORY}:{REPOSITORY / 'adapters'}"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == expected, done.stdout + done.stderr


def test_the_recipe_of_conda_has_the_version_and_the_requirements() -> None:
    tomllib: Any = pytest.importorskip("tomllib" if sys.version_info >= (3, 11) else "tomli")
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
    assert f'{{% set version = "{ascend_dump.__version__}" %}}' in RECIPE
    expected = {f"python {project['requires-python']}"}
    for text in project["dependencies"]:
        name, bounds = re.fullmatch(r"([\w-]+)([^;]*).*", text).groups()  # type: ignore[union-attr]  # it matches
        if "python_version >=" not in text:  # noarch packages have one line for all versions of Python
            expected.add(f"{CONDA_NAMES.get(name, name)} {bounds.split(',')[0]}")
    assert (
        set(re.findall(r"^ {4}- (.*)$", RECIPE.partition("  run:\n")[2].partition("\ntest:")[0], re.MULTILINE))
        == expected
    )
    assert f"ascend-dump = {project['scripts']['ascend-dump']}" in RECIPE
    assert f"summary: {project['description']}" in RECIPE
