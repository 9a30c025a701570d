"""Capture: one object that is a context manager, a decorator and a start()/stop() pair.

It does the work that is common to all frameworks: it chooses the adapter, decides whether this rank is recorded,
creates the directory, and reports problems and empty dumps.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import os
import sys
import time
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Any, Callable, Optional, Protocol, TypeVar

from ascend_dump.adapter import Adapter, Repeats, Session, at_exit, choose
from ascend_dump.capturing._call_gate import CallGate
from ascend_dump.capturing._calls import CallsSession
from ascend_dump.capturing._decorated_call import DecoratedCall
from ascend_dump.capturing._recorder import StepRecorder
from ascend_dump.capturing._summary import Progress, tell
from ascend_dump.common.log import give_messages_a_name
from ascend_dump.common.paths import (
    RunDirectory,
    holds_files,
    is_disk_failure,
    make_private_directory,
    remove_directory,
    remove_tree,
)
from ascend_dump.common.problem import Problem
from ascend_dump.common.rank import Rank, current_rank, is_selected
from ascend_dump.common.run_manifest import Mark
from ascend_dump.errors import AdapterError, AscendDumpError, CaptureError, ConfigError, NotSupported, WriteError
from ascend_dump.request import DumpRequest
from ascend_dump.writing.budget import explain

if TYPE_CHECKING:
    from types import TracebackType

    from typing_extensions import ParamSpec

    from ascend_dump.reading import Dump

    _P = ParamSpec("_P")
    _R = TypeVar("_R", covariant=True)

    class Decorated(Protocol[_P, _R]):
        """A decorated function. It is called like the original function; `capture` is its capture."""

        @property
        def capture(self) -> Capture: ...

        def __call__(self, *args: _P.args, **kwargs: _P.kwargs) -> _R: ...

        def __get__(self, instance: Any, owner: Any = None) -> Callable[..., _R]: ...


__all__ = ["Capture"]

log = logging.getLogger("ascend_dump")


class _State(Enum):
    """The state of a capture. On a rank that `ranks=` does not select, an active capture has no session."""

    IDLE = "idle"  # not started, or ended
    ACTIVE = "active"


class Capture:
    """One dump of one target. Create it with `capture`.

    path      the directory that this capture writes to; it exists after the start, if `ranks=` selects this rank.
              Before, reading it raises CaptureError
    problems  the problems that the check before the start found, a list of `Problem`
    config    path of the file that the program has to pass to the framework to switch the dump on; None if that is
              not necessary

    >>> with ascend_dump.capture(model, path="dumps") as cap:   # doctest: +SKIP
    ...     model(batch)
    >>> cap.path, cap.problems, len(cap.dump())                 # doctest: +SKIP
    """

    def __init__(
        self,
        target: Any,
        request: DumpRequest,
        *,
        framework: Optional[str] = None,
        launched: bool = False,
        model: str = "",
    ) -> None:
        """Take the settings; nothing starts. launched, model: see `RunDirectory`. `begin` starts a launched capture."""
        self.request = request
        self.problems: list[Problem] = []
        self._target = target
        self._framework = framework
        self._strict = request.strict
        self._launched = launched
        self._model = model
        self._adapter: Optional[Adapter] = None
        #: The running session, or the last one; None if `ranks=` does not select this rank.
        self._session: Optional[Session] = None
        self._path: Optional[Path] = None
        self._state = _State.IDLE
        self._mark: Optional[Mark] = None
        self._recorder: Optional[StepRecorder] = None
        self._progress: Optional[Progress] = None
        self._rank = Rank(0, 1)
        #: Time of the start, in seconds of `time.monotonic`.
        self._start_time = 0.0
        self._step = 0
        #: True if the program has to call `step` to begin steps, and has not done so yet.
        self._expects_step = False
        self._each_call: Optional[bool] = None
        #: For decorated functions: True to arm at the first call, even if `steps=` does not select that call.
        self._arms_at_first_call = False
        self._call_gate = CallGate()
        self._process = 0
        self._cancel_exit_hook: Callable[[], None] = _do_nothing
        #: Called with a failure at the end of the process, where an exception would reach no code of the user.
        self.failed_at_exit: Callable[[Exception], object] = _log

    @property
    def path(self) -> Path:
        if self._path is None:
            raise CaptureError("this capture has not started, so it has no path yet", hint="enter it or call start()")
        return self._path

    @property
    def active(self) -> bool:
        return self._state is _State.ACTIVE

    @property
    def config(self) -> Optional[str]:
        # A str, because native interfaces such as acl.init accept no Path.
        session = self._running
        return None if session is None else session.config

    def start(self) -> Capture:
        """Arm the dump and return this object.

        Raises CaptureError if the capture is active already, ConfigError for settings that the framework would refuse,
        WriteError if the path cannot be used. If the disk is full or fails, that is reported and nothing is dumped;
        with `strict` it raises WriteError instead.
        """
        adapter, session = self._arm()
        if session is not None and not adapter.counts_steps(self._target):
            self._begin_step(session, 0)
            # With options={"step": …} the optimizer's steps are counted, so the program need not call step().
            self._expects_step = "step" not in self.request.options
        return self

    def begin(self) -> Optional[Session]:
        """Arm the dump as `start` does, but leave it to the caller to begin steps.

        Returns the session, None if `ranks=` does not select this rank. Raises the errors of `start`, and the OSError
        of a full or failing disk.
        """
        return self._arm(tolerant=False)[1]

    def stop(self) -> None:
        """Disarm the dump, finish the files and report the result. Does nothing if the capture is not active.

        Waits for the work that the program has queued on a device, and raises the exceptions of that work.
        """
        if not self.active:
            return
        self._state = _State.IDLE
        self._cancel_exit_hook()
        session = self._session
        if session is None:
            return
        if os.getpid() != self._process:
            self._detach_child(session)
            return
        try:
            session.settle()
        finally:
            self._end(session)

    def _detach_child(self, session: Session) -> None:
        """Disarm in a forked child, without a report: the process that started the capture finishes its files."""
        try:
            session.stop()
        except Exception:
            log.debug("stopping failed in a forked process", exc_info=True)

    def _end(self, session: Session) -> None:
        if self._progress is not None:
            self._progress.stop()
        try:
            try:
                session.stop()
            finally:
                if self._recorder is not None:
                    self._recorder.stop()
        except AscendDumpError as error:
            if self._mark is not None:
                self._mark.end(error, self._kept())
            # For example, the manifest could not be written for the same reason as the records before.
            error.reported = error.reported or (session.failure is not None and session.failure.code == error.code)
            self._report_failure(error)
            return
        except Exception as error:
            name = self._adapter.name if self._adapter is not None else ""
            failure_to_end = AdapterError(
                f"the adapter {name} could not end the capture: {error!r}",
                hint="the files written before can be read; please report this with the traceback of the cause",
            )
            failure_to_end.__cause__ = error
            log.debug("stopping failed", exc_info=True)
            self._report_failure(failure_to_end)
            return
        failure = session.failure
        if failure is None and not holds_files(self.path):
            reasons = session.reasons()
            if reasons is not None:
                failure = self._nothing_written(reasons or ["no selected operator ran"])
        if self._mark is not None:
            self._mark.end(failure, self._kept())
        if failure is None or failure.code != "AD303":
            self._log_summary(session, failure)
        if failure is None and self._expects_step:
            failure = self._steps_without_effect(session)
        if failure is not None:
            self._report_failure(failure)

    def _steps_without_effect(self, session: Session) -> Optional[CaptureError]:
        """Return the error of a program that selected other steps than 0, and never called `step`; else None."""
        steps, tally = self.request.steps, session.tally()
        if steps.all or steps.last == 0 or (tally is not None and tally.begun != 1):
            return None
        return CaptureError(
            f"steps={steps} has no effect: cap.step() was not called, so all records have step 0",
            hint="call cap.step() where the next step begins, give capture() a model, or decorate a function",
            code="AD307",
        )

    def _log_summary(self, session: Session, failure: Optional[AscendDumpError]) -> None:
        seconds = time.monotonic() - self._start_time
        try:
            tell(self.path, self.request, self._rank, session, seconds=seconds, failure=failure)
        except Exception:  # an error here must not stop the program
            log.debug("the summary of the capture could not be made", exc_info=True)

    def _kept(self) -> dict[str, Any]:
        return {} if self._recorder is None else self._recorder.kept()

    def step(self) -> None:
        """Begin the next step. Not for a capture of a model or function, because there each call is a step.

        Raises CaptureError if the capture is not active, NotSupported if the calls of the target are the steps.
        """
        if not self.active:
            raise CaptureError("step() was called on a capture that is not active", hint="call it inside the block")
        session = self._running
        if session is None:  # this rank is not selected
            return
        if self._adapter is not None and self._adapter.counts_steps(self._target):
            raise NotSupported(
                f"step() was called, but {self._adapter.name} counts the steps of this target: each top-level call is "
                "one step",
                hint="leave out cap.step(), or capture without a target",
            )
        self._step += 1
        self._expects_step = False
        self._begin_step(session, self._step)

    def trigger(self, reason: str) -> None:
        """Stop recording after the open step; this step and the `keep` steps before it stay on disk.

        reason: what happened, such as "loss spike"; the manifest and `ascend-dump ls` show it. Later calls do nothing.
        Other ranks continue to record.

        Raises CaptureError if the capture is not active, ConfigError for an empty reason, NotSupported if the
        framework cannot stop dumping.
        """
        if not isinstance(reason, str) or not reason.strip():
            raise ConfigError(f"trigger({reason!r}): expected a text, the reason", hint='for example "loss spike"')
        if not self.active:
            raise CaptureError(
                "trigger() was called on a capture that is not active", hint="call it inside the block, or in a step"
            )
        if self._recorder is not None:  # None: this rank is not selected
            self._recorder.trigger(reason.strip())

    def dump(self) -> Dump:
        """Return the dump with all records that were captured so far. May be called inside and after the block."""
        from ascend_dump.reading import Dump, open_dump

        path = self.path
        if self._running is not None:
            self._running.flush()
        if not holds_files(path):
            return Dump(path, [])
        return open_dump(path).marked({} if self._session is None else self._session.marks())

    def __repr__(self) -> str:
        directory = self.request.path if self._path is None else self._path
        state = self._state.value if self._path is None or self.active else "ended"
        return f"<Capture {directory} ({state})>"

    def __enter__(self) -> Capture:
        return self.start()

    def __exit__(
        self,
        kind: Optional[type[BaseException]],
        error: Optional[BaseException],
        trace: Optional[TracebackType],
    ) -> None:
        self._leave_block(error)

    def _leave_block(self, error: Optional[BaseException]) -> None:
        """Stop the capture at the end of the block or of the last call. error: the exception that ended it, or None."""
        self._note_interruption(error)
        self._trigger_by(error)
        self._expects_step = self._expects_step and error is None
        try:
            self.stop()
        except AscendDumpError as failure:
            if error is None:
                raise
            # Only logged, so that the program's own exception is raised.
            log.warning("%s", failure)

    def __call__(self, function: Callable[_P, _R]) -> Decorated[_P, _R]:
        """Decorate a plain or async function or a method, so that each call is one step.

        If the target or the framework counts steps too, all steps that it counts in a call are that one step. Raises
        ConfigError for classes, and for generator functions, whose calls return before their body runs.
        """
        from ascend_dump.capturing._decorator import decorate  # loads wrapt

        decorated: Decorated[_P, _R] = decorate(function, self, functools.partial(DecoratedCall, self._call_gate, self))
        return decorated

    @property
    def _running(self) -> Optional[Session]:
        return self._session if self.active else None

    def _arm(self, *, calls: bool = False, tolerant: bool = True) -> tuple[Adapter, Optional[Session]]:
        """Choose the adapter, check the request and start the session; return the adapter and the session.

        The session is None if this rank is not selected, or if the disk failed.

        calls: True if the steps are the calls of a decorated function, whatever the framework counts
        tolerant: True to report a failing disk, False to raise an error for it
        """
        if self.active:
            raise CaptureError(
                "this capture is active already",
                hint="stop() it first, or create a second capture for a second dump",
            )
        give_messages_a_name()
        if self.request.quiet:
            from ascend_dump.statistics import compile_quietly

            compile_quietly()
        adapter = choose(self._target, self._framework)
        rank = current_rank()
        run = RunDirectory.planned(self.request.path, rank, launched=self._launched, model=self._model)
        session = self._recorder = None
        self.problems = []
        try:
            self.problems = adapter.check(self.request, self._target, run)
            self._report_problems()
            if is_selected(rank, self.request.ranks):
                created = run.make()
                session = self._start(adapter, created, calls)
                self._path = session.root
                request = self.request
                self._mark = Mark(
                    self._path,
                    adapter.name,
                    scene=request.scene,
                    keep=request.keep,
                    until=request.until,
                    label=request.label,
                )
                self._recorder = StepRecorder(session, self.request)
                self._rank, self._start_time = rank, time.monotonic()
                self._progress = Progress(session, self.request, rank)
                self._process = os.getpid()
                self.end_at_exit()
            else:
                make_private_directory(self.request.path)
                self._path = run.path.parent
        except OSError as error:
            if not tolerant:
                raise
            self._report_disk_failure(error, run.path)
            self._path = run.path
        self._session, self._adapter = session, adapter
        self._step = 0
        self._state = _State.ACTIVE
        return adapter, session

    def _start(self, adapter: Adapter, run: RunDirectory, calls: bool) -> Session:
        if calls:
            return CallsSession(adapter, self.request, self._target, run)
        try:
            return adapter.start(self.request, self._target, run)
        except BaseException:
            if not holds_files(run.path):
                remove_tree(run.path)
            raise

    def _begin_step(self, session: Session, number: Optional[int]) -> None:
        """Call `Session.step`. If the disk fails, the dump ends, but not the program."""
        try:
            session.step(number)
        except OSError as error:
            session.fail(self._report_disk_failure(error, session.root, running=session))
            with contextlib.suppress(NotSupported):
                session.trigger("the disk is full or failed")

    def _report_disk_failure(self, error: OSError, path: Path, *, running: Optional[Session] = None) -> WriteError:
        """Turn an error of the disk into a reported WriteError, and return it, so that the program continues.

        With a running session, any OSError counts as an error of the disk; without one, only a full or failing disk.
        The WriteError is logged unless the session failed before. Other errors are raised again; `strict` raises all.
        """
        cause = error.__cause__ if isinstance(error, WriteError) else error
        # Our other errors concern the arguments of `capture`, such as a file that cannot be read.
        if self._strict or not isinstance(cause, OSError) or isinstance(cause, AscendDumpError):
            raise error
        if running is None and not is_disk_failure(cause):
            raise error
        failure = explain(cause, path)
        if running is None or running.failure is None:
            log.warning("%s", failure)
        failure.reported = True
        return failure

    def _report_problems(self) -> None:
        refused = [problem for problem in self.problems if problem.severity == "error"]
        if self._strict:
            refused += [problem for problem in self.problems if problem.severity == "silent"]
        if refused:
            # The other problems are listed too, so that the user can correct all of them at once.
            remaining = [problem for problem in self.problems if problem not in refused]
            raise ConfigError(
                "\n".join(str(problem) for problem in [*refused, *remaining]),
                hint="nothing was started; see the hints above",
                code=refused[0].code,
            )
        for problem in self.problems:
            log.warning("%s", problem)

    def _report_failure(self, error: AscendDumpError) -> None:
        if self._strict:
            raise error
        if not error.reported:
            log.warning("%s", error)

    def _nothing_written(self, reasons: list[str]) -> CaptureError:
        listed = "".join(f"\n  - {reason}" for reason in reasons)
        see = "see cap.problems, and " if self.problems and not self._launched else "see "
        return CaptureError(
            f"the capture wrote nothing{listed}", hint=f"{see}`ascend-dump explain AD303`", code="AD303"
        )

    def end_at_exit(self) -> None:
        """Stop the capture at the end of the process, unless it was stopped before. A second call does nothing."""
        if self._cancel_exit_hook is _do_nothing:
            cancel = at_exit(self.end)

            def once() -> None:
                self._cancel_exit_hook = _do_nothing
                cancel()

            self._cancel_exit_hook = once
            self._process = os.getpid()

    def end(self) -> None:
        """Stop the capture at the end of the process. Exceptions go to `failed_at_exit`, since no caller gets them."""
        try:
            if self._path is None and os.getpid() == self._process:
                give_messages_a_name()
                reason = (
                    f"steps={self.request.steps} was not reached: {self._step} call{'' if self._step == 1 else 's'}"
                )
                log.warning("%s", self._nothing_written([reason]))
            if os.getpid() == self._process:
                # sys.last_value is the exception that ended the program, if Python has printed one.
                self._trigger_by(getattr(sys, "last_value", None))
            self.stop()
        except Exception as error:
            self.failed_at_exit(error)

    def _captures_each_call(self) -> bool:
        """Return True if the target or framework counts steps: then a `CallsSession` makes each call one step."""
        if self._each_call is None:
            adapter = choose(self._target, self._framework)
            self._each_call = adapter.counts_steps(self._target)
            self._arms_at_first_call = self._each_call and adapter.repeats is not Repeats.ALWAYS
        return self._each_call

    @property
    def recording(self) -> bool:
        """True if a session is running: the capture is active, and this rank is selected."""
        return self._running is not None

    def begin_call(self) -> bool:
        """Count a call of a decorated function. Return True if `end_call` must follow the call.

        That is the case if the call is a step, or if the dump is armed in it because it is the first call.
        """
        each_call = self._captures_each_call()
        number = self._step
        self._step += 1
        steps = self.request.steps
        if number not in steps and (not self._arms_at_first_call or steps.end_before(number)):
            if self._path is None:
                # So that the end of the process reports it if no selected call is ever reached.
                self.end_at_exit()
            return False
        begun = self.active
        if not begun:
            self._arm(calls=each_call)
            self._step = number + 1
        if self._running is not None:
            try:
                self._begin_step(self._running, number)
            except BaseException:
                if not begun:
                    self._abandon()
                raise
        return True

    def end_call(self, error: Optional[BaseException]) -> None:
        """End the step of a call; after the last selected step, stop the capture. error: the exception of the call."""
        self._note_interruption(error)
        self._trigger_by(error)
        if self._running is not None:
            self._begin_step(self._running, None)
        if self.request.steps.end_before(self._step):
            self._leave_block(error)

    def _note_interruption(self, error: Optional[BaseException]) -> None:
        """Mark the session as failed if a KeyboardInterrupt ended the program, since its open step is incomplete."""
        session = self._running
        if not isinstance(error, KeyboardInterrupt) or session is None or session.failure is not None:
            return
        interruption = CaptureError(
            "the program was interrupted (KeyboardInterrupt) inside the capture",
            hint="the files written before can be read",
        )
        interruption.reported = True  # the user pressed Ctrl-C, so no message is needed
        session.fail(interruption)

    def _trigger_by(self, error: Optional[BaseException]) -> None:
        if self.active and self._recorder is not None:
            self._recorder.trigger_by(error)

    def _abandon(self) -> None:
        """Reset the capture if the first call of a decorated function could not begin its step."""
        self._state = _State.IDLE
        self._cancel_exit_hook()
        if self._session is not None:
            remove_directory(self._session.root)
        self._session = self._path = None


def _do_nothing() -> None:
    return None


def _log(error: Exception) -> None:
    log.warning("%s", error)
