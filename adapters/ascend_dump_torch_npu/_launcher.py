"""Record a whole program on NPUs: the first call of a top-level module starts the capture and the first step."""

from __future__ import annotations

from typing import Any, Callable, Optional

from ascend_dump.adapter import Begin
from ascend_dump.adapter.pytorch.base import is_torchrun
from ascend_dump.adapter.pytorch.calls import keep_hooks_quiet
from ascend_dump.adapter.pytorch.next_call import NextCall
from ascend_dump.adapter.pytorch.steps import ProcessSteps
from ascend_dump.adapter.pytorch.warmup import is_left_out
from ascend_dump_torch_npu._session import TorchNpuSession
from ascend_dump_torch_npu._settings import SKIP_WARMUP

__all__ = ["attach", "launch"]


def launch(begin: Begin) -> Callable[[], str]:
    """Follow the calls of modules to start the capture. Return a function that says why it never began."""
    keep_hooks_quiet()
    return _TorchNpuLaunch(begin).unused


def attach(begin: Begin) -> Callable[[], bool]:
    """Call `launch` at the next top-level call. Returns a function that cancels this."""
    return NextCall(begin, launch).cancel


class _TorchNpuLaunch:
    """Starts the capture at the first step of the program.

    In the scenes "exception" and "overflow" it starts at once, because CANN reads their switches only once.
    """

    def __init__(self, begin: Begin) -> None:
        self._begin = begin
        self._session: Optional[TorchNpuSession] = None
        self._steps = ProcessSteps(self._called, left_out=self._skips_call, ended=begin.done)
        if begin.request.scene in ("exception", "overflow"):
            self._open()

    def unused(self) -> str:
        return "" if is_torchrun() else "it called no torch.nn.Module with parameters"

    def _open(self) -> Optional[TorchNpuSession]:
        session = self._begin()
        if isinstance(session, TorchNpuSession):
            self._session = session
        else:
            self._steps.end()
        return self._session

    def _skips_call(self) -> bool:
        if self._session is None:
            return is_left_out(bool(self._begin.request.options.get(SKIP_WARMUP)))
        return self._session.skips_call()

    def _called(self, root: Any, step: Optional[int]) -> None:
        if step is None:
            return
        if self._begin.over:
            self._steps.end()
            return
        session = self._session or self._open()
        if session is None:
            return
        session.step(step)
        if session.is_past(step):
            self._steps.end()
