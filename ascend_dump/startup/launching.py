"""Start a user's command such that the dump is switched on in all its Python processes."""

from __future__ import annotations

import os
import shlex
import shutil
from pathlib import Path

from ascend_dump.errors import ConfigError
from ascend_dump.request import DumpRequest
from ascend_dump.startup.activation import VARIABLE

__all__ = ["SITE", "cannot_start", "environment_of", "find_program"]

#: A directory for PYTHONPATH. Its sitecustomize starts the dump in every interpreter that reads PYTHONPATH.
SITE = Path(__file__).parent / "site"


def find_program(name: str) -> str:
    """Return the path of the program with this name. Raises ConfigError AD104 with the likely reason if none exists."""
    program = shutil.which(name)
    if program is not None:
        return program
    path = Path(name)
    if path.is_dir():
        reason, hint = "it is a directory", "give the program inside it"
    elif path.is_file() and path.suffix == ".py":
        reason, hint = "it is a Python file", f"write `ascend-dump run ... -- python {shlex.quote(name)} ...`"
    elif path.is_file():
        is_executable = os.access(path, os.X_OK)
        reason = "it is in this directory, which is not in PATH" if is_executable else "it is not executable"
        hint = (
            f"write ./{name}" if is_executable else f"chmod +x {shlex.quote(name)}, or name its interpreter before it"
        )
    elif name.startswith("-"):
        reason, hint = "it looks like an option", "write options of ascend-dump before `--`, and the command after it"
    else:
        reason, hint = "no such program on PATH", "check the spelling, or give the full path"
    raise ConfigError(f"cannot run {name!r}: {reason}", hint=hint, code="AD104")


def cannot_start(name: str, error: OSError) -> ConfigError:
    """Return the error for a program that exists but cannot be started."""
    return ConfigError(
        f"cannot run {name!r}: {error.strerror}",
        hint="a script needs a `#!` line, or its interpreter before it",
        code="AD104",
    )


def environment_of(request: DumpRequest) -> dict[str, str]:
    """Return the environment variables to set for the command."""
    old = os.environ.get("PYTHONPATH")
    # Only our own entry is removed. An empty entry is kept, because it means the current directory.
    entries = [entry for entry in old.split(os.pathsep) if entry != str(SITE)] if old else []
    return {VARIABLE: request.to_text(), "PYTHONPATH": os.pathsep.join([str(SITE), *entries])}
