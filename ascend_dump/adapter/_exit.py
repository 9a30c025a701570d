"""Functions to call when a process ends, in processes forked by multiprocessing too."""

from __future__ import annotations

import atexit
import os
from typing import Any, Callable

__all__ = ["at_exit"]


def at_exit(stop: Callable[[], object]) -> Callable[[], None]:
    """Call `stop` once when this process ends, and once at the end of each process forked from it.

    Children that multiprocessing forks leave by os._exit. That runs multiprocessing's finalizers but not those of
    atexit, so records queued for a writer thread would be lost. The last registered function is called first. Returns
    a function that unregisters.
    """
    from multiprocessing import util

    end = _End(stop)
    _ends.append(end)
    atexit.register(end)
    # Such a child clears the finalizers it inherited before it calls `_finalize`.
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
            # Drops the reference, which may keep a model alive.
            self._stop = _nothing


def _nothing() -> None:
    return


#: multiprocessing keeps only weak references.
_ends: list[_End] = []
