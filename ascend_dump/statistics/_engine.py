"""Which engine computes statistics, over which blocks of an array, on how many threads."""

from __future__ import annotations

import contextlib
import logging
import os
import threading
from collections import deque
from collections.abc import Iterable
from types import ModuleType
from typing import Any, Callable, Optional, TypeVar, Union

import numpy as np

from ascend_dump._errors import ConfigError
from ascend_dump.statistics import _numpy
from ascend_dump.statistics._layout import Layout, chunks, flatten, layout_of
from ascend_dump.statistics._merge import combine, combine_counts
from ascend_dump.statistics._overlap import distinct, merge
from ascend_dump.statistics._statistics import Statistics

__all__ = ["dtype_named", "find_nonfinite", "measure", "prepare"]

log = logging.getLogger("ascend_dump")

_Result = TypeVar("_Result")

#: Memory bandwidth is used up by a few threads, and the others belong to the program.
_MOST_THREADS = 4
#: Starting a thread and passing the interpreter around costs more than it saves below this size.
_PART_BYTES = 8 << 20
#: More parts than threads, for where one of the processors is busy with something else.
_PARTS_PER_THREAD = 4
#: A part begins at a multiple of it: whole blocks of the kernels, whole complex elements.
_PART_STEP = 1 << 11

_lock = threading.Lock()
_numba_tried = False
_numba: Optional[ModuleType] = None
_numba_error: Optional[Exception] = None


def measure(array: np.ndarray, engine: Optional[str], threads: Optional[int] = None) -> Statistics:
    array = np.asarray(array)
    layout = layout_of(array.dtype)
    module = _choose(engine)
    if array.size == 0:
        return Statistics(0, None, None, None, 0.0, 0, 0, 0, 0, 0, 0)
    parts = distinct(array)
    if len(parts) > 1 or parts[0][1] > 1:
        return merge([(measure(part, engine, threads), times) for part, times in parts])
    most = _MOST_THREADS if threads is None else threads
    partials: Any = None
    if module is not None:
        try:
            partials = _scan(array, layout, module, most)
        except Exception as error:  # whatever a compiler or its cache may raise: numpy can do the same work
            _give_up(error, engine)
    if partials is None:
        partials = _scan(array, layout, _numpy, most)
    if layout.table is not None:
        return combine_counts(layout.table, partials[0] if len(partials) == 1 else np.sum(partials, axis=0))
    return combine(array.size, layout, partials, lambda: array)


def find_nonfinite(array: np.ndarray, engine: Optional[str]) -> bool:
    array = np.asarray(array)
    layout = layout_of(array.dtype)
    module = _choose(engine)
    if array.size == 0:
        return False
    if layout.table is not None:
        if layout.table.finite:
            return False
        found = measure(array, engine)
        return bool(found.nan or found.posinf or found.neginf)
    if not layout.exponent:
        return False
    parts = distinct(array)
    if len(parts) > 1 or parts[0][1] > 1:
        return any(find_nonfinite(part, engine) for part, _ in parts)
    if module is not None:
        try:
            return _find(array, layout, module)
        except Exception as error:  # as in `measure`
            _give_up(error, engine)
    return _find(array, layout, _numpy)


def prepare(dtypes: Iterable[Union[str, np.dtype[Any], type]]) -> str:
    layouts = [layout_of(dtype_named(each)) for each in dtypes]
    module = _choose(None)
    if module is None:
        return "numpy"
    try:
        for layout in layouts:
            module.compile_kernels(layout)
    except Exception as error:  # as in `measure`
        _give_up(error, None)
        return "numpy"
    return "numba"


def dtype_named(name: Union[str, np.dtype[Any], type]) -> np.dtype[Any]:
    import ml_dtypes

    found = getattr(ml_dtypes, name, name) if isinstance(name, str) else name
    try:
        return np.dtype(found)
    except TypeError as error:
        raise ConfigError(f"no dtype {name!r}", hint="give the name of a numpy or ml_dtypes type") from error


