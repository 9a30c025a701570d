"""Entry points of installed packages, by group."""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Sequence
from typing import Any

__all__ = ["distribution_of", "entry_points_of"]


def entry_points_of(group: str) -> dict[str, Any]:
    """The entry points of a group by name, none of them loaded; those installed a moment ago are found too."""
    state = tuple((directory, _modified(directory)) for directory in sys.path)
    return {entry.name: entry for entry in _registered_in(group, state)}


@functools.lru_cache(maxsize=4)
def _registered_in(group: str, directories: tuple[tuple[str, int], ...]) -> Sequence[Any]:
    """What the packages in `sys.path` register. Their metadata takes milliseconds to read, so once for each state."""
    from importlib.metadata import entry_points

    if sys.version_info >= (3, 10):
        return tuple(entry_points(group=group))
    return tuple(entry_points().get(group, ()))


def _modified(directory: str) -> int:
    """When something was installed there last, in nanoseconds."""
    try:
        return os.stat(directory or os.curdir).st_mtime_ns
    except (OSError, ValueError):
        return 0


def distribution_of(entry: Any) -> Any:
    """The distribution that registers this entry point, None when it cannot be found."""
    found = getattr(entry, "dist", None)
    if found is not None or sys.version_info >= (3, 10):
        return found
    from importlib.metadata import distributions

    return next((dist for dist in distributions() if entry in dist.entry_points), None)
