"""A forecast of the disk space for steps that a framework dumps by itself, made when the first step is complete.

Host dumps need no such thread, their writer does the same (`ascend_dump.writing`).
"""

from __future__ import annotations

import logging
import os
import threading
import time
from itertools import groupby
from typing import Optional

from ascend_dump.adapter import Session
from ascend_dump.request import DumpRequest
from ascend_dump.writing.budget import Budget
from ascend_dump.writing.step_trees import find_steps

__all__ = ["StepForecast"]

log = logging.getLogger("ascend_dump")

#: Seconds between two looks; after one that took long it rests so many times as long.
_PAUSE, _REST = 0.5, 20


class StepForecast:
    """A thread that measures the step directories below `session.root` once the first step of a stream is complete."""

    def __init__(self, session: Session, request: DumpRequest) -> None:
        self._session, self._request = session, request
        self._stop = threading.Event()
        count = request.steps.count
        if session.step_directories is not None and (count is None or count > 1) and request.scene is None:
            threading.Thread(target=self._run, name="ascend_dump forecast", daemon=True).start()

    def stop(self) -> None:
        self._stop.set()

    def _run(self) -> None:
        pause = _PAUSE
        while not self._stop.wait(pause):
            began = time.monotonic()
            try:
                size = self._first_step()
                if size is not None:
                    count, keep = self._request.steps.count, self._request.keep
                    limits = [limit for limit in (count and count - 1, keep) if limit is not None]
                    Budget(self._session.root, None).forecast(size, min(limits, default=None), endless=True)
                    return
            except Exception:  # the program must not suffer
                log.debug("the size of a step could not be measured", exc_info=True)
                return
            pause = max(_PAUSE, _REST * (time.monotonic() - began))

    def _first_step(self) -> Optional[int]:
        """Return the bytes of one step in all streams, since graphs and models run in turn; None: none is complete."""
        layout = self._session.step_directories
        assert layout is not None, "else there is no thread"
        sizes = []
        for _, group in groupby(find_steps(self._session.root, layout), key=lambda step: step.stream):
            steps = list(group)
            if len(steps) > 1:  # a step is complete once the framework has begun a newer one
                sizes.append(_bytes_below(os.fspath(steps[0].path)))
        return sum(sizes) if sizes else None


def _bytes_below(directory: str) -> int:
    total = 0
    for parent, _, names in os.walk(directory):
        for name in names:
            try:
                total += os.lstat(os.path.join(parent, name)).st_size
            except OSError:  # `keep=` removes steps meanwhile
                continue
    return total
