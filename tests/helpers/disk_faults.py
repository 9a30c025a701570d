"""A disk that fails once: at one of the file operations of a block of code."""

from __future__ import annotations

import errno
import os
import sys
import threading
from types import FrameType
from typing import Any, Optional

import pytest

__all__ = ["FailingDisk"]

#: Without questions such as `os.stat`, whose failure a framework may take for a wrong path.
_OPERATIONS = (
    *("mkdir", "open", "fstat", "statvfs", "listdir", "scandir", "fchmod", "chmod"),
    *("write", "pwrite", "ftruncate", "fdopen", "replace", "rename", "unlink", "rmdir", "symlink", "fsync"),
)


class FailingDisk:
    """Raises OSError from file operation number `fails` of this thread, counted within the `with` block without those
    of the fakes.

    count  the number of file operations in the last block
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch, number: int = errno.ENOSPC) -> None:
        self.count = 0
        self.fails = -1
        self._number = number
        self._thread = threading.get_ident()
        self._on = False
        for name in _OPERATIONS:
            monkeypatch.setattr(os, name, self._counted(name, getattr(os, name)))

    def __enter__(self) -> None:
        self.count, self._on = 0, True

    def __exit__(self, *error: object) -> None:
        self._on = False

    def _counted(self, name: str, operation: Any) -> Any:
        def run(*args: Any, **kwargs: Any) -> Any:
            if self._on and threading.get_ident() == self._thread and not _is_of_a_fake():
                self.count += 1
                if self.count == self.fails:
                    raise OSError(self._number, f"{os.strerror(self._number)} (injected)", name)
            return operation(*args, **kwargs)

        return run


def _is_of_a_fake() -> bool:
    frame: Optional[FrameType] = sys._getframe(2)
    while frame is not None:
        if frame.f_globals.get("__name__", "").startswith("ascend_dump.fakes"):
            return True
        frame = frame.f_back
    return False
