"""Decide when kernels are compiled: by one thread at a time, announced to the user, and not after a fork that did not
wait for the compiler."""

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

__all__ = ["ForkedInCompiler", "announce_compiling", "compile_quietly", "compiling", "is_worth_loading", "loading"]

#: Elements that numpy processes in about the time of loading numba.
_WORTH_LOADING = 1 << 24

#: The most seconds that a fork waits for a compilation, and for an import.
_COMPILING_PATIENCE, _LOADING_PATIENCE = 1.0, 60.0

# A child that is forked while another thread compiles has numba's locks, which nobody releases: it must not compile.
_busy = threading.RLock()
# A child that is forked while another thread imports numba cannot import it any more, not for the program either.
_import = threading.RLock()
_held: list[threading.RLock] = []
_forked_in_compiler = False


#: Number of elements processed by numpy so far; need not be exact.
_left_to_numpy = 0

#: The level of the announcement.
_level = logging.INFO


def is_worth_loading(elements: int) -> bool:
    """Return True if numba is loaded, or enough elements were processed that loading it is worth its time."""
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


class ForkedInCompiler(RuntimeError):
    """This process was forked while another thread compiled, so it cannot compile."""


@contextlib.contextmanager
def compiling() -> Iterator[None]:
    """The context in which numba may compile: holds a lock. Raises ForkedInCompiler."""
    if _forked_in_compiler:
        raise ForkedInCompiler("this process was forked while another thread compiled")
    with _busy:
        yield


@contextlib.contextmanager
def loading() -> Iterator[None]:
    """The context in which numba may be imported, or given up: holds a lock."""
    with _import:
        yield


def _before_fork() -> None:
    for lock, seconds in ((_import, _LOADING_PATIENCE), (_busy, _COMPILING_PATIENCE)):
        if lock.acquire(timeout=seconds):
            _held.append(lock)


def _after_fork() -> None:
    while _held:
        _held.pop().release()


def _after_fork_in_child() -> None:
    global _busy, _import, _forked_in_compiler
    _forked_in_compiler = _forked_in_compiler or _busy not in _held
    _busy, _import = threading.RLock(), threading.RLock()
    _held.clear()


os.register_at_fork(before=_before_fork, after_in_parent=_after_fork, after_in_child=_after_fork_in_child)
