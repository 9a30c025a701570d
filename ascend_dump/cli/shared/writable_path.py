"""A check that a dump can be written at a path that may not exist yet."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import NamedTuple

__all__ = ["DumpPlace", "look_at"]


class DumpPlace(NamedTuple):
    """path: absolute; nearest: the deepest directory of it that exists; free: bytes there."""

    path: Path
    nearest: Path
    writable: bool
    free: int


def look_at(path: Path) -> DumpPlace:
    """Look at `path` without creating anything. Raises OSError where it cannot be looked at."""
    absolute = Path(os.path.abspath(path))
    nearest = absolute
    while not os.path.lexists(nearest) and nearest != nearest.parent:
        nearest = nearest.parent
    writable = nearest.is_dir() and os.access(nearest, os.W_OK | os.X_OK)
    return DumpPlace(absolute, nearest, writable, shutil.disk_usage(nearest).free)
