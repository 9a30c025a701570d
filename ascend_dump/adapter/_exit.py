"""Functions that are called at the end of a process, also of processes that multiprocessing has forked."""

from __future__ import annotations

import atexit
import os
from typing import Any, Callable

__all__ = ["at_exit"]


def at_exit(stop: Callable[[], object]) -> Callable[[], None]:
    """Call `stop` once at the end of this process, and once at the end of each process forked from it.

    Children that multiprocessing forks end with os._exit. They run multiprocessing's finalizers, but not the functions
    of atexit that they inherited, so records that are queued for a writer thread would be lost with atexit alone. The
    function that was registered last is called first. Returns a function that unregisters `stop`.
    """
    from multiprocessing import util

    end = _End(stop)
    _ends.append(end)
    atexit.register(end)
    # A child of multiprocessing clears the inherited finalizers; then it calls `_finalize`, which adds one again.
    util.register_after_fork(end, _finalize)
    _finalize(end)
    return end.cancel


def _finalize(end: _End) -> None:
    from multiprocessing import util

    if end in _ends:
        end.finalizer = util.Finalize(None, end, exitpriority=0)


class _End:
    """A callable that calls `stop` once in each process."""

    def __init__(self, stop: Callable[[], object]) -> None:
        self._stop: Callable[[], object] = stop
        self._ended_in = 0
        self.finalizer: Any = None

    def __call__(self) -> None:
        if self in _ends and self._ended_in != os.getpid():
            self._ended_in = os.getpid()
            self._stop()

    def cancel(self) -> None:
        """Unregister, so that nothing is called at the end of the process."""
        if self in _ends:
            _ends.remove(self)
            atexit.unregister(self)
            if self.finalizer is not None:
                self.finalizer.cancel()
            # The reference to `stop` is dropped, because it may keep a model alive.
            self._stop = _nothing


def _nothing() -> None:
    return


#: References to all registered functions, because multiprocessing keeps weak references only.
_ends: list[_End] = []
