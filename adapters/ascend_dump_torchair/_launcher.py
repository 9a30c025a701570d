"""Record a whole torchair program: the first config for a backend or compiler becomes the target.

Later configs are filled too. Settings that the program makes on a config after that call take precedence, because
torchair reads a config when the first graph is built.
"""

from __future__ import annotations

import os
from typing import Any, Callable, Optional

from ascend_dump.adapter import Begin
from ascend_dump_torchair._hook import Hook
from ascend_dump_torchair._session import TorchairSession

__all__ = ["launch"]


def launch(begin: Begin) -> Callable[[], str]:
    return _TorchairLaunch(begin).unused


class _TorchairLaunch:
    def __init__(self, begin: Begin) -> None:
        self._begin = begin
        self._begun = False
        self._session: Optional[TorchairSession] = None
        self._pid = os.getpid()
        self._hook = Hook(self._fill)

    def unused(self) -> str:
        return "; ".join(self._hook.uncaptured) or "it made no backend with get_npu_backend"

    def _fill(self, config: Any) -> None:
        # GE and its dump belong to the process that was forked.
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
