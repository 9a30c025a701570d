"""The example of offline models: every command of its README, in order, on the simulated device."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from places import REPOSITORY

EXAMPLE = REPOSITORY / "examples" / "03_acl_offline"


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """The directory in which the commands ran, and what they printed."""
    place = tmp_path_factory.mktemp("example") / EXAMPLE.name
    shutil.copytree(EXAMPLE, place, ignore=shutil.ignore_patterns("__pycache__", "acl.json"))
    commands = place.parent / "bin"
    commands.mkdir()
    for name, module in (("ascend-dump", "-m ascend_dump"), ("python", "")):
        file = commands / name
        file.write_text(f'#!/bin/sh\nexec "{sys.executable}" {module} "$@"\n')
        file.chmod(0o755)
    blocks = re.findall(r"^```bash\n(.*?)^```", (EXAMPLE / "README.md").read_text(), re.DOTALL | re.MULTILINE)
    environment = {name: value for name, value in os.environ.items() if not name.startswith("ASCEND_")}
    paths = [str(REPOSITORY), str(REPOSITORY / "adapters"), os.environ.get("PYTHONPATH", "")]
    environment.update(
        PATH=f"{commands}{os.pathsep}{os.environ['PATH']}", PYTHONPATH=os.pathsep.join(filter(None, paths))
    )
    run = subprocess.run(
        ["bash", "-euc", "\n".join(blocks)], cwd=place, env=environment, capture_output=True, text=True, timeout=300
    )
    assert run.returncode == 0, run.stdout + run.stderr
    return place, run.stdout


def test_every_part_leaves_what_the_readme_says(done: tuple[Path, str]) -> None:
    place, printed = done
    assert len(list(place.glob("arrays/**/*.npy"))) == 14
    assert printed.count("6 operators · 14 records") == 2
    assert "1. Mul square  (first)" in printed
    row = printed.strip().splitlines()[-1].split()
    assert row[1:4] == ["dense2", "square", "0"]
    assert row[-2:] == ["after", "square"]


def test_the_configuration_in_the_tree_is_the_one_the_command_writes(done: tuple[Path, str]) -> None:
    place, _ = done
    written, kept = (json.loads((folder / "acl.json").read_text()) for folder in (place, EXAMPLE))
    assert written["dump"].pop("dump_path") == str(place / kept["dump"].pop("dump_path"))
    assert written == kept
