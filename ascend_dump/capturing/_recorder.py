"""The implementation of `keep=` and `until=` for dumps that a framework writes itself.

A thread polls the step directories of the framework. For `keep=` it removes old steps, for `until=` it reads complete
steps. No event marks the end of a step, so a step counts as complete once the framework has begun a newer step. Dumps
that our own writer writes need no such thread: the writer implements both (`ascend_dump.writing`).
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

#: Minimum seconds between two polls, and minimum pause as a multiple of the duration of the last poll.
_PAUSE, _PAUSE_FACTOR = 0.5, 20
#: Maximum number of characters of an exception's text that become the reason of the end of a recording.
_MAX_REASON = 500


class StepRecorder:
    """The part of a capture that handles `keep=`, `until=`, `trigger` and exceptions, for any session.

    If the session has step directories, a `TreeRecorder` removes and reads them. Otherwise the session implements
    `keep=` and `until=` itself, and triggers are passed to `Session.trigger`.
    """

    def __init__(self, session: Session, request: DumpRequest) -> None:
        self._session, self._request = session, request
        self._has_limits = request.keep is not None or request.until is not None
        self._tree_recorder = self._begin() if self._has_limits else None
        self._forecast = StepForecast(session, request)
        if self._has_limits and self._tree_recorder is None and type(session).trigger is Session.trigger:
            names = _limits_text(request)
            log.warning(
                "%s %s nothing: the adapter neither removes steps itself "
                "nor says in which directories they are [AD213]",
                names,
                "change" if " and " in names else "changes",
            )

    def trigger(self, reason: str) -> None:
        """End the recording after the open step. Raises NotSupported if the framework cannot stop dumping."""
        if self._tree_recorder is None:
            self._tree_recorder = self._begin()
        if self._tree_recorder is None:
            self._session.trigger(reason)
        else:
            self._tree_recorder.trigger(reason)

    def trigger_by(self, error: Optional[BaseException]) -> None:
        """End the recording because of an exception of the program, so that the steps before it are kept."""
        if error is not None and self._has_limits:
            text = " ".join(str(error).split())[:_MAX_REASON]
            with contextlib.suppress(NotSupported):
                self.trigger(f"{type(error).__name__}: {text}" if text else type(error).__name__)

    def stop(self) -> None:
        """End the threads. To be called after the session has stopped."""
        self._forecast.stop()
        if self._tree_recorder is not None:
            self._tree_recorder.stop()

    def kept(self) -> dict[str, Any]:
        """Return the manifest's fields about removed steps and the end of recording; {} if the session adds them."""
        return {} if self._tree_recorder is None else self._tree_recorder.kept()

    def _begin(self) -> Optional[TreeRecorder]:
        layout = self._session.step_directories
        return None if layout is None else TreeRecorder(self._session, self._request, layout)


def _limits_text(request: DumpRequest) -> str:
    """Return the limits that a request sets: `keep=`, `until=`, `keep= and until=`, or ""."""
    return " and ".join(f"{name}=" for name in ("keep", "until") if getattr(request, name) is not None)


