"""Write result files to paths that the user gives: check their suffixes, and report errors of writing."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from ascend_dump.common.paths import PRIVATE_FILE
from ascend_dump.errors import ConfigError, WriteError

__all__ = ["check_suffix", "save_bytes", "writing"]


def check_suffix(target: Path, suffixes: Sequence[str], what: str) -> None:
    """Raise ConfigError if the target has none of the suffixes. what: a noun for the message."""
    if target.suffix.lower() not in suffixes:
        *first, last = suffixes
        raise ConfigError(
            f"{target.name!r}: the name of {what} must end in {', '.join(first)} or {last}",
            hint=f"name it {target.stem or 'result'}{suffixes[0]}",
        )


def save_bytes(target: Path, content: bytes, what: str) -> None:
    """Write a file. A new file is readable by its owner only. what: a noun for the message. Raises WriteError."""
    with writing(target, what):
        descriptor = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, PRIVATE_FILE)
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)


@contextmanager
def writing(target: Path, what: str) -> Iterator[None]:
    """Convert an OSError or ValueError inside the with block to a WriteError. what: a noun for the message."""
    try:
        yield
    except (OSError, ValueError) as error:  # ValueError: a null character in the name
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise WriteError(
            f"{target}: {what} cannot be written: {reason}",
            hint="give a file name in a directory that this user may write, on a disk with room",
        ) from error
