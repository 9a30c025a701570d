"""The threads that PyTorch's operators run on, lent for work between two operators."""

from __future__ import annotations

import ctypes
import functools
import os
import re
import sys
from pathlib import Path
from typing import Any, Callable, Optional

import torch

__all__ = ["openmp_parallel"]

#: GNU's runtime, and LLVM's and Intel's, which have its entry points too.
_RUNTIME = re.compile(r"^(libgomp|libomp|libiomp5)[-.\w]*$")

#: Among the flags of a process in Linux: forked, and no program loaded since (PF_FORKNOEXEC).
_FORKED = 0x40


def openmp_parallel() -> Optional[Callable[[int, int], None]]:
    """A function that calls a C function, given by address, with an integer on each of PyTorch's threads at once.

    None where PyTorch has threads of its own, the OpenMP runtime it uses cannot be told, or may wait for ever: in a
    forked process, for threads that only its parent has.
    """
    return None if _is_forked() else _find_parallel()


def _is_forked() -> bool:
    try:
        stat = Path("/proc/self/stat").read_bytes()
    except OSError:
        return False
    # After the name of the program, in parentheses, which may hold any.
    return bool(int(stat.rpartition(b")")[2].split()[6]) & _FORKED)


@functools.lru_cache(maxsize=1)
def _find_parallel() -> Optional[Callable[[int, int], None]]:
    if "parallel backend: OpenMP" not in torch.__config__.parallel_info():
        return None
    path = _runtime()
    if path is None:
        return None
    try:
        # Never a second copy, which would have threads of its own.
        library = ctypes.CDLL(path, mode=os.RTLD_NOLOAD | os.RTLD_NOW)
        start: Any = library.GOMP_parallel
    except (OSError, AttributeError):
        return None
    start.argtypes = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint, ctypes.c_uint)
    start.restype = None

    def parallel(function: int, argument: int) -> None:
        start(function, argument, torch.get_num_threads(), 0)

    return parallel


def _runtime() -> Optional[str]:
    """The OpenMP library of this process, that of PyTorch's wheel where there are several."""
    if not sys.platform.startswith("linux"):
        return None
    try:
        lines = Path("/proc/self/maps").read_text(encoding="utf-8", errors="surrogateescape").splitlines()
    except OSError:
        return None
    # Address, permissions, offset, device, inode, and the path, which may hold spaces.
    paths = {fields[5] for fields in (line.split(None, 5) for line in lines) if len(fields) == 6}
    found = sorted(path for path in paths if _RUNTIME.search(os.path.basename(path)))
    home = os.path.dirname(torch.__file__)
    own = [path for path in found if path.startswith((home + os.sep, home + ".libs" + os.sep))]
    candidates = own or found
    return candidates[0] if len(candidates) == 1 else None
