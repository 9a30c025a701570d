"""Overlapping calls of a decorated function: one of them at a time is recorded as a step."""

from __future__ import annotations

import logging
import threading
from contextvars import ContextVar

__all__ = ["CallGate"]

log = logging.getLogger("ascend_dump")

#: Recorded calls that the current code runs inside; an asyncio task inherits it from the code that created it.
_around: ContextVar[tuple[object, ...]] = ContextVar("ascend_dump_calls", default=())


class CallGate:
    """A gate that one call of a decorated function at a time passes; this call becomes a step.

    A call that begins while another runs is no step: a recursive call belongs to the step it runs in, and a call in
    another thread or asyncio task runs beside it.
    """

    __slots__ = ("_call", "_lock", "_thread", "_warned")

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._call: object = None
        self._thread = 0
        self._warned = False

    def take(self, *, recorded: bool) -> bool:
        """Return True if this call may become a step; then `end` must follow.

        recorded: a capture is running. If so, the first refused call outside of the passed call causes a warning.
        """
        if self._lock.acquire(blocking=False):
            self._thread, self._call = threading.get_ident(), object()
            _around.set((*_around.get(), self._call))
            return True
        inside = self._thread == threading.get_ident() and self._call in _around.get()
        if recorded and not inside and not self._warned:
            self._warned = True
            log.warning(
                "a captured function was called while another call of it was being recorded: the second call is not "
                "counted as a step, and what it runs in another thread or after the end of the first call is not "
                "recorded. Call the function from one thread or task at a time to record every call"
            )
        return False

    def end(self) -> None:
        """Note the end of the call that passed: the next call may become a step."""
        call = self._call
        _around.set(tuple(running for running in _around.get() if running is not call))
        self._lock.release()
