"""Record a whole PyTorch program: the first call of a top-level module starts the capture and the first step."""

from __future__ import annotations

import os
import time
import weakref
from pathlib import Path
from typing import Any, Callable, Optional

import torch

from ascend_dump.adapter import Begin, at_exit
from ascend_dump.adapter.pytorch.base import is_torchrun
from ascend_dump.adapter.pytorch.calls import keep_hooks_quiet
from ascend_dump.adapter.pytorch.compiled import Root
from ascend_dump.adapter.pytorch.next_call import NextCall
from ascend_dump.adapter.pytorch.steps import ProcessSteps
from ascend_dump.adapter.pytorch.warmup import is_left_out
from ascend_dump.dump_format import Over
from ascend_dump_torch._check import compiled_problem
from ascend_dump_torch._session import TorchSession, log
from ascend_dump_torch._stack import follow_inference_mode
from ascend_dump_torch._step_summary import StepOutline
from ascend_dump_torch._updates import OptimizerSteps

__all__ = ["attach", "launch"]


def launch(begin: Begin) -> Callable[[], str]:
    keep_hooks_quiet()
    launched = _TorchLaunch(begin)
    _launches.add(launched)
    return launched.unused


def attach(begin: Begin) -> Callable[[], bool]:
    """Call `launch` at the next top-level call. Returns a function that cancels this."""
    return NextCall(begin, launch).cancel


class _TorchLaunch:
    """Starts the capture at the first step, and calls `enter_step` of its session for each step."""

    def __init__(self, begin: Begin) -> None:
        self._begin = begin
        self._unfollow = follow_inference_mode()
        self._session: Optional[TorchSession] = None
        self._told_compiled = False
        #: The number of the last step that the session has begun.
        self._entered: Optional[int] = None
        options = begin.request.options
        #: When the outline ends (`outline_until`). With "wrong" and "end" no step is recorded.
        self._until = options.get("outline_until", "recorded")
        self._records = self._until in ("recorded", "symptom")
        self._outline: Optional[StepOutline] = None
        self._cancel_end: Callable[[], None] = lambda: None
        if "outline" in options:
            self._outline = self._new_outline()
            self._cancel_end = at_exit(self._end_outline)
        self._updates = OptimizerSteps(self._updated) if options.get("step") == "optimizer" else None
        self._steps = ProcessSteps(
            self._called,
            self._returned if "outline" in options else None,
            self._skips_call,
            self._ended,
        )
        if options.get("outline_from_start") and self._records:
            self._enter(0, "process")

    def _ended(self) -> None:
        self._begin.done()
        if self._session is None or not self._session.armed:
            self._unfollow()

    def begin_again(self) -> None:
        """Start over in a forked child, which writes a dump of its own."""
        if self._begin.over:
            self._steps.end()
            return
        self._session = self._entered = None
        if self._updates is not None:
            self._updates.remove()
            self._updates = OptimizerSteps(self._updated)
        if self._outline is not None:
            self._outline.abandon()
            self._outline = self._new_outline()
        self._steps.begin_again()

    def _new_outline(self) -> StepOutline:
        request = self._begin.request
        return StepOutline(
            Path(request.options["outline"]),
            until_wrong=self._until == "wrong",
            reports_all=bool(request.options.get("outline_reports_all")),
            ignore=request.ignore,
            begins=self._begins_without_model,
        )

    def _end_outline(self) -> None:
        if self._outline is not None:
            self._outline.finish(Over.ENDED)

    def _wait(self) -> None:
        """Wait, so that `ascend-dump triage --run` can stop this program here."""
        if self._outline is not None and self._outline.over in (Over.WRONG, Over.RECORDED):
            time.sleep(self._begin.request.options.get("outline_wait", 0))

    def _returned(self, root: Root, result: Any) -> None:
        assert self._outline is not None, "the hook is installed only with an outline"
        self._outline.returned(root, result)

    def unused(self) -> str:
        return "" if not self._records or is_torchrun() else "it called no torch.nn.Module with parameters"

    def _skips_call(self) -> bool:
        if self._session is None:
            return is_left_out(bool(self._begin.request.options.get("skip_warmup")))
        return self._session.skips_call()

    def _updated(self) -> None:
        if self._session is not None:
            self._session.guard(self._session.enter_step, None)

    def _called(self, root: Root, step: Optional[int]) -> None:
        if self._begin.over:
            self._steps.end()
            return
        if self._updates is not None:
            step = self._updates.begins(not isinstance(root, torch.nn.Module) or root.training)
        if step is None or (self._outline is not None and self._outline.counts_itself):
            if self._session is not None:
                self._adopt(root)
            return
        if self._outline is not None:
            self._outline.begin(step)
        if not self._records:
            if self._outline is not None and self._outline.over:
                self._steps.end()
                self._wait()
            return
        was_recording = self._session is not None and self._session.recording
        model = type(root).__name__ if isinstance(root, torch.nn.Module) else root.__name__
        if not self._enter(step, model, root):
            return
        assert self._session is not None, "a step was entered"
        if self._session.recording and not was_recording and not self._steps.compiled:
            # The session's own hooks were not installed yet when this call began.
            self._session.guard(self._session.tracker.enter, root)
        if self._session.recording and self._steps.compiled and not self._told_compiled:
            self._told_compiled = True
            log.warning("%s", compiled_problem())
        self._end_if_past(step)

    def _begins_without_model(self, step: int) -> None:
        """Begin a step of a program in which no module with parameters begins the steps."""
        if self._records and not self._begin.over and self._enter(step, "process"):
            self._end_if_past(step)

    def _enter(self, step: int, model: str, root: Optional[Root] = None) -> bool:
        """Begin a step of the session; before the first step, start the session. Returns False if nothing is recorded.

        model: name of the model for the session; root: the module or function whose call begins the step, if any
        """
        if self._session is None:
            session = self._begin(model=model)
            if not isinstance(session, TorchSession):
                self._steps.end()
                if self._outline is not None:
                    self._outline.finish(Over.FAILED, "this process is not recorded")
                return False
            self._session = session
            if self._outline is not None:
                self._outline.report = session.note_symptom
                # Of the functions that run at the end of the process, the last registered runs first. The outline has
                # to end before the session, so its function is registered again.
                self._cancel_end()
                self._cancel_end = at_exit(self._end_outline)
        if root is not None:
            self._adopt(root)
        # With `outline_from_start` the first step has begun before its first call. It is not begun again.
        if self._entered != step:
            self._entered = step
            self._session.guard(self._session.enter_step, step)
        return True

    def _end_if_past(self, step: int) -> None:
        assert self._session is not None, "a step was entered"
        shows_symptom = self._until == "symptom" and self._outline is not None and self._outline.is_wrong
        if shows_symptom or self._session.is_past(step):
            self._steps.end()
            if self._outline is not None:
                # The session stops first, so that its files are complete when the outline says that it is over.
                self._session.guard(self._session.stop)
                self._outline.finish(Over.RECORDED)
                self._wait()

    def _adopt(self, root: Root) -> None:
        assert self._session is not None, "called after it was created"
        if isinstance(root, torch.nn.Module):
            self._session.guard(self._session.tracker.adopt, root)


_launches: weakref.WeakSet[_TorchLaunch] = weakref.WeakSet()


def _begin_again_in_child() -> None:
    for launched in list(_launches):
        launched.begin_again()


os.register_at_fork(after_in_child=_begin_again_in_child)
