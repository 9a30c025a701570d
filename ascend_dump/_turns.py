"""Which calls of a decorated function are steps: one at a time is."""

from __future__ import annotations

import logging
import threading
from contextvars import ContextVar

__all__ = ["Turns"]

log = logging.getLogger("ascend_dump")

#: The calls that this code runs inside; asyncio's tasks inherit it from the code that makes them.
_around: ContextVar[tuple[object, ...]] = ContextVar("ascend_dump_calls", default=())


class Turns:
    """Gives the turn to a call, unless another one has it: around it, or in another thread or task."""

    __slots__ = ("_call", "_lock", "_thread", "_told")

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._call: object = None
        self._thread = 0
        self._told = False

    def take(self, *, recorded: bool) -> bool:
        """Whether the call has the turn. Says once that one beside it has not, where that is recorded."""
        if self._lock.acquire(blocking=False):
            self._thread, self._call = threading.get_ident(), object()
            _around.set((*_around.get(), self._call))
            return True
        inside = self._thread == threading.get_ident() and self._call in _around.get()
        if recorded and not inside and not self._told:
            self._told = True
            log.warning(
                "a call of a captured function began while another was recorded: it is no step of its own, and what "
                "it runs in another thread, or after the end of the other, is not recorded"
            )
        return False

    def end(self) -> None:
        call = self._call
        _around.set(tuple(one for one in _around.get() if one is not call))
        self._lock.release()
