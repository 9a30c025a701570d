"""What must be done when a process ends, in processes that multiprocessing forks too."""

from __future__ import annotations

import atexit
import os
from typing import Any, Callable

__all__ = ["at_exit"]


def at_exit(stop: Callable[[], object]) -> Callable[[], None]:
    """Call `stop` once when this process ends, and once at the end of each process forked from it.

    Children that multiprocessing forks leave by os._exit, which runs its own finalizers but nothing of atexit; what a
    writer thread still holds would be lost. What is registered last is called first. Returns what takes it back.
    """
    from multiprocessing import util

    end = _End(stop)
    _ends.append(end)
    atexit.register(end)
    # Such a child clears the finalizers it inherited before it calls what is registered here.
    util.register_after_fork(end, _finalize)
    _finalize(end)
    return end.cancel


def _finalize(end: _End) -> None:
    from multiprocessing import util

    if end in _ends:
        end.finalizer = util.Finalize(None, end, exitpriority=0)


class _End:
    """Calls `stop` once in each process."""

    def __init__(self, stop: Callable[[], object]) -> None:
        self._stop: Callable[[], object] = stop
        self._ended_in = 0
        self.finalizer: Any = None

    def __call__(self) -> None:
        if self in _ends and self._ended_in != os.getpid():
            self._ended_in = os.getpid()
            self._stop()

    def cancel(self) -> None:
        """Do nothing when the process ends."""
        if self in _ends:
            _ends.remove(self)
            atexit.unregister(self)
            if self.finalizer is not None:
                self.finalizer.cancel()
            # Drops the reference to what it would have stopped, which may hold a model.
            self._stop = _nothing


def _nothing() -> None:
    return


#: multiprocessing keeps only weak references.
_ends: list[_End] = []
