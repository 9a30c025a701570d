"""The server side of `ascend-dump attach`: handles requests in the process to be captured, one capture at a time.

Requests arrive in the thread of `Listener`. In this thread only state is read, settings are checked and a capture is
armed, or cancelled before its first step. All other captures begin and end in the threads of the program.
"""

from __future__ import annotations

import logging
import os
import sys
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Callable, Optional

from ascend_dump.adapter import Adapter, Session, load, registered
from ascend_dump.attach._socket import fields_of
from ascend_dump.capturing.capture import Capture
from ascend_dump.common.paths import RunDirectory, holds_files, make_private_directory
from ascend_dump.common.problem import Problem
from ascend_dump.common.rank import current_rank
from ascend_dump.errors import AdapterNotFound, AscendDumpError, CaptureError, ConfigError
from ascend_dump.request import DumpRequest

__all__ = ["Attachment", "Attachments"]

log = logging.getLogger("ascend_dump")

#: Maximum number of bytes of the command line that are reported.
_COMMAND = 4000
#: Exceptions that third-party code may raise. SystemExit, because an imported module may call sys.exit().
_ANY = (Exception, SystemExit)


class Attachments:
    """The handler of requests of `ascend-dump attach` in the process to be captured.

    defaults: the settings of ASCEND_DUMP=wait,...; the settings of a request override them
    """

    def __init__(self, defaults: Mapping[str, Any]) -> None:
        self._defaults = defaults
        self._current: Optional[Attachment] = None
        self._count = 0

    def handle(self, request: dict[str, Any]) -> dict[str, Any]:
        """Handle one request and return the answer. Raises AscendDumpError if the request is refused."""
        verbs = {"look": self._look, "check": self._check, "begin": self._begin, "end": self._end}
        verb = verbs.get(str(request.get("verb")))
        if verb is None:
            raise ConfigError(
                f"the request has the unknown verb {request.get('verb')!r}",
                hint=f"expected one of {', '.join(verbs)}",
            )
        return verb(request)

    def forked(self) -> None:
        """Drop the parent's capture in a forked child."""
        current, self._current = self._current, None
        if current is not None:
            current.leave()

    def _look(self, request: dict[str, Any]) -> dict[str, Any]:
        rank = current_rank()
        return {
            "rank": rank.rank,
            "world": rank.world,
            "command": _command(),
            "idle": any(adapter.only_starts_others() for adapter in _imported()),
            "capture": None if self._current is None else self._current.state(),
        }

    def _check(self, request: dict[str, Any]) -> dict[str, Any]:
        """Return what `begin` would do with this request."""
        dump_request, adapter, problems = self._planned(request)
        rank = current_rank()
        return {
            "path": str(dump_request.path / rank.level),
            "steps": str(dump_request.steps),
            "count": dump_request.steps.count,
            "ranks": str(dump_request.ranks),
            "selected": rank.rank in dump_request.ranks,
            "adapter": adapter.name,
            "problems": [str(problem) for problem in problems],
        }

    def _begin(self, request: dict[str, Any]) -> dict[str, Any]:
        dump_request, adapter, _ = self._planned(request)
        self._count += 1
        current = Attachment(self._count, adapter, dump_request, request.get("peer"))
        current.arm()
        self._current = current
        return {"capture": current.state()}

    def _end(self, request: dict[str, Any]) -> dict[str, Any]:
        if self._current is None or not self._current.active:
            raise CaptureError(
                f"no capture is attached to process {os.getpid()}", hint="there is nothing to stop", code="AD306"
            )
        self._current.ask_to_end()
        return {}

    def _planned(self, request: dict[str, Any]) -> tuple[DumpRequest, Adapter, list[Problem]]:
        if self._current is not None and self._current.active:
            raise self._current.refusal()
        settings = request.get("settings")
        if not isinstance(settings, dict):
            raise ConfigError("the message has no settings", hint="use `ascend-dump attach`")
        default = request.get("default_path")
        base = {"path": default} if isinstance(default, str) else {}
        dump_request = DumpRequest.from_mapping({**base, **self._defaults, **settings})
        if dump_request.strict:
            raise ConfigError(
                "strict=True decides the exit code of a program, and this program already runs",
                hint="leave it out: `ascend-dump attach` ends with an error if nothing was recorded",
            )
        # The client may run in another directory.
        dump_request = dump_request.replace(path=Path(os.path.abspath(dump_request.path)))
        adapter = _adapter(request.get("framework"))
        adapter.may_attach(dump_request)
        run = RunDirectory.planned(dump_request.path, current_rank(), launched=True)
        problems = adapter.check(dump_request, None, run)
        refused = [problem for problem in problems if problem.severity == "error"]
        if refused:
            raise ConfigError(
                "\n".join(map(str, problems)), hint="nothing was started; see the hints above", code=refused[0].code
            )
        make_private_directory(dump_request.path)
        return dump_request, adapter, problems


def _adapter(name: Any) -> Adapter:
    """Return the named adapter, or else the best adapter of an imported framework.

    Adapters that yield to another imported adapter (`yields_to`) are left out. Of the others, the adapter with the
    highest priority is the best.
    """
    if name is not None and not isinstance(name, str):
        raise ConfigError(f"framework={name!r}: expected a name", hint="such as 'torch'")
    chosen = None if name is None else load(name)
    adapters = [adapter for adapter in _imported() if chosen in (None, adapter)]
    if not adapters:
        what = "framework that can be captured" if name is None else f"module of {name!r}"
        raise AdapterNotFound(
            f"process {os.getpid()} has imported no {what} yet", hint="attach later, or start it with `ascend-dump run`"
        )
    names = {adapter.name for adapter in adapters}
    first = [adapter for adapter in adapters if not names.intersection(adapter.yields_to)]
    return max(first or adapters, key=lambda adapter: adapter.priority)


