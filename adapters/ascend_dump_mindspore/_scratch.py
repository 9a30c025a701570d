"""A directory for what belongs to no dump. It goes with its process, or with the next one where that was killed."""

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
#: Held locked for as long as the process, or a child that it forked, lives.
_HELD = "in_use"


class Scratch:
    """path: of the directory, which MindSpore accepts. Raises OSError where none can be made.

    A process that is killed, or ends by `os._exit`, cannot remove its own: the next one that makes a directory does.
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
            # Nobody may take it for one that was left behind.
            os.unlink(self.path / _HELD)

    def remove(self) -> None:
        """Remove it with all that is in it; a second call does nothing."""
        shutil.rmtree(self.path, ignore_errors=True)
        if self._held >= 0:
            os.close(self._held)
            self._held = -1


def _sweep(place: str) -> None:
    """Remove what processes of this user have left behind."""
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
    """Whether nobody else holds it; False too where the system or the file system has no locks."""
    try:
        import fcntl

        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except (ImportError, OSError):
        return False
    return True
