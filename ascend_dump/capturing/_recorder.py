"""Recorders for dumps that a framework writes by itself: `keep=` and `until=` remove and read its step directories.

A thread polls them, since no event marks the end of a step: a step is complete once the framework has begun a newer
step. Host dumps need no such thread, their writer does the same (`ascend_dump.writing`).
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
import threading
import time
from importlib import import_module
from itertools import groupby
from pathlib import Path
from typing import Any, Optional

from ascend_dump.adapter import Session
from ascend_dump.capturing._disk_forecast import StepForecast
from ascend_dump.common.paths import holds_files
from ascend_dump.errors import NotSupported, ReadError
from ascend_dump.request import DumpRequest
from ascend_dump.writing.ending import Ended
from ascend_dump.writing.step_trees import StepDirectory, find_steps, remove_step

__all__ = ["StepRecorder", "TreeRecorder"]

log = logging.getLogger("ascend_dump")

#: Seconds between two looks; after one that took long it rests so many times as long.
_PAUSE, _REST = 0.5, 20
#: The longest reason taken from the text of an exception, in characters.
_LONGEST_REASON = 500


class StepRecorder:
    """The handling of `keep=`, `until=`, `trigger` and exceptions in a capture, for any session.

    A session that removes old steps itself gets triggers through `Session.trigger`. For the others a `TreeRecorder`
    removes step directories.
    """

    def __init__(self, session: Session, request: DumpRequest) -> None:
        self._session, self._request = session, request
        self._asked = request.keep is not None or request.until is not None
        self._trees = self._begin() if self._asked else None
        self._forecast = StepForecast(session, request)
        if self._asked and self._trees is None and type(session).trigger is Session.trigger:
            log.warning(
                "keep= and until= change nothing: the adapter neither thins its dump nor says where its steps are "
                "[AD213]"
            )

    def trigger(self, reason: str) -> None:
        """End the recording with the open step. Raises NotSupported where the framework cannot be kept from dumping."""
        if self._trees is None:
            self._trees = self._begin()
        if self._trees is None:
            self._session.trigger(reason)
        else:
            self._trees.trigger(reason)

    def trigger_by(self, error: Optional[BaseException]) -> None:
        """End a recorder at the program's exception, so that the steps before it stay."""
        if error is not None and self._asked:
            text = " ".join(str(error).split())[:_LONGEST_REASON]
            with contextlib.suppress(NotSupported):
                self.trigger(f"{type(error).__name__}: {text}" if text else type(error).__name__)

    def stop(self) -> None:
        """Finish, once the session has stopped."""
        self._forecast.stop()
        if self._trees is not None:
            self._trees.stop()

    def kept(self) -> dict[str, Any]:
        """Return the fields of the manifest about the remaining steps, if the session writes no manifest itself."""
        return {} if self._trees is None else self._trees.kept()

    def _begin(self) -> Optional[TreeRecorder]:
        layout = self._session.step_directories
        return None if layout is None else TreeRecorder(self._session, self._request, layout)


