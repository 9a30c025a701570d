"""How much may be written: `max_bytes`, and what must stay free for others."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Optional

from ascend_dump._errors import WriteError
from ascend_dump._paths import ForeignFile

__all__ = ["Budget", "explain"]

#: The free space of the file system is looked at each time this much was written.
_CHECK_EVERY = 64 << 20
#: Free space that is left to others: 5 % of the file system, within these bounds.
_LEAST_RESERVE, _MOST_RESERVE = 64 << 20, 1 << 30


class Budget:
    """Say before each write whether there is room for it."""

    def __init__(self, directory: Path, max_bytes: Optional[int]) -> None:
        self._directory = directory
        self._max_bytes = max_bytes
        self._next_check = 0

    def check(self, written: int, nbytes: int) -> None:
        """Raise WriteError when `nbytes` more than the `written` ones are too many (AD503, AD502)."""
        if self._max_bytes is not None and written + nbytes > self._max_bytes:
            raise WriteError(
                f"max_bytes={self._max_bytes} would be exceeded: {written} bytes are written"
                f"{f' and the next tensor has {nbytes}' if nbytes else ''}; the capture stops, the run goes on",
                hint="raise max_bytes, or select fewer steps or layers",
                code="AD503",
            )
        if written + nbytes >= self._next_check:
            self._next_check = written + nbytes + _CHECK_EVERY
            self._check_disk(nbytes)

    def _check_disk(self, nbytes: int) -> None:
        try:
            disk = os.statvfs(self._directory)
        except OSError:
            return  # the write itself will tell
        free = disk.f_bavail * disk.f_frsize
        reserve = min(max(disk.f_blocks * disk.f_frsize // 20, _LEAST_RESERVE), _MOST_RESERVE)
        if free - nbytes - _CHECK_EVERY < reserve:
            raise WriteError(
                f"only {free >> 20} MiB are free below {self._directory}: the capture stops, the run goes on",
                hint="free some space, give another path=, or select fewer steps or layers",
                code="AD502",
            )


def explain(error: OSError, directory: Path) -> WriteError:
    """What an error of the file system means for the capture."""
    if isinstance(error, WriteError):
        return error
    if isinstance(error, ForeignFile):
        return WriteError(
            f"{error.filename} below {directory} is a link, or a file that has other names: the capture stops, the run "
            "goes on",
            hint="give path= a directory in which only this user may write",
            code="AD510",
        )
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return WriteError(
            f"the disk below {directory} is full ({error.strerror}): the capture stops, the run goes on",
            hint="free some space, give another path=, or select fewer steps or layers",
            code="AD502",
        )
    return WriteError(
        f"writing the dump below {directory} failed: {error}: the capture stops, the run goes on",
        hint="what was written before stays readable; see `ascend-dump doctor`",
    )
