"""The calls of a decorated function as steps, for frameworks that count steps of their own.

Each selected call has a directory in that of the run, `call_{number}`. From the marker in it the reader takes the
number of the call as the step of every record below.
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
    """One capture of a decorated function. `step(number)` runs for every call and selects the calls to record.

    A session that can start only once (`Adapter.repeats`) runs from the first call to the last: after each selected
    call its new files are moved to its directory; files of other calls are removed.
    """

    step_directories = re.compile(r"call_(\d{1,18})", re.ASCII)

    def __init__(self, adapter: Adapter, request: DumpRequest, target: Any, run: RunDirectory) -> None:
        self.root = run.path
        self._adapter, self.request, self._target, self._run = adapter, request, target, run
        #: The request of a single call: all steps that the framework counts within it.
        self._each = request.replace(steps=None, keep=None, until=None)
        #: The last call that is recorded, where the recording ended before the capture did.
        self._last: Optional[int] = None
        self._pid = os.getpid()
        self._session: Optional[Session] = None
        self._number: Optional[int] = None
        self._calls = 0
        #: Selected calls that the framework itself reports as empty.
        self._empty: set[int] = set()
        self._armed = False
        self._reasons: Optional[list[str]] = []
        self._marks: dict[str, Mapping[str, Any]] = {}
        #: Of the calls that stay, None where one of them counts nothing.
        self._tallies: Optional[list[Tally]] = [] if request.keep is None else None
        self._common = run.path / "calls"
        #: The call that each step directory of the framework belongs to; files may still arrive after the call.
        self._owners: dict[str, Optional[int]] = {}

    @property
    def config(self) -> Optional[str]:  # type: ignore[override]  # of the session of this call
        return None if self._session is None else self._session.config

    def step(self, number: Optional[int]) -> None:
        if number is None:
            self._end_call()
            return
        selected = self.selects_step(number)
        self._number, self._calls = number, self._calls + 1
        if self._adapter.repeats is Repeats.NEVER:
            if self._session is None:
                add_private_directory(self._common)
                self._begin(self._run.within("calls"))
            else:
                self._sort(None)
        elif selected or (self._adapter.repeats is Repeats.RESUMED and not self._armed):
            call_run = self._run.of_call(number)
            mark_call(call_run.path, number)
            self._begin(call_run)

    def trigger(self, reason: str) -> None:
        """Record no call after the one that runs, or that was the last one."""
        if self._last is None:
            number = self._number
            self._last = self._calls - 1 if number is None else number

    def is_past(self, number: Optional[int]) -> bool:
        return number is not None and self._last is not None and number > self._last

    def _there(self) -> Iterator[int]:
        """Yield the numbers of the calls that have a directory."""
        for step in find_steps(self.root, self.step_directories):
            yield step.number

    def _begin(self, call_run: RunDirectory) -> None:
        try:
            self._session = self._adapter.start(self._each, self._target, call_run)
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
            self._sort(number if selected else None)
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
                hint="what it wrote until then can be read; please report this with the traceback of the cause",
            )
            failure.__cause__ = error
            super().fail(failure)
            return
        self._marks.update(session.marks())
        tally = session.tally()
        if tally is None or self._adapter.repeats is not Repeats.ALWAYS:
            self._tallies = None
        elif self._tallies is not None:
            # However the framework counts in it, the call is the step.
            self._tallies.append(tally._replace(steps=min(tally.steps, 1), begun=1))
        self._reasons = session.reasons()
        # An empty call is no failure by itself: the run is looked at when it ends.
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
            self._sort(number if self.selects_step(number) else None)

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
            self._sort(self._number)
            _remove_empty(self._common)
        # Those before the first one that is there were removed, or nothing was written at all.
        first = min(self._there(), default=0) if self.request.keep is not None else 0
        selected = [number for number in range(first, self._calls) if self.selects_step(number)]
        empty = [number for number in selected if number in self._empty or not self._wrote(number)]
        if len(empty) < len(selected):
            if self._reasons is not None and self.failure is None:  # with scene="overflow" an empty call is no finding
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

    def _sort(self, number: Optional[int]) -> None:
        """Move new files into the directory of call `number`; None: the call is not selected, so delete them."""
        from ascend_dump.reading.sources import is_graph_file

        for file in list(_files(self._common)):
            if is_graph_file(file.name):
                continue  # the graphs of all calls
            inside = file.relative_to(self._common)
            owner = number
            if inside.parent.name.isdecimal():
                owner = self._owners.setdefault(os.fspath(inside.parent), number)
            with contextlib.suppress(FileNotFoundError):
                if owner is None:
                    remove_file(file)
                    continue
                call_directory = self._run.of_call(owner).path
                if not call_directory.exists():
                    mark_call(call_directory, owner)
                destination = call_directory / inside
                make_private_directory(destination.parent)
                move(file, destination)


def _files(root: Path) -> Iterator[Path]:
    for directory, _, names in os.walk(root):
        for name in names:
            yield Path(directory, name)


def _remove_empty(root: Path) -> None:
    for directory, _, _ in os.walk(root, topdown=False):
        remove_directory(directory)
