"""The launcher road: every top-level module call of the process, without a change to its code.

Without a target something else must tell steps apart: a step begins when a top-level module
with parameters is called that was already called in this step. So a loss module, or a second
model of a GAN, belongs to the step that is open.
"""

from __future__ import annotations

import logging
import multiprocessing
import os
import sys
import threading
import weakref
from typing import Any, Optional

import torch
from torch.nn.modules.module import register_module_forward_pre_hook

from ascend_dump._activation import at_exit
from ascend_dump._adapter import Adapter
from ascend_dump._paths import make_private_directory
from ascend_dump._rank import current_rank
from ascend_dump._request import DumpRequest
from ascend_dump_torch._session import Session
from ascend_dump_torch._stack import follow_inference_mode
from ascend_dump_torch._target import is_root_call, keep_hooks_quiet

__all__ = ["activate"]

log = logging.getLogger("ascend_dump")


def activate(adapter: Adapter, request: DumpRequest) -> None:
    """Arm the process. Raises ConfigError for what the adapter would refuse."""
    from ascend_dump._errors import ConfigError

    for problem in adapter.check(request, None):
        if problem.severity == "error":
            raise ConfigError(problem.message, hint=problem.hint, code=problem.code)
        log.warning("%s", problem)
    follow_inference_mode()
    keep_hooks_quiet()
    launched = _Process(request)
    at_exit(launched.stop)
    os.register_at_fork(after_in_child=launched.begin_again)


class _Process:
    """Opens a session at the first call of a module with parameters and moves its clock."""

    def __init__(self, request: DumpRequest) -> None:
        self._request = request
        self._process = os.getpid()
        self._hooks = [register_module_forward_pre_hook(self._called)]
        self.begin_again()

    def begin_again(self) -> None:
        """At the start, and in a forked child, which writes a dump of its own."""
        self._session: Optional[Session] = None
        self._thread: Optional[int] = None
        self._step = -1
        #: What was called in the open step. Weak: an address may come again for another module.
        self._roots: weakref.WeakSet[torch.nn.Module] = weakref.WeakSet()
        self._over = False

    def _called(self, module: torch.nn.Module, args: Any) -> None:
        # Inside a compiled model hooks are traced, not called; what they do must not reach its graph.
        if torch.compiler.is_compiling():
            return
        if self._over or (self._thread is not None and self._thread != threading.get_ident()) or not is_root_call():
            return
        try:
            self._root_called(module)
        except Exception as error:
            # The user's call goes on, whatever keeps us from recording it.
            self._end()
            log.warning("nothing is captured: %s", error)
            log.debug("opening the capture failed", exc_info=True)

    def _root_called(self, root: torch.nn.Module) -> None:
        if self._step >= 0 and root not in self._roots:
            self._roots.add(root)
            if self._session is not None:
                self._session.tracker.adopt(root)
            return
        if next(root.parameters(), None) is None:
            return
        self._thread = threading.get_ident()
        if self._session is None:
            rank = current_rank().rank
            if rank not in self._request.ranks:
                log.info("rank %d is not among ranks=%s: nothing is captured here", rank, self._request.ranks)
                self._end()
                return
            make_private_directory(self._request.path)
            self._session = Session(self._request, None, model=type(root).__name__, launched=True)
        self._step += 1
        self._roots = weakref.WeakSet([root])
        was_recording = self._session.recording
        self._session.tracker.adopt(root)
        self._session.guard(self._session.enter_step, self._step)
        if self._session.recording and not was_recording:
            # The session's own hooks were not there yet when this call began.
            self._session.guard(self._session.tracker.enter, root)
        last = self._request.steps.last
        if not self._session.armed or self._session.failure or (last is not None and self._step > last):
            self._end()

    def _end(self) -> None:
        """Take the hooks off: nothing more is to be captured."""
        self._over = True
        hooks, self._hooks = self._hooks, []
        for hook in hooks:
            hook.remove()

    def stop(self) -> None:
        """At exit: finish the files, and say so when there are none."""
        self._end()
        if self._session is None:
            # torchrun imports torch too, and so do the workers of a data loader; others run the models.
            helps = "torch.distributed.run" in sys.modules or multiprocessing.parent_process() is not None
            if self._thread is None and not helps and self._process == os.getpid():
                log.warning(
                    "ASCEND_DUMP is set, but no torch.nn.Module with parameters was called, so nothing was captured"
                )
            return
        self._session.stop()
        if not self._session.records:
            for reason in self._session.reasons() or []:
                log.warning("the capture wrote nothing: %s", reason)
