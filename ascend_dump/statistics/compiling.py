"""Decide when kernels are compiled: by one thread at a time, never during a fork, and announced to the user."""

from __future__ import annotations

import contextlib
import functools
import logging
import os
import sys
import threading
from collections.abc import Iterator
from typing import Any

from ascend_dump.common.log import spoken

__all__ = ["announce_compiling", "compile_quietly", "compiling", "is_worth_loading"]

#: Elements that numpy processes in about the time of loading numba.
_WORTH_LOADING = 1 << 24

#: The most seconds that a fork waits for a compilation.
_PATIENCE = 60.0

# A child forked while another thread compiles would inherit numba's locks, and hang when it uses numba.
_busy = threading.RLock()
_held = False


#: Number of elements processed by numpy so far; need not be exact.
_left_to_numpy = 0

#: The level of the announcement.
_level = logging.INFO


def is_worth_loading(elements: int) -> bool:
    """Whether numba is loaded, or enough elements were processed that loading it is worth its time."""
    global _left_to_numpy
    if "numba" in sys.modules:
        return True
    _left_to_numpy += elements
    return _left_to_numpy >= _WORTH_LOADING


def announce_compiling(kernel: Any, purpose: str) -> None:
    """Log once that kernels are being compiled, unless numba has this one in its cache."""
    # Cache files for any machine count; numba checks the machine itself.
    name = f"{kernel.__module__.rpartition('.')[2]}.{kernel.__name__}-"
    with contextlib.suppress(OSError):
        if any(file.startswith(name) for file in os.listdir(kernel.stats.cache_path)):
            return
    _announce(purpose)


def compile_quietly() -> None:
    """Announce no more compiling in this process, unless every message is asked for.

    Not for one capture alone: what it needs is compiled in the background, maybe after it has ended.
    """
    global _level
    _level = logging.DEBUG


@functools.cache
def _announce(purpose: str) -> None:
    text = "compiling the kernels for %s, once on this machine: some seconds for each type of elements"
    spoken().log(_level, text, purpose)


@contextlib.contextmanager
def compiling() -> Iterator[None]:
    """The context in which numba may be loaded or compile: holds a lock."""
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
