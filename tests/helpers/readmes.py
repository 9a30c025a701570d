"""Run the commands of a README."""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from tempfile import mkdtemp
from typing import Callable, NamedTuple, Optional

import pytest
from places import REPOSITORY
from preloaded import write_python


class Walked(NamedTuple):
    """place: a copy of the example, after the commands ran there; printed: their standard output."""

    place: Path
    printed: str


def walk_through(
    example: str, where: Path, change: Callable[[str], str] = str, imported: Optional[str] = None
) -> Walked:
    """Run every ```bash block of an example's README, in order, in a copy; the first failure ends it.

    change: what to do to the text of the README before.
    imported: a module that `python` has imported already, see `preloaded`; else it is one as a reader has it.
    """
    source = REPOSITORY / "examples" / example
    place = where / example
    blocks = re.findall(r"^```bash\n(.*?)^```", change((source / "README.md").read_text()), re.DOTALL | re.MULTILINE)
    assert blocks, f"the README of {example} has no commands"
    # What a command writes may be in the tree for readers, and a command overwrites nothing.
    written = re.findall(r" -o (\S+\.json)", "\n".join(blocks))
    shutil.copytree(source, place, ignore=shutil.ignore_patterns("__pycache__", *written))
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", "\n".join(blocks)],
        cwd=place,
        env=environment(where / "bin", imported),
        capture_output=True,
        text=True,
        timeout=900,
        stdin=subprocess.DEVNULL,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return Walked(place, done.stdout)


def walk_once(
    example: str,
    factory: pytest.TempPathFactory,
    change: Callable[[str], str] = str,
    imported: Optional[str] = None,
) -> Walked:
    """`walk_through`, once for all test processes side by side: whoever comes first walks, the others wait for it."""
    base = factory.getbasetemp()
    place = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / f"{example}-{change.__name__}"
    place.mkdir(exist_ok=True)
    with open(place / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        printed = place / "printed"
        if not printed.exists():
            printed.write_text(walk_through(example, Path(mkdtemp(dir=place)), change, imported).printed)
        (walked,) = place.glob(f"*/{example}")
    return Walked(walked, printed.read_text())


#: Its programs are run by the `python` of the environment.
_DEMO = "import shutil, sys; sys.executable = shutil.which('python'); from ascend_dump.cli import main; main(['demo'])"


def environment(commands: Path, imported: Optional[str]) -> dict[str, str]:
    """One in which `python` and `ascend-dump` are those of this interpreter and this tree.

    `make demo` does what it does once its environment is there.
    """
    commands.mkdir()
    python = f'exec "{sys.executable}"'
    lines = {
        "python": f'{python} "$@"',
        "ascend-dump": f'{python} -m ascend_dump "$@"',
        "torchrun": f'{python} -m torch.distributed.run "$@"',
        "make": f'test "$*" = demo && {python} -c "{_DEMO}"',
    }
    for name, line in lines.items():
        file = commands / name
        file.write_text(f"#!/bin/sh\n{line}\n")
        file.chmod(0o755)
    if imported is not None:
        write_python(commands / "python", imported)
    environment = {name: value for name, value in os.environ.items() if not name.startswith("ASCEND_")}
    paths = [str(REPOSITORY), str(REPOSITORY / "adapters"), os.environ.get("PYTHONPATH", "")]
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, paths))
    environment["PATH"] = f"{commands}{os.pathsep}{os.environ['PATH']}"
    environment["PYTHON_EXEC"] = str(commands / "python")  # with which torch.distributed.run starts its ranks
    return environment
