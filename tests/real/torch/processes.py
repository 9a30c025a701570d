"""Start the programs of this suite in processes of their own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
PROGRAMS = HERE / "programs"
#: The launcher road of a shell: `ascend-dump run [options] --`.
ASCEND_DUMP_RUN = (sys.executable, "-m", "ascend_dump", "run")


def environment(**values: Any) -> dict[str, str]:
    """This process's variables, without any of a launcher or of ours, and `values`."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("ASCEND_DUMP", "TORCHELASTIC"))}
    return {**kept, **{name: str(value) for name, value in values.items()}}


def run_command(*command: Any, **values: Any) -> subprocess.CompletedProcess[str]:
    """Run to the end, in the time a slow machine needs; a failure shows what it printed."""
    done = subprocess.run(
        [str(part) for part in command],
        env=environment(**values),
        cwd=HERE,
        capture_output=True,
        text=True,
        timeout=900,
        stdin=subprocess.DEVNULL,
    )
    assert done.returncode == 0, f"{command}:\n{done.stdout}\n{done.stderr}"
    return done


def run_python(*arguments: Any, **values: Any) -> subprocess.CompletedProcess[str]:
    return run_command(sys.executable, *arguments, **values)
