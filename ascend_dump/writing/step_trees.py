"""Find step directories that a framework writes, and remove old ones.

Only directories below the directory of one run are touched, and only if their paths match the layout. Links are not
followed. A directory is renamed before it is deleted, so that a reader finds it complete or not at all, even if the
program is killed in between.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from ascend_dump.common.paths import REMOVED_DIRECTORY, move, remove_tree

__all__ = ["StepDirectory", "find_steps", "remove_step"]

#: Maximum number of levels from the directory of a run down to that of a step; CANN has five, torchair six.
_DEEPEST = 7


class StepDirectory(NamedTuple):
    """The directory of one step.

    stream  path of the parent directory, relative to the directory of the run. All steps in the parent directory belong
            to one graph, model or process, which counts its own steps
    """

    stream: str
    number: int
    path: Path


def find_steps(root: Path, layout: re.Pattern[str]) -> list[StepDirectory]:
    """Return the step directories below the directory of a run, sorted by stream and step.

    layout  matches the path of a step directory relative to `root`; its last group is the number of the step
    """
    return sorted(_below(os.fspath(root), "", layout, 1))


def _below(directory: str, above: str, layout: re.Pattern[str], level: int) -> Iterator[StepDirectory]:
    try:
        with os.scandir(directory) as entries:
            names = [entry.name for entry in entries if entry.is_dir(follow_symlinks=False)]
    except OSError:  # deleted or not readable: nothing to remove
        return
    for name in names:
        inside = f"{above}{name}"
        match = layout.fullmatch(inside)
        if match is not None:
            yield StepDirectory(above.rstrip("/"), int(match[match.lastindex or 0]), Path(directory, name))
        elif level < _DEEPEST:
            yield from _below(f"{directory}/{name}", f"{inside}/", layout, level + 1)


def remove_step(step: StepDirectory) -> None:
    """Remove the directory of a step with its contents. Raises OSError."""
    aside = step.path.with_name(f"{REMOVED_DIRECTORY}{step.path.name}")
    # A directory left by an earlier attempt would make the rename fail.
    remove_tree(aside)
    try:
        move(step.path, aside)
    except FileNotFoundError:
        return
    remove_tree(aside)
    if os.path.lexists(aside):
        raise OSError(f"{aside} cannot be removed")
