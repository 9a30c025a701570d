"""The contract of one running capture."""

from __future__ import annotations

import logging
import re
from abc import ABC, abstractmethod
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Optional

from ascend_dump.common.counters import Tally
from ascend_dump.errors import AscendDumpError, NotSupported
from ascend_dump.request import DumpRequest

__all__ = ["Session", "tell_of_empty"]

log = logging.getLogger("ascend_dump")


class Session(ABC):
    """A running capture, created by `Adapter.start`. Every method except `stop` has a default implementation.

    root     the directory of this capture's files
    request  the request; only needed by sessions that use `selects_step` or `is_past`
    config   path of the file that the program must pass to its framework to switch this capture on, or None
    failure  why this capture is incomplete, None if it is complete; final once `stop` has returned
    step_directories  a pattern for the paths, relative to `root`, of the directories that the framework writes for
             each step. Its last group is the step number. With it, the capture implements `keep=` and `until=` by
             removing directories. None if the session implements `keep=` and `until=` itself, as a `HostWriter` does,
             or if there are no such directories
    """

    root: Path
    request: DumpRequest
    config: Optional[str] = None
    failure: Optional[AscendDumpError] = None
    step_directories: Optional[re.Pattern[str]] = None

    @abstractmethod
    def stop(self) -> None:
        """Disarm and restore the target. A second call does nothing."""

    def fail(self, failure: AscendDumpError) -> None:
        """Record why this capture is incomplete; the first reason is kept."""
        if self.failure is None:
            self.failure = failure

    def settle(self) -> None:  # noqa: B027  (most frameworks have nothing to wait for)
        """Wait for the work that the program has queued on a device. Called before `stop`.

        Exceptions of that work are passed on to the program.
        """

    def step(self, number: Optional[int]) -> None:
        """End the open step and begin step `number`. None: only end the open step."""
        raise NotSupported(
            "the framework counts the steps of this capture itself",
            hint="leave out cap.step() and select with steps=",
        )

    @property
    def is_over(self) -> bool:
        """True if no further step will be recorded, whatever its number."""
        return self.failure is not None

    def is_past(self, number: Optional[int]) -> bool:
        """Return True if neither step `number` nor a later step will be recorded."""
        return self.is_over or (number is not None and self.request.steps.end_before(number))

    def selects_step(self, number: Optional[int]) -> bool:
        """Return True if step `number` is to be recorded: `steps=` selects it, and the recording is not over."""
        return number is not None and number in self.request.steps and not self.is_past(number)

    def trigger(self, reason: str) -> None:
        """Stop recording after the open step, and keep the steps recorded so far. The first reason counts.

        If `step_directories` is set, this method may be called in another thread. Raises NotSupported if the framework
        cannot stop dumping.
        """
        raise NotSupported(
            "this framework dumps until the capture ends", hint='call cap.stop() instead of cap.trigger("...")'
        )

    def flush(self) -> None:  # noqa: B027  (most frameworks write on their own)
        """Make everything captured so far readable."""

    def marks(self) -> Mapping[str, Mapping[str, Any]]:
        """Return additional `attrs` for the records of `cap.dump()`, by the name of the records' model."""
        return {}

    def tally(self) -> Optional[Tally]:
        """Return the numbers of recorded steps and records. They are exact after a stop.

        None if the session does not count them; then they are counted in the files.
        """
        return None

    def reasons(self) -> Optional[list[str]]:
        """Return likely reasons why nothing was written, the most likely first. Called after a stop.

        None if an empty dump is a valid result, for example with scene="overflow" if nothing overflowed.
        """
        return []


def tell_of_empty(what: str, count: int, first: Optional[int], reason: str = "") -> None:
    """Log a warning if selected steps have no records.

    what    "step" or, for decorated functions, "call"
    count   number of selected steps without records
    first   number of the first step without records
    reason  why there are no records; by default that no selected operator ran
    """
    if count:
        log.warning(
            "%d of the selected %ss wrote nothing, the first is %s %d: %s [AD303]",
            count,
            what,
            what,
            first,
            reason or "no selected operator ran in it",
        )
