"""Record a whole torchair program: the first config that it passes to a backend or compiler becomes the target.

The dump options are set on later configs too. If the program changes them on a config afterwards, its values win,
because torchair reads a config only when the first graph is built.
"""

from __future__ import annotations

import os
from typing import Any, Callable, Optional

from ascend_dump.adapter import Begin
from ascend_dump_torchair._hook import Hook
from ascend_dump_torchair._session import TorchairSession

__all__ = ["launch"]


def launch(begin: Begin) -> Callable[[], str]:
    """Start the capture at the first config. Return a function that says why it never began."""
    return _TorchairLaunch(begin).unused


class _TorchairLaunch:
    """Calls `begin` with the first config, and sets the dump options on later configs."""

    def __init__(self, begin: Begin) -> None:
        self._begin = begin
        self._begun = False
        self._session: Optional[TorchairSession] = None
        self._pid = os.getpid()
        self._hook = Hook(self._fill)

    def unused(self) -> str:
        return "; ".join(self._hook.uncaptured) or "it made no backend with get_npu_backend"

    def _fill(self, config: Any) -> None:
        # In a forked child GE and its dump belong to the parent process.
        if os.getpid() != self._pid:
            return
        if self._session is not None:
            self._session.add(config)
        elif not self._begun:
            self._begun = True
            session = self._begin(config)
            if isinstance(session, TorchairSession):
                self._session = session
            else:
                self._hook.remove()