def _choose(engine: Optional[str]) -> Optional[ModuleType]:
    """Give the numba engine, None where numpy has to compute."""
    if engine == "numpy":
        return None
    if engine not in (None, "numba"):
        raise ConfigError(
            f"engine={engine!r}, expected 'numpy', 'numba' or None", hint="None takes the fastest there is"
        )
    if not _numba_tried:
        _load()
    if _numba is None and engine == "numba":
        raise ConfigError(
            f"engine='numba', but numba cannot be used: {_numba_error}", hint="pip install 'ascend-dump[analyze]'"
        ) from _numba_error
    return _numba


def _load() -> None:
    global _numba_tried, _numba, _numba_error
    with _lock:
        if _numba_tried:
            return
        try:
            from ascend_dump.statistics import _numba

            _numba = _numba
        except Exception as error:  # a broken installation raises anything
            _numba_error = error
            # That it is not installed is no fault: it is an extra.
            if not (isinstance(error, ModuleNotFoundError) and error.name in ("numba", "llvmlite")):
                _warn(error)
        finally:
            _numba_tried = True


def _give_up(error: Exception, engine: Optional[str]) -> None:
    global _numba, _numba_error
    if engine == "numba":
        raise ConfigError(
            f"engine='numba', but numba failed: {type(error).__name__}: {error}", hint="leave engine out to use numpy"
        ) from error
    with _lock:
        first, _numba, _numba_error = _numba is not None, None, error
    if first:
        _warn(error)


def _warn(error: Exception) -> None:
    log.warning(
        "numba cannot compute statistics (%s: %s); numpy does, with the same results but several times slower. "
        "Repair or uninstall numba, or set NUMBA_CACHE_DIR to a directory that can be written.",
        type(error).__name__,
        str(error).strip().splitlines()[0] if str(error).strip() else "no message",
    )


def _scan(array: np.ndarray, layout: Layout, module: ModuleType, most: int) -> list[Any]:
    """Give what the engine finds in each block."""
    scan = module.scanner(layout)
    block = module.BLOCK
    if scan is None:
        scan, block = _numpy.scanner(layout), _numpy.BLOCK
    flat = flatten(array, layout)
    if flat is None:
        return [scan(words) for words in chunks(array, layout)]
    if flat.size <= block and flat.nbytes < _PART_BYTES:
        return [scan(flat)]

    def scan_part(part: np.ndarray) -> list[Any]:
        return [scan(part[start : start + block]) for start in range(0, part.size, block)]

    return [partial for partials in _over_parts(scan_part, flat, most) for partial in partials]


def _find(array: np.ndarray, layout: Layout, module: ModuleType) -> bool:
    find = module.finder(layout)
    flat = flatten(array, layout)
    if flat is None:
        return any(find(words) for words in chunks(array, layout))
    block = module.BLOCK

    def find_in_part(part: np.ndarray) -> bool:
        return any(find(part[start : start + block]) for start in range(0, part.size, block))

    return any(_over_parts(find_in_part, flat, _MOST_THREADS))


def _over_parts(task: Callable[[np.ndarray], _Result], flat: np.ndarray, most: int) -> list[_Result]:
    """Run a task that releases the GIL on the parts of an array, on this thread and some more: `most` in all.

    The threads end with the call: none is left behind to hang a forked process. Each takes the next part when it is
    done with one, so a thread that a busy machine starts late is not waited for. The results come in any order.
    """
    threads = min(most, _cpus(), flat.nbytes // _PART_BYTES)
    if threads < 2:
        return [task(flat)]
    size = max(_PART_BYTES // flat.itemsize, -(-flat.size // (threads * _PARTS_PER_THREAD)))
    size += -size % _PART_STEP
    parts = deque(flat[start : start + size] for start in range(0, flat.size, size))
    results: list[_Result] = []
    failures: list[BaseException] = []

    def work() -> None:
        try:
            while parts:
                try:
                    part = parts.popleft()
                except IndexError:
                    return  # another thread was faster
                results.append(task(part))
        except BaseException as error:  # raised by the calling thread when all threads have ended
            failures.append(error)
            parts.clear()

    helpers = [threading.Thread(target=work, name="ascend_dump-statistics") for _ in range(threads - 1)]
    started = []
    # No thread can be started while the interpreter exits.
    with contextlib.suppress(RuntimeError):
        for helper in helpers:
            helper.start()
            started.append(helper)
    work()
    for helper in started:
        helper.join()
    if failures:
        raise failures[0]
    return results


def _cpus() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
