"""A gate for overlapping calls of a decorated function: only one call at a time is recorded as a step."""

from __future__ import annotations

import logging
import threading
from contextvars import ContextVar

__all__ = ["CallGate"]

log = logging.getLogger("ascend_dump")

#: The calls that passed a gate and inside which the current code runs. An asyncio task inherits them from its creator.
_enclosing_calls: ContextVar[tuple[object, ...]] = ContextVar("ascend_dump_calls", default=())


class CallGate:
    """A gate that lets one call of a decorated function pass at a time. The call that passes becomes a step.

    A call that begins while another one runs does not become a step. A recursive call belongs to the step in which it
    runs. A call in another thread or asyncio task runs at the same time as the step. If the recording of the step
    covers that thread or task too, the operators of that call are recorded in the step.
    """

    __slots__ = ("_call", "_lock", "_thread", "_warned")

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._call: object = None
        self._thread = 0
        self._warned = False

    def take(self, *, recorded: bool) -> bool:
        """Return True if this call may become a step; then `end` must be called when it returns.

        recorded: True if a capture is running. Then a warning is logged for the first refused call that is not
                  a recursive one.
        """
        if self._lock.acquire(blocking=False):
            self._thread, self._call = threading.get_ident(), object()
            _enclosing_calls.set((*_enclosing_calls.get(), self._call))
            return True
        is_recursive = self._thread == threading.get_ident() and self._call in _enclosing_calls.get()
        if recorded and not is_recursive and not self._warned:
            self._warned = True
            log.warning(
                "a captured function was called while another call of it was being recorded: the second call is not "
                "counted as a step, and what it runs in another thread or after the end of the first call is not "
                "recorded. Call the function from one thread or task at a time to record every call"
            )
        return False

    def end(self) -> None:
        """Open the gate at the end of the call that passed, so that the next call may become a step."""
        call = self._call
        _enclosing_calls.set(tuple(running for running in _enclosing_calls.get() if running is not call))
        self._lock.release()
