"""The launcher road: every config of the process that is given to `get_npu_backend`, without a change to its code.

The program's own settings of a config after that call win, as torchair reads a config when the first graph is built.
"""

from __future__ import annotations

import logging
import os
from typing import Any, Optional

from ascend_dump._activation import at_exit
from ascend_dump._errors import ConfigError
from ascend_dump._paths import RunDirectory, make_private_directory
from ascend_dump._rank import current_rank, is_selected
from ascend_dump._request import DumpRequest
from ascend_dump.adapter._contract import Adapter
from ascend_dump_torchair._hook import Hook
from ascend_dump_torchair._session import TorchairSession

__all__ = ["activate"]

log = logging.getLogger("ascend_dump")


def activate(adapter: Adapter, request: DumpRequest) -> None:
    """Arm the process. What torchair would refuse is told when the first backend is made."""
    launched = _Process(adapter, request)
    at_exit(launched.stop)


class _Process:
    """Opens a session at the first backend, whose config tells the mode."""

    def __init__(self, adapter: Adapter, request: DumpRequest) -> None:
        self._adapter = adapter
        self._request = request
        self._session: Optional[TorchairSession] = None
        self._refused: Optional[str] = None
        self._pid = os.getpid()
        self._hook = Hook(self._fill)

    def _fill(self, config: Any) -> None:
        if self._refused is not None or os.getpid() != self._pid:
            return
        if self._session is not None:
            self._session.add(config)
            return
        rank = current_rank()
        if not is_selected(rank, self._request.ranks):
            self._refused = f"rank {rank.rank} is not among ranks={self._request.ranks}"
            return
        problems = self._adapter.check(
            self._request, config, RunDirectory.planned(self._request.path, current_rank(), launched=True)
        )
        for problem in problems:
            if problem.severity == "error":
                self._refused = str(problem)
                raise ConfigError(problem.message, hint=problem.hint, code=problem.code)
            log.warning("%s", problem)
        make_private_directory(self._request.path)
        run = RunDirectory.planned(self._request.path, current_rank(), launched=True).make()
        self._session = TorchairSession(self._request, config, run)

    def stop(self) -> None:
        """At exit: put the configs back, and say so when nothing was written."""
        self._hook.remove()
        if self._session is None or os.getpid() != self._pid:
            return
        self._session.stop()
        if self._session.failure is not None and not self._session.failure.reported:
            log.warning("%s", self._session.failure)
        if not any(names for _, _, names in os.walk(self._session.root)):
            for reason in self._session.reasons() or []:
                log.warning("the capture wrote nothing: %s", reason)
