"""README: its commands are run, and print what it says."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from consoles import printed_as, sections, type_into
from places import REPOSITORY
from preloaded import COMPILER
from readmes import environment

pytest.importorskip("torch")

pytestmark = pytest.mark.thorough

SECTIONS = sections((REPOSITORY / "README.md").read_text())
TASKS = [
    "My loss is NaN",
    "My loss differs from the GPU",
    "Two ranks differ",
    "Dump one operator on an NPU",
    "Test my code without an NPU",
    "My rollout and my trainer differ",
]


def test_each_task_has_commands() -> None:
    assert list(SECTIONS) == ["Five minutes", *TASKS]


@pytest.mark.parametrize("title", list(SECTIONS))
def test_commands_print_what_is_said(title: str, tmp_path: Path) -> None:
    commands = SECTIONS[title]
    # The first rank finds the others by the process that started them all: here they are started as a user does it.
    imported = None if title == "Two ranks differ" else COMPILER
    shutil.copytree(REPOSITORY / "examples", tmp_path / "examples", ignore=shutil.ignore_patterns("__pycache__"))
    for said, real in zip(commands, type_into(tmp_path, commands, environment(tmp_path / "bin", imported))):
        assert printed_as(said.printed, real.printed), f"$ {said.command}\n{real.printed}"
