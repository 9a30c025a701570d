"""Files that a user names for results: what they may be called, and how it is told that one cannot be written."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from ascend_dump._errors import ConfigError, WriteError

__all__ = ["check_suffix", "save_bytes", "writing"]


def check_suffix(target: Path, suffixes: Sequence[str], what: str) -> None:
    """Raise ConfigError for a name that does not end as one of the formats does."""
    suffix = target.suffix.lower()
    if suffix not in suffixes:
        *others, last = suffixes
        raise ConfigError(
            f"{target.name!r}: {what} is not saved as {suffix or 'a file without suffix'}",
            hint=f"expected {', '.join(others)} or {last}",
        )


def save_bytes(target: Path, content: bytes, what: str) -> None:
    """Write a file. Raises WriteError."""
    with writing(target, what):
        target.write_bytes(content)


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
