"""Start the programs of this suite in processes of their own: MindSpore reads a dump configuration once in each."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

PROGRAMS = Path(__file__).parent / "programs"
_OURS = ("ASCEND_DUMP", "MINDSPORE_DUMP", "MS_", "RANK", "DEVICE_ID")


def environment(**values: Any) -> dict[str, str]:
    """This process's variables, without any of a launcher, of MindSpore or of ours, and `values`."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(_OURS)}
    # MindSpore's warnings, which say what it ignores; one thread, because the networks are tiny.
    kept.update(GLOG_v="2", OMP_NUM_THREADS="1")
    # msrun starts its workers with the `python` that it finds.
    kept["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{kept.get('PATH', os.defpath)}"
    return {**kept, **{name: str(value) for name, value in values.items()}}


def run_command(
    *command: Any, cwd: Path, text: str = "", fails: bool = False, **values: Any
) -> subprocess.CompletedProcess[str]:
    """Run to the end, in the time a slow machine needs; a failure shows what it printed."""
    done = subprocess.run(
        [str(part) for part in command],
        env=environment(**values),
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=900,
        input=text,
    )
    assert bool(done.returncode) == fails, f"{command}:\n{done.stdout[-4000:]}\n{done.stderr[-4000:]}"
    return done


def run_program(name: str, *arguments: Any, cwd: Path, **values: Any) -> tuple[dict[str, Any], str]:
    """Run one function of `programs/scenarios.py`; gives what it returned, and stderr."""
    done = run_command(sys.executable, PROGRAMS / "scenarios.py", name, *arguments, cwd=cwd, **values)
    return json.loads(done.stdout.splitlines()[-1]), done.stderr
