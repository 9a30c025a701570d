"""The launcher road: MindSpore's dump for a whole process, without a change to its code."""

from __future__ import annotations

import logging
import os
import sys

from ascend_dump._activation import at_exit
from ascend_dump._errors import ConfigError
from ascend_dump._paths import RunDirectory, make_private_directory
from ascend_dump._rank import current_rank, is_selected
from ascend_dump._request import DumpRequest
from ascend_dump.adapter._contract import Adapter
from ascend_dump_mindspore._session import MindSporeSession

__all__ = ["activate"]

log = logging.getLogger("ascend_dump")


def activate(adapter: Adapter, request: DumpRequest) -> None:
    """Arm the process. Raises ConfigError for what the adapter would refuse."""
    if _only_starts_others():
        return
    for problem in adapter.check(request, None, RunDirectory.planned(request.path, current_rank(), launched=True)):
        if problem.severity == "error":
            raise ConfigError(problem.message, hint=problem.hint, code=problem.code)
        log.warning("%s", problem)
    if not is_selected(current_rank(), request.ranks):
        return
    make_private_directory(request.path)
    session = MindSporeSession(request, None, RunDirectory.planned(request.path, current_rank(), launched=True).make())
    process = os.getpid()

    def end() -> None:
        # A forked child, such as a worker of a data set, dumps nothing and must not end its parent's dump.
        if os.getpid() != process:
            return
        try:
            session.settle()
        finally:
            session.stop()
        if session.failure is not None:
            log.warning("%s", session.failure)

    at_exit(end)


def _only_starts_others() -> bool:
    """msrun and its scheduler import MindSpore too; their workers run the models."""
    if os.environ.get("MS_ROLE") == "MS_SCHED":
        return True
    started = (*sys.argv[:1], *getattr(sys, "orig_argv", ()))
    return os.path.basename(started[0] if started else "") == "msrun" or "mindspore.parallel.cluster.run" in started
