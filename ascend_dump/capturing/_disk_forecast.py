"""A forecast of the disk space that a capture will need, made when the first step is complete.

It is for frameworks that write the dump files themselves. For dumps that our own writer writes, the writer makes the
forecast (`ascend_dump.writing`).
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

#: Minimum seconds between two measurements, and minimum pause as a multiple of the duration of the last measurement.
_PAUSE, _PAUSE_FACTOR = 0.5, 20


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
            start = time.monotonic()
            try:
                size = self._first_step()
                if size is not None:
                    count, keep = self._request.steps.count, self._request.keep
                    limits = [limit for limit in (count and count - 1, keep) if limit is not None]
                    Budget(self._session.root, None).forecast(size, min(limits, default=None), endless=True)
                    return
            except Exception:  # an error here must not stop the program
                log.debug("the size of a step could not be measured", exc_info=True)
                return
            pause = max(_PAUSE, _PAUSE_FACTOR * (time.monotonic() - start))

    def _first_step(self) -> Optional[int]:
        """Return the bytes of a complete step: the sum over all streams (models or graphs), since they run in turn.

        None if no stream has a complete step yet.
        """
        layout = self._session.step_directories
        assert layout is not None, "the thread runs only if step_directories is set"
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
            except OSError:  # `keep=` may have removed the file
                continue
    return total
