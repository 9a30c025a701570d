"""Files that a user names for results: what they may be called, and how it is told that one cannot be written."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from ascend_dump.common.paths import PRIVATE_FILE
from ascend_dump.errors import ConfigError, WriteError

__all__ = ["check_suffix", "save_bytes", "writing"]


def check_suffix(target: Path, suffixes: Sequence[str], what: str) -> None:
    """Raise ConfigError for a name that does not end as one of the formats does."""
    if target.suffix.lower() not in suffixes:
        *others, last = suffixes
        raise ConfigError(
            f"{target.name!r}: the name of {what} must end in {', '.join(others)} or {last}",
            hint=f"name it {target.stem or 'result'}{suffixes[0]}",
        )


def save_bytes(target: Path, content: bytes, what: str) -> None:
    """Write a file, which only its owner can read if it is a new one. Raises WriteError."""
    with writing(target, what):
        descriptor = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, PRIVATE_FILE)
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)


@contextmanager
def writing(target: Path, what: str) -> Iterator[None]:
    """Raise WriteError if the target cannot be written in this context."""
    try:
        yield
    except (OSError, ValueError) as error:  # ValueError: a null character in the name
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise WriteError(
            f"{target}: {what} cannot be written: {reason}",
            hint="give a file name in a directory that this user may write, on a disk with room",
        ) from error
