"""Limit the size of a dump: `max_bytes`, or a share of the free space, and a reserve that stays free."""

from __future__ import annotations

import errno
import logging
import os
from pathlib import Path
from typing import NamedTuple, Optional

from ascend_dump.common.paths import ForeignFile, RunDirectory
from ascend_dump.common.rank import ranks_of_this_host
from ascend_dump.common.units import counted, size
from ascend_dump.errors import WriteError
from ascend_dump.request import DumpRequest

__all__ = ["Budget", "SizeLimit", "explain", "size_limit"]

log = logging.getLogger("ascend_dump")

#: Bytes written between two checks of the free space.
_CHECK_EVERY = 64 << 20
#: Bounds in bytes of the reserve that stays free, which is 5 % of the file system.
_LEAST_RESERVE, _MOST_RESERVE = 64 << 20, 1 << 30
#: Percentage of the free space for all ranks of a host together, if the request sets no limit.
_SHARE = 10
#: If the number of steps is unknown, warn if fewer than this many fit.
_FEW = 100


class SizeLimit(NamedTuple):
    """The most bytes of a dump. by_default: True if the user set no limit."""

    nbytes: int
    by_default: bool = False


def size_limit(request: DumpRequest, run: RunDirectory) -> Optional[SizeLimit]:
    """Return the limit of this rank: `max_bytes` if it is set.

    Otherwise there is no limit (None) if the number of steps or `keep` is set. If neither is set, the limit is 10 % of
    the free space, divided by the number of ranks of this host that are recorded.
    """
    if request.max_bytes is not None:
        return SizeLimit(request.max_bytes)
    if request.steps.count is not None or request.keep is not None:
        return None
    ranks = sum(rank in request.ranks for rank in ranks_of_this_host(run.rank))
    try:
        disk = os.statvfs(run.path)
    except OSError:
        return None  # the first write reports the error
    return SizeLimit(disk.f_bavail * disk.f_frsize // _SHARE // max(1, ranks), by_default=True)


class Budget:
    """Checks the free space and the limit before each write."""

    def __init__(self, directory: Path, limit: Optional[SizeLimit]) -> None:
        self._directory = directory
        self._limit = limit
        self._next_check = 0

    def forecast(self, step: int, following: Optional[int], *, endless: bool = False) -> None:
        """Warn if the following steps do not fit, assuming that they are as large as the first one.

        step       size of the first step on disk in bytes
        following  the most steps that may follow; None if unknown
        endless    True if the framework writes the files, so that nothing stops before the disk is full
        """
        limit = self._limit
        if step <= 0 or (following is None and not endless and (limit is None or not limit.by_default)):
            return
        try:
            free, reserve = self._free()
        except OSError:
            return
        room = free if endless else free - reserve - self._until_next_check(step)
        bound = f"{size(free)} are free"
        if limit is not None and limit.nbytes - step < room:
            room = limit.nbytes - step
            bound = f"{size(limit.nbytes)} may be used ({_reason(limit)})"
        fits = max(room, 0) // step
        if fits < (_FEW if following is None else following):
            log.warning(
                "a step is %s, %s, %s: %s after about %s of this size%s\n"
                "Hint: select steps=, layers= or data='stats', keep the last steps with keep=%s",
                size(step),
                "all steps were asked for" if following is None else f"{counted(following + 1, 'step')} were asked for",
                bound,
                "the disk is full" if endless else "the capture stops",
                counted(fits + 1, "step"),
                "" if endless else "; the run goes on",
                ", or give max_bytes=" if limit is not None and limit.by_default else "",
            )

    def check(self, written: int, nbytes: int) -> None:
        """Raise WriteError if there is no room for `nbytes` more bytes: AD503 for the limit, AD502 for the disk.

        written  bytes so far that count for the limit
        """
        limit = self._limit
        if limit is not None and written + nbytes > limit.nbytes:
            what = f"the default limit of {size(limit.nbytes)}" if limit.by_default else f"max_bytes={limit.nbytes}"
            raise WriteError(
                f"{what} would be exceeded: {size(written)} are on disk"
                f"{f' and the next tensor has {size(nbytes)}' if nbytes else ''}; the capture stops, the run goes on",
                hint=f"{'give' if limit.by_default else 'raise'} max_bytes, or select fewer steps or layers",
                code="AD503",
            )
        if written + nbytes >= self._next_check:
            self._next_check = written + nbytes + _CHECK_EVERY
            self._check_disk(nbytes, self._until_next_check(written + nbytes))

    def _until_next_check(self, written: int) -> int:
        """Return how many bytes at most may follow after `written` bytes until the free space is checked again."""
        return _CHECK_EVERY if self._limit is None else min(_CHECK_EVERY, max(self._limit.nbytes - written, 0))

    def _check_disk(self, nbytes: int, index_bytes: int) -> None:
        try:
            free, reserve = self._free()
        except OSError:
            return  # the next write reports the error
        if free - nbytes - index_bytes < reserve:
            raise WriteError(
                f"only {size(free)} is free in {self._directory}, and writing the next {size(nbytes + index_bytes)} "
                f"would leave less than the {size(reserve)} kept in reserve: the capture stops, the run goes on",
                hint="free some space, give another path=, or select fewer steps or layers",
                code="AD502",
            )

    def _free(self) -> tuple[int, int]:
        """Return the free bytes of the file system, and the reserve."""
        disk = os.statvfs(self._directory)
        reserve = min(max(disk.f_blocks * disk.f_frsize // 20, _LEAST_RESERVE), _MOST_RESERVE)
        return disk.f_bavail * disk.f_frsize, reserve


def _reason(limit: SizeLimit) -> str:
    return f"{_SHARE} % of the free space" if limit.by_default else "max_bytes"


def explain(error: OSError, directory: Path) -> WriteError:
    """Return a WriteError with a hint for an error of the file system. A WriteError is returned unchanged."""
    if isinstance(error, WriteError):
        return error
    if isinstance(error, ForeignFile):
        return WriteError(
            f"{os.path.join(directory, error.filename)}: {error.strerror}: the capture stops, the run goes on",
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
