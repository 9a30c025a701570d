"""Record a whole MindSpore program: start at the import of mindspore, before MindSpore reads its configuration."""

from __future__ import annotations

import os
import sys

from ascend_dump.adapter import Begin

__all__ = ["launch"]


def launch(begin: Begin) -> None:
    """Start the capture now, unless this process only starts other processes."""
    if not _only_starts_others():
        begin()


def _only_starts_others() -> bool:
    """Return True if this process is msrun, which starts workers, or their scheduler.

    Both import MindSpore, but run no graph.
    """
    if os.environ.get("MS_ROLE") == "MS_SCHED":
        return True
    started = (*sys.argv[:1], *getattr(sys, "orig_argv", ()))
    return os.path.basename(started[0] if started else "") == "msrun" or "mindspore.parallel.cluster.run" in started
