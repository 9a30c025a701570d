"""Separate interpreters, for tests of what happens before the first line of a program."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import venv
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from places import DATA, REPOSITORY

STARTUP = REPOSITORY / "ascend_dump" / "startup"
THIRD_PARTY = DATA / "third_party_adapter"
HOOK_FILES = ("ascend_dump_startup.pth", "ascend_dump_startup.start", "_ascend_dump_startup.py")


class Interpreter(NamedTuple):
    """A Python with separate site-packages, for tests of what happens before the first line of a program."""

    python: Path
    site: Path

    def run(self, *args: str, **environment: Any) -> subprocess.CompletedProcess[str]:
        """Run it without this process's variables for ascend_dump and Python; those given are set, unless None."""
        clean = {
            name: value for name, value in os.environ.items() if not name.startswith(("ASCEND_DUMP", "PYTHON", "COV"))
        }
        clean.update({name: str(value) for name, value in environment.items() if value is not None})
        return subprocess.run(
            [str(self.python), *args],
            env=clean,
            cwd=self.site,  # not where the package could be imported from by chance
            capture_output=True,
            text=True,
            timeout=900,
            stdin=subprocess.DEVNULL,
        )

    def add_paths(self, name: str, *paths: Path) -> None:
        (self.site / name).write_text("".join(f"{path}\n" for path in paths))


def make_interpreter(where: Path) -> Interpreter:
    """A fresh interpreter whose site-packages is empty."""
    venv.EnvBuilder(with_pip=False, symlinks=True).create(where)
    names = {"base": str(where), "platbase": str(where)}
    return Interpreter(where / "bin" / "python", Path(sysconfig.get_path("purelib", "posix_prefix", vars=names)))


def planned_installation(where: Path, without: Sequence[str]) -> dict[str, str]:
    """What pip would install or move, by name, to install ascend_dump beside all that is installed here.

    without: distributions that are to be missing there. Asks the package index.
    """
    made = make_interpreter(where / "planned")
    link_dependencies(made.site)
    for name in without:
        for item in made.site.glob(f"{name.replace('-', '_')}*"):
            item.unlink()
    command = [sys.executable, "-m", "pip", "--python", str(made.python), "install", "--dry-run", "--quiet"]
    done = subprocess.run(
        [*command, "--no-build-isolation", "--report", "-", str(REPOSITORY)],
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found = [item["metadata"] for item in json.loads(done.stdout)["install"]]
    return {one["name"].lower().replace("_", "-"): one["version"] for one in found}


def lay_out(project: Path, site: Path) -> Path:
    """The modules and the metadata of a small project, as pip would lay them into `site`."""
    for module in project.glob("*.py"):
        shutil.copy(module, site)
    text = (project / "pyproject.toml").read_text()
    name, version = re.findall(r'^(?:name|version) = "(.*)"$', text, re.MULTILINE)
    [(group, entry, target)] = re.findall(r'^\[project\.entry-points\."(.*)"\]\n(\w+) = "(.*)"$', text, re.MULTILINE)
    register(site, f"{name.replace('-', '_')}-{version}", group, entry, target)
    return site


def register(site: Path, distribution: str, group: str, entry: str, target: str) -> None:
    """What pip writes for a distribution with one entry point."""
    info = site / f"{distribution}.dist-info"
    info.mkdir()
    name, _, version = distribution.rpartition("-")
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name.replace('_', '-')}\nVersion: {version}\n")
    (info / "entry_points.txt").write_text(f"[{group}]\n{entry} = {target}\n")


def link_dependencies(where: Path) -> Path:
    """All that is installed here except ascend_dump itself, whose own files are under test."""
    for entry in reversed(sys.path):
        if entry.endswith(("site-packages", "dist-packages")) and os.path.isdir(entry):
            for item in Path(entry).iterdir():
                if "ascend_dump" not in item.name and item.suffix != ".pth":
                    link = where / item.name
                    link.unlink(missing_ok=True)
                    link.symlink_to(item)
    return where
