"""Check that a dump can be written to a path that may not exist yet."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import NamedTuple

__all__ = ["PathState", "examine_path"]


class PathState(NamedTuple):
    """The result of a check of a path.

    path      the absolute path
    nearest   the path itself or its nearest parent that exists
    writable  True if files can be created in `nearest`
    free      number of free bytes on its disk
    """

    path: Path
    nearest: Path
    writable: bool
    free: int


def examine_path(path: Path) -> PathState:
    """Check a path without creating anything. Raises OSError if its disk cannot be examined."""
    absolute = Path(os.path.abspath(path))
    nearest = absolute
    while not os.path.lexists(nearest) and nearest != nearest.parent:
        nearest = nearest.parent
    writable = nearest.is_dir() and os.access(nearest, os.W_OK | os.X_OK)
    return PathState(absolute, nearest, writable, shutil.disk_usage(nearest).free)
