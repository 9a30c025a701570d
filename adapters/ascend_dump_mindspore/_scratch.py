"""A temporary directory that is removed at the end of its process, or by a later process if its process was killed."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import stat
import tempfile
from pathlib import Path

__all__ = ["ACCEPTED", "Scratch"]

#: The characters of a path that MindSpore accepts.
ACCEPTED = re.compile(r"[A-Za-z0-9\-_/]+", re.ASCII)
_PREFIX = "ascend_dump_"
#: A file in the directory that is locked as long as the process, or a child forked from it, is alive.
_LOCK_FILE = "in_use"


class Scratch:
    """A new temporary directory with a path that MindSpore accepts. Raises OSError if none can be created.

    A process that is killed, or ends with `os._exit`, cannot remove its directory. The next process that creates such a
    directory removes it.
    """

    def __init__(self) -> None:
        for parent in (tempfile.gettempdir(), "/tmp", "/var/tmp"):
            if ACCEPTED.fullmatch(parent) and os.access(parent, os.W_OK | os.X_OK):
                break
        else:
            raise OSError("no temporary directory has a path that MindSpore accepts (letters, digits, - and _)")
        _sweep(parent)
        self.path = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=parent))
        unlocked = self.path / f"{_LOCK_FILE}-new"
        self._lock_file = os.open(unlocked, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
        # The file is renamed only once it is locked, because another process may look for abandoned directories at any
        # time. If locks are not supported, it is not renamed, and the directory never counts as abandoned.
        if _lock(self._lock_file):
            os.rename(unlocked, self.path / _LOCK_FILE)

    def remove(self) -> None:
        """Remove the directory with its contents. A second call does nothing."""
        shutil.rmtree(self.path, ignore_errors=True)
        if self._lock_file >= 0:
            os.close(self._lock_file)
            self._lock_file = -1


def _sweep(parent: str) -> None:
    """Remove the abandoned directories of this user in `parent`."""
    with contextlib.suppress(OSError), os.scandir(parent) as entries:
        for entry in entries:
            if entry.name.startswith(_PREFIX):
                with contextlib.suppress(OSError):
                    _remove_if_abandoned(entry)


def _remove_if_abandoned(entry: os.DirEntry[str]) -> None:
    status = entry.stat(follow_symlinks=False)
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid():
        return
    lock_file = os.open(os.path.join(entry.path, _LOCK_FILE), os.O_RDWR | os.O_NOFOLLOW)
    try:
        if _lock(lock_file):
            shutil.rmtree(entry.path, ignore_errors=True)
    finally:
        os.close(lock_file)


def _lock(descriptor: int) -> bool:
    """Try to lock a file. Return False if another process has locked it, or if locks are not supported."""
    try:
        import fcntl

        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except (ImportError, OSError):
        return False
    return True