class TreeRecorder:
    """A thread that removes step directories below `session.root` until `stop`, for each stream of steps separately.

    ended    reason and step of the end of the recording, None before it
    unknown  with until="nonfinite": number of tensors that could not be checked for NaN and Inf
    """

    def __init__(self, session: Session, request: DumpRequest, layout: re.Pattern[str]) -> None:
        self.ended: Optional[Ended] = None
        self.unknown = 0
        self._session, self._request, self._layout = session, request, layout
        self._root: Path = session.root
        self._removed = 0
        self._seen = False
        self._failed = False
        #: By stream: the last step that was looked at for NaN and Inf, and the last one that stays.
        self._checked: dict[str, int] = {}
        self._last: dict[str, int] = {}
        #: True once the framework has stopped writing.
        self._quiet = False
        self._lock = threading.RLock()
        self._pid = os.getpid()
        if request.until is not None:
            # Not on the thread: a process that is forked while it imports a module has half of it.
            import_module("ascend_dump.analysis.overflow")
            import_module("ascend_dump.analysis.suspects.first_wrong")
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="ascend_dump recorder", daemon=True)
        self._thread.start()

    def trigger(self, reason: str) -> None:
        """End the recording with the newest step of each stream. The first reason counts."""
        if os.getpid() != self._pid:  # forked, where nobody gives the lock back
            return
        with self._lock:
            if self.ended is None:
                self._end(Ended(reason, None), find_steps(self._root, self._layout))

    def stop(self) -> None:
        """Check the steps a last time, after the framework has stopped writing."""
        if os.getpid() != self._pid:
            return
        self._stop.set()
        self._thread.join()
        self._look(over=True)
        if not self._seen and self._holds_records():
            log.warning(
                "keep= and until= changed nothing: what was dumped into %s has no directory for each step, so nothing "
                "was removed or looked at [AD213]",
                self._root,
            )

    def kept(self) -> dict[str, Any]:
        """Return fields of the manifest, as `HostWriter.kept`."""
        fields: dict[str, Any] = {}
        if self._request.keep is not None:
            fields["removed"] = {"steps": self._removed}
        if self.ended is not None:
            fields["ended"] = self.ended._asdict()
        if self._request.until is not None:
            fields["unknown"] = self.unknown
        return fields

    def _run(self) -> None:
        pause = _PAUSE
        while not self._stop.wait(pause):
            began = time.monotonic()
            self._look()
            if self._quiet:
                return
            pause = max(_PAUSE, _REST * (time.monotonic() - began))

    def _look(self, *, over: bool = False) -> None:
        """Check complete steps and remove superfluous ones. over: the newest step is complete too."""
        with self._lock:
            try:
                steps = find_steps(self._root, self._layout)
                self._seen = self._seen or bool(steps)
                if self._request.until is not None and self.ended is None:
                    self._check(steps, over)
                old, late = self._superfluous(steps, over)
                for step in (*old, *late):
                    remove_step(step)
                self._removed += len(old)
            except Exception as error:  # the program must not suffer
                if not self._failed:
                    self._failed = True
                    level = logging.WARNING if self._session.failure is None else logging.DEBUG
                    log.log(level, "steps of %s could not be removed or read: %s", self._root, error)
                    log.debug("a recorder failed", exc_info=True)

    def _holds_records(self) -> bool:
        from ascend_dump.reading import open_dump

        if not holds_files(self._root):
            return False
        try:
            return bool(open_dump(self._root))
        except ReadError:
            return False

    def _superfluous(
        self, all_steps: list[StepDirectory], over: bool
    ) -> tuple[list[StepDirectory], list[StepDirectory]]:
        """Return the steps that `keep` excludes, and the steps after the end of the recording."""
        old, late = [], []
        for name, group in groupby(all_steps, key=lambda step: step.stream):
            steps = list(group)
            most = self._request.keep
            if self.ended is not None:
                last = self._last.get(name, -1)
                # The newest one is left alone while it is written.
                late += [step for step in (steps if over else steps[:-1]) if step.number > last]
                steps = [step for step in steps if step.number <= last]
            if most is not None:
                # Besides those that stay there is the one that is being written, or that ended the recording.
                most += self.ended is not None or not over
                filled = [step for step in steps if holds_files(step.path)]
                # Steps in which nothing was dumped do not push others out.
                first = filled[-most].number if len(filled) > most else -1
                old += [step for step in steps if step.number < first]
        return old, late

    def _check(self, all_steps: list[StepDirectory], over: bool) -> None:
        """Search complete steps for NaN and Inf, in the order of each stream."""
        for name, group in groupby(all_steps, key=lambda step: step.stream):
            steps = list(group)
            for step in steps if over else steps[:-1]:
                if step.number <= self._checked.get(name, -1):
                    continue
                self._checked[name] = step.number
                wrong = self._wrong_in(step.path)
                if wrong is None:
                    continue
                before = [
                    candidate for candidate in all_steps if candidate.stream != name or candidate.number <= step.number
                ]
                self._end(Ended(wrong.reason, step.number, wrong.operator), before)
                log.warning("%s at step %d: the capture keeps it and records nothing more", wrong.reason, step.number)
                return

    def _end(self, ended: Ended, last: list[StepDirectory]) -> None:
        self._last = {step.stream: step.number for step in last}
        newest = max(self._last.values(), default=None)
        self.ended = ended if ended.step is not None else ended._replace(step=newest)
        try:
            self._session.trigger(ended.reason)
            self._quiet = True
        except NotSupported:
            log.info(
                "the framework cannot stop dumping: the steps that it still writes are removed until the capture ends"
            )

    def _wrong_in(self, step: Path) -> Optional[Ended]:
        """Return the first fault of a step, by its values, statistics or the device's reports of overflow."""
        from ascend_dump.analysis.overflow import find_overflows
        from ascend_dump.analysis.suspects.first_wrong import first_wrong
        from ascend_dump.common.ignored import IgnoredOperators
        from ascend_dump.reading import open_dump

        try:
            dump = open_dump(step)
            if self._request.scene == "overflow":
                for overflow in find_overflows(dump, ignore=self._request.ignore).overflows:
                    name = str((overflow.operator or {}).get("op_name") or overflow.record.op_name)
                    return Ended(f"an overflow in {name}", None, name)
                return None
            wrong, unknown = first_wrong(dump, IgnoredOperators(self._request.ignore))
            self.unknown += unknown
            if wrong is not None:
                record = wrong.record
                name = f"{record.op_name}.{record.io}.{record.index}"
                return Ended(f"{wrong.what} in {name}", None, name)
        except ReadError as error:
            log.debug("a step could not be read: %s", error)
            self.unknown += 1
        return None
