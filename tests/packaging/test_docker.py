"""The Dockerfiles, without an engine: what can be told from their text and from the tree."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import NamedTuple

import pytest
from places import REPOSITORY

DOCKER = REPOSITORY / "docker"
FILES = sorted(DOCKER.glob("*/Dockerfile"))
KEYWORDS = {"ARG", "FROM", "ENV", "RUN", "COPY", "WORKDIR", "USER", "ENTRYPOINT", "CMD"}


class Instruction(NamedTuple):
    keyword: str
    text: str


def instructions(file: Path) -> list[Instruction]:
    lines = [line for line in file.read_text().splitlines() if not line.lstrip().startswith("#")]
    joined = re.sub(r"\\\n\s*", "", "\n".join(lines))
    return [Instruction(*line.split(None, 1)) for line in joined.splitlines() if line.strip()]


@pytest.fixture(params=FILES, ids=lambda file: file.parent.name)
def file(request: pytest.FixtureRequest) -> Path:
    found: Path = request.param
    return found


def of(file: Path, keyword: str) -> list[str]:
    return [one.text for one in instructions(file) if one.keyword == keyword]


def test_the_images_are_there() -> None:
    assert {file.parent.name for file in FILES} >= {"ascend", "cpu", "mindspore", "tensorflow", "torchair"}


def test_only_known_instructions_begin_with_the_base(file: Path) -> None:
    keywords = [one.keyword for one in instructions(file)]
    assert set(keywords) <= KEYWORDS
    assert set(keywords[: keywords.index("FROM")]) == {"ARG"}
    assert keywords.count("FROM") == 1
    assert keywords[-1] == "CMD"


def test_every_variable_is_declared(file: Path) -> None:
    known = {"PATH"}
    for keyword, text in instructions(file):
        used = set(re.findall(r"\$\{?([A-Z_]+)", text))
        if keyword == "ENV":
            known |= set(re.findall(r"(?:^|\s)([A-Z_]+)=", text))
        assert used <= known, f"{keyword} {text}"
        if keyword == "ARG":
            known.add(text.partition("=")[0])


def test_the_base_is_pinned_or_chosen_by_the_user(file: Path) -> None:
    [base] = of(file, "FROM")
    assert ":" in base or re.fullmatch(r"\$\{[A-Z]+\}", base)
    assert "latest" not in base


def test_what_is_copied_reaches_the_build(file: Path) -> None:
    kept = {line[1:] for line in file.with_name("Dockerfile.dockerignore").read_text().splitlines() if line[:1] == "!"}
    assert [name for name in kept if not (REPOSITORY / name).exists()] == []
    assert {"pyproject.toml", "README.md", "LICENSE", "ascend_dump", "adapters"} <= kept
    for text in of(file, "COPY"):
        *sources, _ = [word for word in shlex.split(text) if not word.startswith("--")]
        for source in sources:
            assert (REPOSITORY / source).exists(), source
            assert source == "." or source.partition("/")[0] in kept, source


def test_commands_are_lists_so_that_signals_arrive(file: Path) -> None:
    for keyword in ("CMD", "ENTRYPOINT"):
        for text in of(file, keyword):
            assert text.startswith('["'), text


def test_scripts_of_the_images_become_the_command(file: Path) -> None:
    for script in file.parent.glob("*.sh"):
        lines = script.read_text().splitlines()
        assert lines[0] == "#!/bin/bash"
        assert lines[-1] == 'exec "$@"'


def test_the_readme_names_every_build_argument() -> None:
    text = (DOCKER / "README.md").read_text()
    for file in FILES:
        assert f"docker build -f docker/{file.parent.name}/Dockerfile" in text
        for argument in of(file, "ARG"):
            assert f"`{argument.partition('=')[0]}`" in text