class TreeRecorder:
    """A thread that checks and removes step directories below `session.root` until `stop` is called.

    A stream is a sequence of steps that the framework counts separately, such as those of one model. Each stream is
    handled on its own.

    ended    reason and step of the end of the recording, None before it
    unknown  with until="nonfinite": number of tensors that could not be checked for NaN and Inf
    """

    def __init__(self, session: Session, request: DumpRequest, layout: re.Pattern[str]) -> None:
        self.ended: Optional[Ended] = None
        self.unknown = 0
        self._session, self._request, self._layout = session, request, layout
        self._root: Path = session.root
        self._removed = 0
        self._has_step_directories = False
        self._failure_is_logged = False
        #: For each stream the last step that was checked for NaN and Inf.
        self._checked: dict[str, int] = {}
        #: For each stream, after the end of the recording, the last step that is kept.
        self._last_kept: dict[str, int] = {}
        #: True once the framework has stopped writing.
        self._framework_stopped = False
        self._lock = threading.RLock()
        self._pid = os.getpid()
        if request.until is not None:
            # Imported here, not on the thread: a child forked during an import has a half-initialised module.
            import_module("ascend_dump.analysis.overflow")
            import_module("ascend_dump.analysis.suspects.first_wrong")
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="ascend_dump recorder", daemon=True)
        self._thread.start()

    def trigger(self, reason: str) -> None:
        """End the recording: keep the newest step of each stream, and none after it. Later calls do nothing."""
        if os.getpid() != self._pid:  # in a forked child the lock may never be released
            return
        with self._lock:
            if self.ended is None:
                self._end(Ended(reason, None), find_steps(self._root, self._layout))

    def stop(self) -> None:
        """End the thread, and check the steps a last time. To be called after the framework has stopped writing."""
        if os.getpid() != self._pid:
            return
        self._stop.set()
        self._thread.join()
        self._poll(over=True)
        # Without limits, this object exists because of a trigger. It had no effect if the framework went on writing.
        names = _limits_text(self._request) or ("" if self._framework_stopped else "trigger()")
        if names and not self._has_step_directories and self._holds_records():
            log.warning(
                "%s changed nothing: the dump in %s has no directory per step, "
                "so no step was removed or checked [AD213]",
                names,
                self._root,
            )

    def kept(self) -> dict[str, Any]:
        """Return the fields of the manifest that `HostWriter.kept` returns for our own format."""
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
            start = time.monotonic()
            self._poll()
            if self._framework_stopped:
                return
            pause = max(_PAUSE, _PAUSE_FACTOR * (time.monotonic() - start))

    def _poll(self, *, over: bool = False) -> None:
        """Check complete steps, and remove steps that are not to be kept. over: the newest step is complete too."""
        with self._lock:
            try:
                steps = find_steps(self._root, self._layout)
                self._has_step_directories = self._has_step_directories or bool(steps)
                if self._request.until is not None and self.ended is None:
                    self._check(steps, over)
                old, late = self._superfluous(steps, over)
                for step in (*old, *late):
                    remove_step(step)
                self._removed += len(old)
            except Exception as error:  # an error here must not stop the program
                if not self._failure_is_logged:
                    self._failure_is_logged = True
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
        """Return the steps to remove: those that `keep` excludes, and those after the end of the recording."""
        old, late = [], []
        for name, group in groupby(all_steps, key=lambda step: step.stream):
            steps = list(group)
            most = self._request.keep
            if self.ended is not None:
                last = self._last_kept.get(name, -1)
                # The newest step is not removed while the framework writes it.
                late += [step for step in (steps if over else steps[:-1]) if step.number > last]
                steps = [step for step in steps if step.number <= last]
            if most is not None:
                # One step more than `keep`: the step that is being written, or that ended the recording.
                most += self.ended is not None or not over
                filled = [step for step in steps if holds_files(step.path)]
                # Empty steps do not count.
                first = filled[-most].number if len(filled) > most else -1
                old += [step for step in steps if step.number < first]
        return old, late

    def _check(self, all_steps: list[StepDirectory], over: bool) -> None:
        """Search complete steps for NaN and Inf, stream by stream in the order of steps, and stop at the first one."""
        for name, group in groupby(all_steps, key=lambda step: step.stream):
            steps = list(group)
            for step in steps if over else steps[:-1]:
                if step.number <= self._checked.get(name, -1):
                    continue
                self._checked[name] = step.number
                fault = self._first_fault(step.path)
                if fault is None:
                    continue
                before = [
                    candidate for candidate in all_steps if candidate.stream != name or candidate.number <= step.number
                ]
                self._end(Ended(fault.reason, step.number, fault.operator), before)
                log.warning("%s at step %d: the capture keeps it and records nothing more", fault.reason, step.number)
                return

    def _end(self, ended: Ended, last: list[StepDirectory]) -> None:
        self._last_kept = {step.stream: step.number for step in last}
        newest = max(self._last_kept.values(), default=None)
        self.ended = ended if ended.step is not None else ended._replace(step=newest)
        try:
            self._session.trigger(ended.reason)
            self._framework_stopped = True
        except NotSupported:
            log.info(
                "the framework cannot stop dumping: the steps that it still writes are removed until the capture ends"
            )

    def _first_fault(self, step: Path) -> Optional[Ended]:
        """Return the first NaN, Inf or overflow in the dump of a step, None if there is none.

        It is found in the recorded values or statistics, or, with scene="overflow", in the device's overflow reports.
        """
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
            fault, unknown = first_wrong(dump, IgnoredOperators(self._request.ignore))
            self.unknown += unknown
            if fault is not None:
                record = fault.record
                name = f"{record.op_name}.{record.io}.{record.index}"
                return Ended(f"{fault.what} in {name}", None, name)
        except ReadError as error:
            log.debug("a step could not be read: %s", error)
            self.unknown += 1
        return None
