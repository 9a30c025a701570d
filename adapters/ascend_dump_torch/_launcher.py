"""Record a whole PyTorch program: the first call of a top-level module starts the capture and the first step."""

from __future__ import annotations

import os
import time
import weakref
from pathlib import Path
from typing import Any, Callable, Optional

import torch

from ascend_dump.adapter import Begin, Steps, at_exit
from ascend_dump.adapter.pytorch.base import is_torchrun
from ascend_dump.adapter.pytorch.calls import keep_hooks_quiet
from ascend_dump.adapter.pytorch.compiled import Root
from ascend_dump.adapter.pytorch.next_call import NextCall
from ascend_dump.adapter.pytorch.steps import ProcessSteps
from ascend_dump.adapter.pytorch.warmup import is_warmup
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
        options = begin.request.options
        self._records = options.get("outline_until", "recorded") == "recorded"
        self._outline: Optional[StepOutline] = None
        if "outline" in options:
            self._outline = self._new_outline()
            at_exit(self._end_outline)
        self._updates = OptimizerSteps(self._updated) if options.get("step") == "optimizer" else None
        self._steps = ProcessSteps(
            self._called,
            self._returned if "outline" in options else None,
            self._is_warmup if options.get("skip_warmup") else None,
            self._ended,
        )

    def _ended(self) -> None:
        self._begin.done()
        if self._session is None or not self._session.armed:
            self._unfollow()

    def begin_again(self) -> None:
        """Start over in a forked child: it writes its own dump."""
        if self._begin.over:
            self._steps.end()
            return
        self._session = None
        if self._updates is not None:
            self._updates.remove()
            self._updates = OptimizerSteps(self._updated)
        if self._outline is not None:
            self._outline.abandon()
            self._outline = self._new_outline()
        self._steps.begin_again()

    def _new_outline(self) -> StepOutline:
        options = self._begin.request.options
        gradients = options.get("outline_gradients")
        return StepOutline(
            Path(options["outline"]),
            until_wrong=options.get("outline_until") == "wrong",
            gradients=() if gradients is None else Steps(gradients),
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

    def _is_warmup(self) -> bool:
        return is_warmup() if self._session is None else self._session.skips_warmup()

    def _updated(self) -> None:
        if self._session is not None:
            self._session.guard(self._session.enter_step, None)

    def _called(self, root: Root, step: Optional[int]) -> None:
        if self._begin.over:
            self._steps.end()
            return
        if self._updates is not None:
            step = self._updates.begins(not isinstance(root, torch.nn.Module) or root.training)
        if step is None:
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
        if self._session is None:
            model = type(root).__name__ if isinstance(root, torch.nn.Module) else root.__name__
            session = self._begin(model=model)
            if not isinstance(session, TorchSession):
                self._steps.end()
                if self._outline is not None:
                    self._outline.finish(Over.FAILED, "this process is not recorded")
                return
            self._session = session
        was_recording = self._session.recording
        self._adopt(root)
        self._session.guard(self._session.enter_step, step)
        if self._session.recording and not was_recording and not self._steps.compiled:
            # The session's own hooks were not installed yet when this call began.
            self._session.guard(self._session.tracker.enter, root)
        if self._session.recording and self._steps.compiled and not self._told_compiled:
            self._told_compiled = True
            log.warning("%s", compiled_problem())
        if self._session.is_past(step):
            self._steps.end()
            if self._outline is not None:
                # First the files, so that they are complete when the outline says that it is over.
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
