"""The contract of one running capture."""

from __future__ import annotations

import logging
import re
from abc import ABC, abstractmethod
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Optional

from ascend_dump._errors import AscendDumpError, NotSupported
from ascend_dump._tally import Tally

__all__ = ["Session", "tell_of_empty"]

log = logging.getLogger("ascend_dump")


class Session(ABC):
    """One running capture, made by `Adapter.start`. Everything but `stop` has a default.

    root     where this capture's files are
    config   the file that the program hands to its framework to switch this capture on, None: there is none
    failure  what kept this capture from being complete, if anything did; final once `stop` has returned
    step_directories  where the framework writes a directory for each step by itself: what matches its path below
             `root`, with the number of the step as the last group. The capture then does what `keep=` and `until=` ask
             for. None: the session does, as with `HostWriter`, or there is no such directory
    """

    root: Path
    config: Optional[str] = None
    failure: Optional[AscendDumpError] = None
    step_directories: Optional[re.Pattern[str]] = None

    @abstractmethod
    def stop(self) -> None:
        """Disarm; leaves the target as it was. A second call does nothing."""

    def fail(self, failure: AscendDumpError) -> None:
        """Record why this capture is incomplete; the first reason is kept."""
        if self.failure is None:
            self.failure = failure

    def settle(self) -> None:  # noqa: B027  (most frameworks have nothing to wait for)
        """Wait for what the program has queued, before `stop`. What it raises is the program's and reaches it."""

    def step(self, number: Optional[int]) -> None:
        """End the open step and begin step `number`; None only ends it."""
        raise NotSupported(
            "the framework counts the steps of this capture itself",
            hint="leave out cap.step() and select with steps=",
        )

    def trigger(self, reason: str) -> None:
        """Record nothing after the open step, which stays with those before it. The first reason holds.

        With `step_directories` it may be called on another thread. Raises NotSupported where the framework goes on
        dumping whatever happens.
        """
        raise NotSupported(
            "this framework dumps until the capture ends", hint='call cap.stop() instead of cap.trigger("...")'
        )

    def flush(self) -> None:  # noqa: B027  (most frameworks write on their own)
        """Make everything captured so far readable."""

    def marks(self) -> Mapping[str, Mapping[str, Any]]:
        """What `cap.dump()` adds to the `attrs` of records, by the name of their model."""
        return {}

    def tally(self) -> Optional[Tally]:
        """What was recorded so far, exact after a stop. None: it is counted in the files, once it has stopped."""
        return None

    def reasons(self) -> Optional[list[str]]:
        """After a stop: likely reasons why nothing was written, most likely first.

        None: an empty dump is a good result, such as no overflow where only overflow is dumped.
        """
        return []


def tell_of_empty(what: str, count: int, first: Optional[int], reason: str = "") -> None:
    """Warn of selected steps without a record, where others have some. Nothing for none.

    what: "step", or "call" of a decorated function. first: the number of the first one.
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
