"""Step directories that a framework writes by itself: finding them by the layout it has, and removing old ones.

Only directories that the layout names as those of a step are touched, only below the directory of one run, and links
are not followed. A directory is renamed before it is emptied, so that a reader, or whoever comes after a kill, finds it
whole or not at all.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from ascend_dump._paths import REMOVED_DIRECTORY

__all__ = ["StepDirectory", "find_steps", "remove_step"]

#: Levels from the directory of a run down to that of a step: CANN has five, torchair one more.
_DEEPEST = 7


class StepDirectory(NamedTuple):
    """One step of one stream of steps: a graph, a model or a process that counts them by itself.

    stream  the path of the directory above, relative to that of the run
    """

    stream: str
    number: int
    path: Path


def find_steps(root: Path, layout: re.Pattern[str]) -> list[StepDirectory]:
    """The step directories below the directory of a run, those of a stream in order.

    layout: matches the path of one, relative to `root`; its last group is the number of the step
    """
    return sorted(_below(os.fspath(root), "", layout, 1))


def _below(directory: str, above: str, layout: re.Pattern[str], level: int) -> Iterator[StepDirectory]:
    try:
        with os.scandir(directory) as entries:
            found = [one.name for one in entries if one.is_dir(follow_symlinks=False)]
    except OSError:  # somebody removed it, or closed it to us: there is nothing to remove in there
        return
    for name in found:
        inside = f"{above}{name}"
        match = layout.fullmatch(inside)
        if match is not None:
            yield StepDirectory(above.rstrip("/"), int(match[match.lastindex or 0]), Path(directory, name))
        elif level < _DEEPEST:
            yield from _below(f"{directory}/{name}", f"{inside}/", layout, level + 1)


def remove_step(step: StepDirectory) -> None:
    """Remove the directory of a step with all that is in it. Raises OSError."""
    aside = step.path.with_name(f"{REMOVED_DIRECTORY}{step.path.name}")
    # What an earlier attempt has left behind would refuse the new name.
    shutil.rmtree(aside, ignore_errors=True)
    try:
        os.rename(step.path, aside)
    except FileNotFoundError:
        return
    shutil.rmtree(aside, ignore_errors=True)
    if os.path.lexists(aside):
        raise OSError(f"{aside} cannot be removed")
