"""A session that makes each call of a decorated function one step, although the framework counts steps of its own.

Each selected call has a directory `call_{number}` inside the run's directory. The directory contains a marker file,
from which the reader takes the call's number as the step of every record below.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Optional

from ascend_dump.adapter import Repeats, Session, tell_of_empty
from ascend_dump.common.counters import Tally
from ascend_dump.common.paths import (
    RunDirectory,
    add_private_directory,
    holds_files,
    make_private_directory,
    mark_call,
    move,
    remove_directory,
    remove_file,
    remove_tree,
)
from ascend_dump.errors import AdapterError, AscendDumpError, CaptureError
from ascend_dump.writing.step_trees import find_steps

if TYPE_CHECKING:
    from ascend_dump.adapter import Adapter
    from ascend_dump.request import DumpRequest

__all__ = ["CallsSession"]


class CallsSession(Session):
    """The session of a decorated function: starts and stops a session of the framework around each selected call.

    `step(number)` is called for every call, selected or not. If the framework's session can start only once
    (`Adapter.repeats`), it runs from the first call to the last. Then the new files after each selected call are moved
    to the directory of that call, and the files of other calls are removed.
    """

    step_directories = re.compile(r"call_(\d{1,18})", re.ASCII)

    def __init__(self, adapter: Adapter, request: DumpRequest, target: Any, run: RunDirectory) -> None:
        self.root = run.path
        self._adapter, self.request, self._target, self._run = adapter, request, target, run
        #: The request for the session of a single call: it selects all steps that the framework counts in the call.
        self._call_request = request.replace(steps=None, keep=None, until=None)
        #: Number of the last recorded call, if `trigger` ended the recording before the end of the capture.
        self._last_call: Optional[int] = None
        self._pid = os.getpid()
        self._session: Optional[Session] = None
        self._number: Optional[int] = None
        self._calls = 0
        #: Selected calls for which the session failed with AD303: nothing was written.
        self._empty: set[int] = set()
        self._armed = False
        self._reasons: Optional[list[str]] = []
        self._marks: dict[str, Mapping[str, Any]] = {}
        #: The counters of the recorded calls. None with `keep=`, if the session of a call has no counters, and if the
        #: framework cannot be captured again at any time (`Repeats.ALWAYS`).
        self._tallies: Optional[list[Tally]] = [] if request.keep is None else None
        self._shared_directory = run.path / "calls"
        #: The call that each step directory of the framework belongs to (None: no selected call). It is remembered
        #: because the framework may write files into the directory after the call.
        self._owners: dict[str, Optional[int]] = {}

    @property
    def config(self) -> Optional[str]:  # type: ignore[override]  # in the session of the current call
        return None if self._session is None else self._session.config

    def step(self, number: Optional[int]) -> None:
        if number is None:
            self._end_call()
            return
        selected = self.selects_step(number)
        self._number, self._calls = number, self._calls + 1
        if self._adapter.repeats is Repeats.NEVER:
            if self._session is None:
                add_private_directory(self._shared_directory)
                self._begin(self._run.within("calls"))
            else:
                self._move_files(None)
        elif selected or (self._adapter.repeats is Repeats.RESUMED and not self._armed):
            call_run = self._run.of_call(number)
            mark_call(call_run.path, number)
            self._begin(call_run)

    def trigger(self, reason: str) -> None:
        """Record no call after the current one, or, between two calls, after the last one that ran."""
        if self._last_call is None:
            number = self._number
            self._last_call = self._calls - 1 if number is None else number

    def is_past(self, number: Optional[int]) -> bool:
        return number is not None and self._last_call is not None and number > self._last_call

    def _existing_calls(self) -> Iterator[int]:
        """Yield the numbers of the calls that have a directory."""
        for step in find_steps(self.root, self.step_directories):
            yield step.number

    def _begin(self, call_run: RunDirectory) -> None:
        try:
            self._session = self._adapter.start(self._call_request, self._target, call_run)
        except AscendDumpError as error:
            remove_tree(call_run.path)
            if self._calls == 1:
                raise
            super().fail(error)

    def _end_call(self) -> None:
        session, number, self._number = self._session, self._number, None
        if session is None or number is None:
            return
        selected = self.selects_step(number)
        if self._adapter.repeats is Repeats.NEVER:
            session.settle()
            session.flush()
            self._move_files(number if selected else None)
            return
        self._session = None
        directory = self._run.of_call(number).path
        try:
            session.settle()
        finally:
            self._stop(session)
            if selected and session.failure is not None and session.failure.code == "AD303":
                self._empty.add(number)
            self._armed = self._armed or holds_files(directory)
            if not selected and os.getpid() == self._pid:
                remove_tree(directory)

    def _stop(self, session: Session) -> None:
        try:
            session.stop()
        except AscendDumpError as error:
            super().fail(error)
            return
        except Exception as error:
            failure = AdapterError(
                f"the adapter {self._adapter.name} could not end the capture of a call: {error!r}",
                hint="the files written before can be read; please report this with the traceback of the cause",
            )
            failure.__cause__ = error
            super().fail(failure)
            return
        self._marks.update(session.marks())
        tally = session.tally()
        if tally is None or self._adapter.repeats is not Repeats.ALWAYS:
            self._tallies = None
        elif self._tallies is not None:
            # The call is one step, whatever number of steps the framework counted in it.
            self._tallies.append(tally._replace(steps=min(tally.steps, 1), begun=1))
        self._reasons = session.reasons()
        # AD303: an empty call is not a failure yet. `stop` checks whether the whole run is empty.
        if session.failure is not None and session.failure.code != "AD303":
            super().fail(session.failure)

    def fail(self, failure: AscendDumpError) -> None:
        super().fail(failure)
        if self._session is not None:
            self._session.fail(failure)

    def settle(self) -> None:
        if self._session is not None:
            self._session.settle()

    def flush(self) -> None:
        if self._session is None:
            return
        self._session.flush()
        if self._adapter.repeats is Repeats.NEVER and os.getpid() == self._pid:
            number = self._number
            self._move_files(number if self.selects_step(number) else None)

    def marks(self) -> Mapping[str, Mapping[str, Any]]:
        return {**self._marks, **({} if self._session is None else self._session.marks())}

    def tally(self) -> Optional[Tally]:
        return None if self._tallies is None else Tally.of_all(self._tallies)

    def reasons(self) -> Optional[list[str]]:
        return self._reasons

    def stop(self) -> None:
        session, self._session = self._session, None
        if session is not None:
            self._stop(session)
        if os.getpid() != self._pid:
            return
        if self._adapter.repeats is Repeats.NEVER:
            self._move_files(self._number)
            _remove_empty(self._shared_directory)
        # With `keep=`, calls before the first existing directory were removed, so they do not count as empty.
        first = min(self._existing_calls(), default=0) if self.request.keep is not None else 0
        selected = [number for number in range(first, self._calls) if self.selects_step(number)]
        empty = [number for number in selected if number in self._empty or not self._wrote(number)]
        if len(empty) < len(selected):
            # The reasons are None if an empty call is a normal result, as with scene="overflow".
            if self._reasons is not None and self.failure is None:
                tell_of_empty("call", len(empty), min(empty, default=None), self._reasons[0] if self._reasons else "")
        elif self.failure is None:
            self.failure = self._nothing_written()

    def _wrote(self, number: int) -> bool:
        return holds_files(self._run.of_call(number).path)

    def _nothing_written(self) -> Optional[CaptureError]:
        last = self.request.steps
        if not any(number in last for number in range(self._calls)):
            reasons = [f"steps={last} was not reached: {self._calls} call{'' if self._calls == 1 else 's'}"]
        elif self._reasons is None:
            return None
        else:
            reasons = self._reasons or ["no selected operator ran"]
        listed = "".join(f"\n  - {reason}" for reason in reasons)
        return CaptureError(f"the capture wrote nothing{listed}", hint="see `ascend-dump explain AD303`", code="AD303")

    def _move_files(self, number: Optional[int]) -> None:
        """Move new files into the directory of call `number`; None: the call is not selected, so delete them."""
        from ascend_dump.reading.sources import is_graph_file

        for file in list(_files(self._shared_directory)):
            if is_graph_file(file.name):
                continue  # a graph file belongs to all calls
            relative_path = file.relative_to(self._shared_directory)
            owner = number
            if relative_path.parent.name.isdecimal():
                owner = self._owners.setdefault(os.fspath(relative_path.parent), number)
            with contextlib.suppress(FileNotFoundError):
                if owner is None:
                    remove_file(file)
                    continue
                call_directory = self._run.of_call(owner).path
                if not call_directory.exists():
                    mark_call(call_directory, owner)
                destination = call_directory / relative_path
                make_private_directory(destination.parent)
                move(file, destination)


def _files(root: Path) -> Iterator[Path]:
    for directory, _, names in os.walk(root):
        for name in names:
            yield Path(directory, name)


def _remove_empty(root: Path) -> None:
    for directory, _, _ in os.walk(root, topdown=False):
        remove_directory(directory)
