"""Directories and files of a dump are private to their owner, as CANN makes them."""

from __future__ import annotations

import contextlib
import os
import time
from pathlib import Path

from ascend_dump._errors import WriteError

__all__ = [
    "MANIFEST",
    "PRIVATE_DIRECTORY",
    "PRIVATE_FILE",
    "add_private_directory",
    "holds_files",
    "make_private_directory",
    "make_run_directory",
    "open_private",
]

PRIVATE_DIRECTORY = 0o700
PRIVATE_FILE = 0o600
#: In the directory of a run: what was asked for, and whether the run came to its end.
MANIFEST = "manifest.json"


def make_private_directory(path: Path) -> None:
    """Create `path` and its missing parents readable by their owner only.

    Raises WriteError when that fails or the directory cannot be written.
    """
    missing = []
    here = path
    try:
        while not here.is_symlink() and not here.exists() and here != here.parent:
            missing.append(here)
            here = here.parent
        for directory in reversed(missing):
            try:
                add_private_directory(directory)
            except FileExistsError:  # another rank was first
                if not directory.is_dir():
                    raise
    except OSError as error:
        raise WriteError(
            f"path={str(path)!r} cannot be created: {error.strerror}",
            hint="give path= a directory that this user may write",
        ) from error
    if not path.is_dir():
        raise WriteError(f"path={str(path)!r} is not a directory", hint="give path= a directory")
    if not os.access(path, os.W_OK | os.X_OK):
        raise WriteError(
            f"path={str(path)!r} cannot be written", hint="give path= a directory that this user may write"
        )


def make_run_directory(parent: Path) -> Path:
    """Create and return a directory in `parent` that no other run shares.

    Its name is CANN's `YYYYmmddHHMMSS`; a run that starts in a second that is taken gets the
    next free one. Raises WriteError when it cannot be made.
    """
    make_private_directory(parent)
    second = time.time()
    while True:
        found = parent / time.strftime("%Y%m%d%H%M%S", time.localtime(second))
        try:
            add_private_directory(found)
            return found
        except FileExistsError:
            second += 1
        except OSError as error:
            raise WriteError(
                f"{found} cannot be created: {error.strerror}",
                hint="give path= a directory that this user may write",
            ) from error


def add_private_directory(path: Path) -> None:
    """Create one directory (0700, whatever the umask). Raises OSError, FileExistsError when it is there."""
    os.mkdir(path, PRIVATE_DIRECTORY)
    if path.stat().st_mode & 0o777 != PRIVATE_DIRECTORY:
        # Some file systems have no modes to change.
        with contextlib.suppress(OSError):
            path.chmod(PRIVATE_DIRECTORY)


def open_private(path: Path, flags: int) -> int:
    """A file descriptor of a new or own file (0600, whatever the umask). Raises OSError."""
    fd = os.open(path, flags | os.O_CREAT | os.O_CLOEXEC, PRIVATE_FILE)
    # As above.
    with contextlib.suppress(OSError):
        if os.fstat(fd).st_mode & 0o777 != PRIVATE_FILE:
            os.fchmod(fd, PRIVATE_FILE)
    return fd


def holds_files(root: Path) -> bool:
    """Whether a dump was written: any file but the manifest."""
    return any(name != MANIFEST for _, _, names in os.walk(root) for name in names)
