"""A temporary directory that is removed at the end of its process; if that was killed, by a later process."""

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
#: Locked as long as the process, or a child that it forked, is alive.
_HELD = "in_use"


class Scratch:
    """Creates a directory whose path MindSpore accepts. Raises OSError if that is not possible.

    A process that is killed, or ends by `os._exit`, cannot remove its directory: the next process that creates one
    removes it.
    """

    def __init__(self) -> None:
        for place in (tempfile.gettempdir(), "/tmp", "/var/tmp"):
            if ACCEPTED.fullmatch(place) and os.access(place, os.W_OK | os.X_OK):
                break
        else:
            raise OSError("no temporary directory has a path that MindSpore accepts (letters, digits, - and _)")
        _sweep(place)
        self.path = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=place))
        self._held = os.open(self.path / _HELD, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
        if not _lock(self._held):
            # No other process may mistake it for an abandoned one.
            os.unlink(self.path / _HELD)

    def remove(self) -> None:
        """Remove the directory with its contents; a second call does nothing."""
        shutil.rmtree(self.path, ignore_errors=True)
        if self._held >= 0:
            os.close(self._held)
            self._held = -1


def _sweep(place: str) -> None:
    """Remove abandoned directories of this user."""
    with contextlib.suppress(OSError), os.scandir(place) as found:
        for one in found:
            if one.name.startswith(_PREFIX):
                with contextlib.suppress(OSError):
                    _remove_if_left(one)


def _remove_if_left(one: os.DirEntry[str]) -> None:
    status = one.stat(follow_symlinks=False)
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid():
        return
    held = os.open(os.path.join(one.path, _HELD), os.O_RDWR | os.O_NOFOLLOW)
    try:
        if _lock(held):
            shutil.rmtree(one.path, ignore_errors=True)
    finally:
        os.close(held)


def _lock(descriptor: int) -> bool:
    """Try to lock a file. False if another process has the lock, or locks are not supported."""
    try:
        import fcntl

        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except (ImportError, OSError):
        return False
    return True
