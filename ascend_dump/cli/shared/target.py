"""Check before the work begins that a file named by an option can be written."""

from __future__ import annotations

import os
from pathlib import Path

from ascend_dump.errors import ConfigError, WriteError

__all__ = ["check_target"]


def check_target(option: str, path: str, suffix: str = "") -> None:
    """Raise ConfigError if the path cannot be a file, WriteError if this user may not write it.

    option  name of the option, for the message
    suffix  suffix of the file name that the hint suggests
    """
    target = Path(path)
    try:
        is_directory = target.is_dir()
    except OSError as error:  # for example because the name is too long
        raise ConfigError(f"{option} {path[:80]}: {error.strerror}", hint="give another name") from None
    if is_directory:
        raise ConfigError(
            f"{option} {path} is a directory, expected the name of a file",
            hint=f"give a file in it, such as {target / 'result'}{target.suffix or suffix}",
        )
    if not target.parent.is_dir():
        raise ConfigError(
            f"{option} {path}: there is no directory {target.parent}", hint="create it, or give another directory"
        )
    # A page replaces an existing file, which needs a writable directory. Other files are written in place.
    written = target if target.exists() and target.suffix.lower() not in (".html", ".htm") else target.parent
    if not os.access(written, os.W_OK if written is target else os.W_OK | os.X_OK):
        raise WriteError(
            f"{option} {path}: this user may not write {written}", hint="give a file in a directory that you may write"
        )
