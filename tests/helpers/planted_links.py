"""Another user who may write to `path=` renames the directory of a rank during a run and puts a link in its place."""

from __future__ import annotations

import os
import shutil
from pathlib import Path


def state_of(directory: Path) -> dict[str, tuple[int, bytes]]:
    """Mode and content of everything in a directory; of a link where it leads to."""
    return {
        str(path.relative_to(directory)): (path.lstat().st_mode, _content_of(path)) for path in directory.rglob("*")
    }


def _content_of(path: Path) -> bytes:
    if path.is_symlink():
        return os.fsencode(os.readlink(path))
    return path.read_bytes() if path.is_file() else b""


def plant(path: Path) -> Path:
    """Replace the directory of the rank by a link to a copy of it, and return the copy."""
    [level] = path.glob("worldsize*")
    victim = path.parent / "victim"
    shutil.copytree(level, victim, symlinks=True)
    level.rename(path / "moved")
    level.symlink_to(victim, target_is_directory=True)
    return victim
