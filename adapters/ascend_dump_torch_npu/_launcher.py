"""The launcher road: every top-level module call of the process, without a change to its code."""

from __future__ import annotations

import logging
from typing import Any, Optional

from ascend_dump._activation import active_instead_of, at_exit
from ascend_dump._errors import ConfigError
from ascend_dump._paths import RunDirectory, make_private_directory
from ascend_dump._rank import current_rank, is_selected
from ascend_dump._request import DumpRequest
from ascend_dump.adapter._contract import Adapter
from ascend_dump.adapter.pytorch.calls import keep_hooks_quiet
from ascend_dump.adapter.pytorch.steps import ProcessSteps
from ascend_dump_torch_npu._session import TorchNpuSession

__all__ = ["activate", "deactivate"]

log = logging.getLogger("ascend_dump")


def activate(adapter: Adapter, request: DumpRequest) -> None:
    """Arm the process. Raises ConfigError for what the adapter would refuse."""
    for problem in adapter.check(request, None, RunDirectory.planned(request.path, current_rank(), launched=True)):
        if problem.severity == "error":
            raise ConfigError(problem.message, hint=problem.hint, code=problem.code)
        log.warning("%s", problem)
    keep_hooks_quiet()
    launched = _Process(adapter, request)
    _launched.append(launched)
    at_exit(launched.stop)


def deactivate() -> None:
    """Give acl's dump interface back before another adapter wants it."""
    for launched in _launched:
        launched.rest("torchair")


class _Process:
    """Opens a session at the first step; an exception dump is set before, when the NPU is not initialised yet."""

    def __init__(self, adapter: Adapter, request: DumpRequest) -> None:
        self._adapter = adapter
        self._request = request
        self._session: Optional[TorchNpuSession] = None
        self._steps = ProcessSteps(self._called)
        if request.scene == "exception":
            self._open()

    def _open(self) -> None:
        if not is_selected(current_rank(), self._request.ranks):
            self._steps.end()
            return
        make_private_directory(self._request.path)
        run = RunDirectory.planned(self._request.path, current_rank(), launched=True).make()
        self._session = TorchNpuSession(self._request, None, run)

    def _called(self, root: Any, step: Optional[int]) -> None:
        if step is None:
            return
        if self._session is None:
            instead = active_instead_of(self._adapter)
            if instead is not None:
                self.rest(instead)
                return
            self._open()
        if self._session is None:
            return
        self._session.step(step)
        last = self._request.steps.last
        if not self._session.armed or self._session.failure or (last is not None and step > last):
            self._steps.end()

    def rest(self, instead: str) -> None:
        """End, because another adapter dumps this process from here on."""
        log.warning(
            "eager kernels are not dumped: %s takes over; ASCEND_DUMP_DISABLED_ADAPTERS leaves one out", instead
        )
        self._steps.end()
        if self._session is not None:
            self._session.stop()
            self._session = None

    def stop(self) -> None:
        """At exit: switch the dump off, and say so when nothing was dumped."""
        self._steps.end()
        if self._session is None:
            return
        self._session.stop()
        if not self._session.dumped:
            for reason in self._session.reasons() or []:
                log.warning("the capture wrote nothing: %s", reason)


_launched: list[_Process] = []
