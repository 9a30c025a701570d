"""Entry points of installed packages, by group."""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Sequence
from typing import Any

__all__ = ["distribution_of", "entry_points_of"]


def entry_points_of(group: str) -> dict[str, Any]:
    """Return the entry points of a group by name, not loaded, including those of packages installed just now."""
    state = tuple((directory, _modified(directory)) for directory in sys.path)
    return {entry.name: entry for entry in _registered_in(group, state)}


@functools.lru_cache(maxsize=4)
def _registered_in(group: str, directories: tuple[tuple[str, int], ...]) -> Sequence[Any]:
    """Return the entry points of the packages in `sys.path`: cached, since reading takes milliseconds."""
    from importlib.metadata import entry_points

    if sys.version_info >= (3, 10):
        return tuple(entry_points(group=group))
    return tuple(entry_points().get(group, ()))


def _modified(directory: str) -> int:
    """Return the time of the last installation into a directory, in nanoseconds."""
    try:
        return os.stat(directory or os.curdir).st_mtime_ns
    except (OSError, ValueError):
        return 0


def distribution_of(entry: Any) -> Any:
    """Return the distribution that registers this entry point, None when it cannot be found."""
    distribution = getattr(entry, "dist", None)
    if distribution is not None or sys.version_info >= (3, 10):
        return distribution
    from importlib.metadata import distributions

    return next((dist for dist in distributions() if entry in dist.entry_points), None)
