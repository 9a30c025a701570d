"""Compile kernels in a background thread. Until it has finished, numpy computes the same statistics."""

from __future__ import annotations

import contextlib
import os
import threading
from typing import Any, Optional

import numpy as np

from ascend_dump.errors import AscendDumpError
from ascend_dump.statistics._engine import warm_up

__all__ = ["warm_up_soon"]

_lock = threading.Lock()
_Kernels = tuple[np.dtype[Any], tuple[str, ...]]
_queue: list[_Kernels] = []
_requested: set[_Kernels] = set()
_thread: Optional[threading.Thread] = None


def warm_up_soon(dtype: np.dtype[Any], optional: tuple[str, ...] = ()) -> None:
    """Start `warm_up` for a dtype in another thread, and return at once.

    When the program ends, it waits for the dtype that is being compiled, and the remaining ones are dropped.
    """
    global _thread
    with _lock:
        if (dtype, optional) in _requested:
            return
        _requested.add((dtype, optional))
        _queue.append((dtype, optional))
        if _thread is None:
            # Not a daemon thread, because the interpreter would stop it in the middle of the compiler when it exits.
            _thread = threading.Thread(target=_work, name="ascend_dump compiler", daemon=False)
            try:
                _thread.start()
            except RuntimeError:  # no thread is available, or the interpreter exits
                _thread = None
                _queue.clear()


def _work() -> None:
    global _thread
    while True:
        with _lock:
            if not _queue or not threading.main_thread().is_alive():
                _thread = None
                return
            dtype, optional = _queue.pop(0)
        # The error is ignored here, because `statistics` of this dtype raises the same error.
        with contextlib.suppress(AscendDumpError):
            warm_up([dtype], optional)


def _forget_in_child() -> None:
    """Reset the state in a forked child, in which the thread does not exist."""
    global _lock, _thread
    _lock = threading.Lock()
    _thread = None
    _requested.clear()
    _queue.clear()


os.register_at_fork(after_in_child=_forget_in_child)