def _imported() -> list[Adapter]:
    """Return the adapters of the frameworks that this process has imported."""
    adapters = []
    for name in registered():
        try:
            adapter = load(name)
        except AscendDumpError:  # was reported when the process started
            continue
        if any(module in sys.modules for module in adapter.process_hooks):
            adapters.append(adapter)
    return adapters


class Attachment:
    """One attached capture: the `Begin` that its adapter calls, and its state for the client."""

    def __init__(self, number: int, adapter: Adapter, request: DumpRequest, peer: Optional[int]) -> None:
        self.number = number
        self.request = request
        #: True once no further step may be recorded.
        self.over = False
        self._adapter = adapter
        self._peer = peer
        self._since = time.time()
        self._cancel: Callable[[], bool] = lambda: False
        self._capture: Optional[_AttachedCapture] = None
        self._session: Optional[Session] = None
        self._failure: Optional[Exception] = None
        #: The final state once the capture has ended, because objects of the program are released then.
        self._final: Optional[dict[str, Any]] = None
        self._ends = threading.Lock()

    @property
    def active(self) -> bool:
        return self._final is None

    def arm(self) -> None:
        """Let the capture begin at the next call of a model. Raises NotSupported."""
        self._cancel = self._adapter.attach(self)

    def __call__(self, target: Any = None, *, model: str = "") -> Optional[Session]:
        capture = _AttachedCapture(target, self.request, framework=self._adapter.name, launched=True, model=model)
        capture.failed_at_exit = self._note
        self._capture = capture
        try:
            self._session = capture.begin()
        except _ANY as error:
            self._note(error if isinstance(error, Exception) else CaptureError(repr(error)))
            log.warning("nothing is dumped: %s", error)
            log.debug("starting the capture failed", exc_info=True)
        return self._session

    def done(self, failure: Optional[Exception] = None) -> None:
        """Finish the dump after the last step; the process then waits again.

        Called in a thread of the program; before the first step by `ask_to_end`.
        """
        with self._ends:
            if not self.active:
                return
            if failure is not None:
                self._note(failure)
            try:
                if self._capture is not None:
                    self._capture.stop()
            except Exception as error:  # also exceptions of work that the program has queued on a device
                self._note(error)
                log.warning("%s", error)
            finally:
                self._release(self._current_state(ended=True))

    def _release(self, final: dict[str, Any]) -> None:
        self._final = final
        self._cancel, self._capture, self._session = (lambda: False), None, None

    def ask_to_end(self) -> None:
        """Stop after the open step, or at once if no step has begun."""
        self.over = True
        if self._cancel():
            self.done()

    def leave(self) -> None:
        """Release the parent's capture in a forked child. The adapter removes its hooks itself."""
        self.over = True
        self._ends = threading.Lock()  # another thread of the parent may have held it at the fork
        self._cancel()
        self._release({})  # computing its state could wait for locks that threads of the parent hold

    def refusal(self) -> CaptureError:
        """Return the error for a second `attach` while this capture is active."""
        by = f" by process {self._peer}" if self._peer else ""
        since = time.strftime("%H:%M:%S", time.localtime(self._since))
        state = self.state()
        begun = "" if state["begun"] is None else f", {state['begun']} begun so far"
        return CaptureError(
            f"process {os.getpid()} was attached to{by} at {since}: steps={self.request.steps} into {state['path']}"
            f"{begun}",
            hint=f"wait until it ends, or stop it with `ascend-dump attach --stop {os.getpid()}`",
            code="AD302",
        )

    def state(self) -> dict[str, Any]:
        """Return state and progress as JSON values. May be called in any thread."""
        final = self._final
        if final is not None:
            return final
        current = self._current_state(ended=False)
        return self._final or current

    def _current_state(self, *, ended: bool) -> dict[str, Any]:
        capture, session = self._capture, self._session
        tally = None if session is None else session.tally()
        begun = 0 if session is None else None if tally is None else tally.begun
        failure = self._failure or (None if capture is None else capture.first_problem)
        return {
            "number": self.number,
            "state": "ended" if ended else "waiting" if session is None else "recording",
            "path": str(self.request.path if session is None else session.root),
            "steps": str(self.request.steps),
            "count": self.request.steps.count,
            "begun": begun,
            "records": None if tally is None else tally.records,
            "seen": None if tally is None else tally.seen,
            "wrote": session is not None and ended and holds_files(Path(session.root)),
            "failure": None if failure is None else fields_of(failure),
        }

    def _note(self, error: Exception) -> None:
        if self._failure is None:
            self._failure = error


class _AttachedCapture(Capture):
    """A capture that remembers the first problem that it reports, for the client."""

    first_problem: Optional[AscendDumpError] = None

    def _report_failure(self, error: AscendDumpError) -> None:
        self.first_problem = self.first_problem or error
        super()._report_failure(error)


def _command() -> list[str]:
    """Return the command line as `ps` shows it, cut to 4000 bytes. Servers write the role of a process into it."""
    try:
        words = Path("/proc/self/cmdline").read_bytes()[:_COMMAND].rstrip(b"\0 ").split(b"\0")
        return [word.decode(errors="backslashreplace") for word in words]
    except OSError:
        return [" ".join(sys.argv)[:_COMMAND]]
