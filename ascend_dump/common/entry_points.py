"""Find the entry points of installed packages."""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Sequence
from typing import Any

__all__ = ["distribution_of", "entry_points_of"]


def entry_points_of(group: str) -> dict[str, Any]:
    """Return the entry points of a group by name. They are not loaded. Packages installed a moment ago are included."""
    state = tuple((directory, _modified(directory)) for directory in sys.path)
    return {entry.name: entry for entry in _registered_in(group, state)}


@functools.lru_cache(maxsize=4)
def _registered_in(group: str, directories: tuple[tuple[str, int], ...]) -> Sequence[Any]:
    """Return the entry points of a group. The result is cached, because reading takes milliseconds.

    directories: the directories of `sys.path` with their times of modification, so that an installation is noticed
    """
    from importlib.metadata import entry_points

    if sys.version_info >= (3, 10):
        return tuple(entry_points(group=group))
    return tuple(entry_points().get(group, ()))


def _modified(directory: str) -> int:
    """Return the time of the last change of a directory (such as an installation), in nanoseconds; 0 without one."""
    try:
        return os.stat(directory or os.curdir).st_mtime_ns
    except (OSError, ValueError):
        return 0


def distribution_of(entry: Any) -> Any:
    """Return the distribution (installed package) that registers an entry point; None if it cannot be found."""
    distribution = getattr(entry, "dist", None)
    if distribution is not None or sys.version_info >= (3, 10):
        return distribution
    from importlib.metadata import distributions

    return next((dist for dist in distributions() if entry in dist.entry_points), None)
