"""Recipes for programs that are not run here name their public source, and what they say can be parsed."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
import textwrap
from pathlib import Path

import pytest

import ascend_dump
from ascend_dump.adapter import DumpRequest

PAGES = sorted((Path(ascend_dump.__file__).parent / "pages" / "topics").glob("recipe-*.md"))
NOT_RUN = [page for page in PAGES if re.search(r"\bnot run\b", page.read_text(encoding="utf-8"), re.IGNORECASE)]
SETTINGS = re.compile(r"ASCEND_DUMP=[\"']?([^\"'\s]*=[^\"'\s]*)|value: \"(steps=[^\"]+)\"")


def blocks(page: Path) -> list[str]:
    """The indented blocks of a page."""
    found = re.findall(r"^(?:    .*\n|\n(?=    ))+", page.read_text(encoding="utf-8"), re.MULTILINE)
    return [textwrap.dedent(block).strip("\n") for block in found]


def is_shell(block: str) -> bool:
    words = ("ascend-dump", "ASCEND_DUMP", "export", "srun", "kubectl", "NPROC_PER_NODE", "#!", "torchrun", "swift")
    return block.startswith(words)


def test_there_are_recipes_that_are_not_run() -> None:
    assert {"recipe-llamafactory", "recipe-swift", "recipe-kubernetes"} <= {page.stem for page in NOT_RUN}


@pytest.mark.parametrize("page", NOT_RUN, ids=lambda page: page.stem)
def test_the_public_source_is_named(page: Path) -> None:
    head = page.read_text(encoding="utf-8").split("\n## ")[0]
    assert re.search(r"https://[\w.-]+/[\w./-]+", head)


@pytest.mark.parametrize("page", NOT_RUN, ids=lambda page: page.stem)
def test_shell_commands_parse(page: Path) -> None:
    shell = shutil.which("sh")
    assert shell is not None
    commands = [block for block in blocks(page) if is_shell(block)]
    assert commands
    for block in commands:
        done = subprocess.run([shell, "-n"], input=block, text=True, capture_output=True)
        assert done.returncode == 0, done.stderr
        shlex.split(block.replace("\\\n", " "))


@pytest.mark.parametrize("page", NOT_RUN, ids=lambda page: page.stem)
def test_settings_in_the_environment_are_those_of_a_request(page: Path) -> None:
    for match in SETTINGS.finditer(page.read_text(encoding="utf-8")):
        text = next(filter(None, match.groups()))
        assert DumpRequest.from_text(text.replace("$SLURM_SUBMIT_DIR", "/shared")).path
