"""Control when numba compiles: by one thread at a time, and not in a process forked in the middle of a compilation.

The first compilation on a machine is announced to the user, because it takes seconds.
"""

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

#: Number of elements that numpy processes in about the time that loading numba takes.
_WORTH_LOADING = 1 << 24

#: Maximum number of seconds that a fork waits for a compilation, and for an import of numba.
_COMPILING_PATIENCE, _LOADING_PATIENCE = 1.0, 60.0

# Held while compiling. If a process is forked while another thread compiles, numba's locks stay locked in the child
# forever: the child must not compile.
_busy = threading.RLock()
# Held while importing numba. If a process were forked while another thread imports numba, numba could not be imported
# in the child any more, neither by ascend_dump nor by the program.
_import = threading.RLock()
_held: list[threading.RLock] = []
_forked_in_compiler = False


#: Approximate number of elements that numpy has processed so far.
_left_to_numpy = 0

#: The log level of the announcement.
_level = logging.INFO


def is_worth_loading(elements: int) -> bool:
    """Return True if numba is loaded, or if so many elements were processed that loading it saves time.

    elements: the number of elements that are processed now
    """
    global _left_to_numpy
    if "numba" in sys.modules:
        return True
    _left_to_numpy += elements
    return _left_to_numpy >= _WORTH_LOADING


def announce_compiling(kernel: Any, purpose: str) -> None:
    """Log once per purpose that kernels are being compiled, unless numba has this kernel in its cache."""
    # A cache file that was compiled for another machine counts too, because only numba can check the machine.
    name = f"{kernel.__module__.rpartition('.')[2]}.{kernel.__name__}-"
    with contextlib.suppress(OSError):
        if any(file.startswith(name) for file in os.listdir(kernel.stats.cache_path)):
            return
    _announce(purpose)


def compile_quietly() -> None:
    """Log announcements of compiling as debug messages from now on, so that they are usually not shown.

    The level cannot be changed for a single capture only: the kernels of a capture are compiled in the background,
    possibly after the capture has ended.
    """
    global _level
    _level = logging.DEBUG


@functools.cache
def _announce(purpose: str) -> None:
    text = "compiling the kernels for %s, once on this machine: some seconds for each type of elements"
    spoken().log(_level, text, purpose)


class ForkedInCompiler(RuntimeError):
    """This process was forked while another thread compiled, so it must not compile."""


@contextlib.contextmanager
def compiling() -> Iterator[None]:
    """Return a context in which numba may compile. It holds a lock.

    Entering it raises ForkedInCompiler if this process was forked while another thread compiled.
    """
    if _forked_in_compiler:
        raise ForkedInCompiler("this process was forked while another thread compiled")
    with _busy:
        yield


@contextlib.contextmanager
def loading() -> Iterator[None]:
    """Return a context in which numba may be imported, or marked as unusable. It holds a lock."""
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
