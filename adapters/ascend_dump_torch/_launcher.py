"""The launcher road: every top-level module call of the process, without a change to its code."""

from __future__ import annotations

import logging
import multiprocessing
import os
import sys
from typing import Optional

import torch

from ascend_dump._activation import active_instead_of, at_exit
from ascend_dump._paths import RunDirectory, make_private_directory
from ascend_dump._rank import current_rank, is_selected
from ascend_dump._request import DumpRequest
from ascend_dump.adapter._contract import Adapter
from ascend_dump.adapter.pytorch.calls import keep_hooks_quiet
from ascend_dump.adapter.pytorch.compiled import Root
from ascend_dump.adapter.pytorch.steps import ProcessSteps
from ascend_dump_torch._check import compiled_problem
from ascend_dump_torch._session import TorchSession
from ascend_dump_torch._stack import follow_inference_mode

__all__ = ["activate"]

log = logging.getLogger("ascend_dump")


def activate(adapter: Adapter, request: DumpRequest) -> None:
    """Arm the process. Raises ConfigError for what the adapter would refuse."""
    from ascend_dump._errors import ConfigError

    for problem in adapter.check(request, None, RunDirectory.planned(request.path, current_rank(), launched=True)):
        if problem.severity == "error":
            raise ConfigError(problem.message, hint=problem.hint, code=problem.code)
        log.warning("%s", problem)
    follow_inference_mode()
    keep_hooks_quiet()
    launched = _Process(adapter, request)
    at_exit(launched.stop)
    os.register_at_fork(after_in_child=launched.begin_again)


class _Process:
    """Opens a session at the first step and moves its clock."""

    def __init__(self, adapter: Adapter, request: DumpRequest) -> None:
        self._adapter = adapter
        self._request = request
        self._process = os.getpid()
        self._session: Optional[TorchSession] = None
        self._told_compiled = False
        self._steps = ProcessSteps(self._called)

    def begin_again(self) -> None:
        """In a forked child, which writes a dump of its own."""
        self._session = None
        self._steps.begin_again()

    def _called(self, root: Root, step: Optional[int]) -> None:
        if step is None:
            if self._session is not None:
                self._adopt(root)
            return
        if self._session is None:
            instead = active_instead_of(self._adapter)
            if instead is not None:
                log.info("the adapter %s dumps this process; ASCEND_DUMP_DISABLED_ADAPTERS leaves one out", instead)
                self._steps.end()
                return
            if not is_selected(current_rank(), self._request.ranks):
                self._steps.end()
                return
            make_private_directory(self._request.path)
            model = type(root).__name__ if isinstance(root, torch.nn.Module) else root.__name__
            run = RunDirectory.planned(self._request.path, current_rank(), launched=True, model=model).make()
            self._session = TorchSession(self._request, None, run)
        was_recording = self._session.recording
        self._adopt(root)
        self._session.guard(self._session.enter_step, step)
        if self._session.recording and not was_recording and not self._steps.compiled:
            # The session's own hooks were not there yet when this call began.
            self._session.guard(self._session.tracker.enter, root)
        if self._session.recording and self._steps.compiled and not self._told_compiled:
            self._told_compiled = True
            log.warning("%s", compiled_problem())
        last = self._request.steps.last
        if not self._session.armed or self._session.failure or (last is not None and step > last):
            self._steps.end()

    def _adopt(self, root: Root) -> None:
        assert self._session is not None, "called once there is one"
        if isinstance(root, torch.nn.Module):
            self._session.guard(self._session.tracker.adopt, root)

    def stop(self) -> None:
        """At exit: finish the files, and say so when there are none."""
        self._steps.end()
        if self._session is None:
            # torchrun imports torch too, and so do the workers of a data loader; others run the models.
            helps = "torch.distributed.run" in sys.modules or multiprocessing.parent_process() is not None
            if not self._steps.begun and not helps and self._process == os.getpid():
                log.warning(
                    "ASCEND_DUMP is set, but this process called no torch.nn.Module with parameters: "
                    "nothing of it was captured"
                )
            return
        self._session.stop()
        if not self._session.records:
            for reason in self._session.reasons() or []:
                log.warning("the capture wrote nothing: %s", reason)
