"""Check that a dump can be written to a path that may not exist yet."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import NamedTuple

__all__ = ["DumpPlace", "look_at"]


class DumpPlace(NamedTuple):
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


def look_at(path: Path) -> DumpPlace:
    """Check a path without creating anything. Raises OSError if its disk cannot be examined."""
    absolute = Path(os.path.abspath(path))
    nearest = absolute
    while not os.path.lexists(nearest) and nearest != nearest.parent:
        nearest = nearest.parent
    writable = nearest.is_dir() and os.access(nearest, os.W_OK | os.X_OK)
    return DumpPlace(absolute, nearest, writable, shutil.disk_usage(nearest).free)
