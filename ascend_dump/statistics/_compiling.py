"""One thread loads or compiles at a time, and none while the process forks."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterator

__all__ = ["compiling"]

#: Longest wait of a fork for a compiler, in seconds: its first run takes some.
_PATIENCE = 60.0

# A child forked while another thread compiles would inherit numba's locks, and hang when it uses numba itself.
_busy = threading.RLock()
_held = False


@contextlib.contextmanager
def compiling() -> Iterator[None]:
    """Hold this while numba is loaded or compiles."""
    with _busy:
        yield


def _before_fork() -> None:
    global _held
    _held = _busy.acquire(timeout=_PATIENCE)


def _after_fork() -> None:
    if _held:
        _busy.release()


def _after_fork_in_child() -> None:
    global _busy
    _busy = threading.RLock()


os.register_at_fork(before=_before_fork, after_in_parent=_after_fork, after_in_child=_after_fork_in_child)
