"""Compute statistics: choose numba or numpy, split the array into blocks, and process them on several threads."""

from __future__ import annotations

import contextlib
import logging
import math
import os
import threading
from collections import deque
from collections.abc import Iterable
from typing import Any, Callable, Optional, TypeVar, Union

import ml_dtypes
import numpy as np

from ascend_dump.errors import ConfigError
from ascend_dump.statistics._layout import Engine, Layout, chunks, flatten, layout_of
from ascend_dump.statistics._merge import combine, combine_counts
from ascend_dump.statistics._numpy import NUMPY
from ascend_dump.statistics._overlap import distinct
from ascend_dump.statistics._table import Statistic, merged, optional_statistics
from ascend_dump.statistics._value import Statistics
from ascend_dump.statistics._widen import widen
from ascend_dump.statistics.compiling import ForkedInCompiler, is_worth_loading, loading

__all__ = ["compiled", "dtype_named", "is_ready", "statistics", "warm_up"]

log = logging.getLogger("ascend_dump")

_Result = TypeVar("_Result")

#: Maximum number of threads. A few of them use the full memory bandwidth; other processors are left to the program.
_MOST_THREADS = 4
#: Minimum size of a part in bytes, so that starting a thread pays off.
_PART_BYTES = 8 << 20
#: Parts per thread. There are more parts than threads, so that one slow processor does not delay the result.
_PARTS_PER_THREAD = 4
#: The number of words in a part is a multiple of this, so that parts have complete blocks and complex elements.
_PART_STEP = 1 << 11

#: The types that are most common in training.
_COMMON = ("float32", "bfloat16", "float16", "float64", "int64", "int32", "bool")

_numba_tried = False
#: The engine of numba; None before it is loaded, and if it cannot be used.
_numba: Optional[Engine] = None
_numba_error: Optional[Exception] = None


def statistics(
    array: np.ndarray, *, engine: Optional[str] = None, threads: Optional[int] = None, optional: Iterable[str] = ()
) -> Statistics:
    """Compute the statistics of an array of any shape, memory order, alignment and byte order, without copying it.

    engine: "numba", "numpy", or None. None selects numba if numba is installed, and if it is loaded already or numpy
    has processed so many elements that loading numba saves time. Both engines return the same counts, maximum and
    minimum. Their means agree to about 1e-12 of the mean magnitude, their l2norms to about 1e-12.
    threads: maximum number of threads for a large array, including the calling thread; None: four.
    optional: names of statistics that are computed only on request, in a second pass ("variance", "skewness",
    "kurtosis"). Optional statistics that these are computed from are included.

    dtypes: float16/32/64, integers of 8 to 64 bits, bool, complex64/128, and from ml_dtypes bfloat16, the floats of
    8, 6 and 4 bits, the integers of 1, 2 and 4 bits, and complex32 and bcomplex32.

    - Sums are computed in float64. If a sum or square overflows or underflows, it is computed again on scaled values,
      so that l2norm is Inf only if the norm itself exceeds float64. Sums of integers are exact; of one-byte elements
      all results are exact, rounded once.
    - max and min of bool are the ints 0 and 1. A max of zero is +0.0 if the array contains +0.0, and a min of zero is
      -0.0 if the array contains -0.0.
    - For complex elements max, min, mean and l2norm are those of the magnitude, in float64 (if a complex128
      magnitude exceeds float64, max is Inf). `nan` counts elements with a NaN part, `posinf` those with an infinite
      and no NaN part, `neginf` is 0, and `zero` and `poszero` count those with two zero parts of any sign.
    - Elements that share memory, by broadcasting (strides of 0) or in sliding windows, are read once and counted as
      often as they occur.
    - For an empty array max, min and mean are None, l2norm is 0.0 and the counts are 0.

    Raises ConfigError (AD101) for other dtypes and engines. Thread-safe; threads that it starts end with the call.
    """
    array = np.asarray(array)
    layout = layout_of(array.dtype)
    chosen = _choose(engine) if engine is not None or is_worth_loading(array.size) else NUMPY
    if array.size == 0:
        return Statistics(0, None, None, None, 0.0, 0, 0, 0, 0, 0, 0)
    parts = distinct(array)
    if len(parts) > 1 or parts[0][1] > 1:
        found = [statistics(part, engine=engine, threads=threads, optional=optional) for part, _ in parts]
        return merged(found, [times for _, times in parts])
    most = _MOST_THREADS if threads is None else threads
    try:
        partials = _scan(array, layout, chosen, most)
    except Exception as error:  # a compiler or its cache may raise anything; numpy computes the same
        if chosen is NUMPY:
            raise
        _give_up(error, engine)
        partials = _scan(array, layout, NUMPY, most)
    if layout.table is not None:
        computed = combine_counts(layout.table, partials[0] if len(partials) == 1 else np.sum(partials, axis=0))
    else:
        computed = combine(array.size, layout, partials, lambda: array)
    if not optional:
        return computed
    added = optional_statistics(optional)
    try:
        return _with_optional(computed, array, layout, chosen, added)
    except Exception as error:  # as above
        if chosen is NUMPY:
            raise
        _give_up(error, engine)
        return _with_optional(computed, array, layout, NUMPY, added)


def _with_optional(
    computed: Statistics, array: np.ndarray, layout: Layout, engine: Engine, added: tuple[Statistic, ...]
) -> Statistics:
    """Return `computed` with the optional statistics `added`, which are sums over deviations from the mean.

    They are NaN if an element is not finite.
    """
    highest, lowest, mean = computed.max, computed.min, computed.mean
    values: dict[str, Any] = {entry.name: math.nan for entry in added}
    if highest is None or lowest is None or mean is None or not all(map(math.isfinite, (highest, lowest, mean))):
        return computed._replace(**values)
    # Fourth powers of float64 elements can exceed float64, so their elements are scaled by a power of two.
    is_wide = layout.kind in ("float", "complex") and layout.word.itemsize == 8
    exponent = math.frexp(max(abs(highest), abs(lowest)))[1] if is_wide else 0
    center = math.ldexp(mean, -exponent)
    sums = [engine.sum_of(entry) for entry in added]
    totals: list[list[float]] = []
    # If all elements are equal, the sums are 0. Computing them would add the rounding error of the mean.
    with np.errstate(all="ignore"):
        for words in chunks(array, layout) if highest > lowest else ():
            chunk = widen(layout, words, -exponent)
            totals.append([float(sum_of(chunk, center)) for sum_of in sums])
    columns = zip(*totals) if totals else [(0.0,)] * len(added)
    averages = {entry.name: math.fsum(column) / array.size for entry, column in zip(added, columns)}
    values.update({entry.name: entry.finish(averages, exponent) for entry in added})
    return computed._replace(**values)


def warm_up(dtypes: Iterable[Union[str, np.dtype[Any], type]] = _COMMON, optional: Iterable[str] = ()) -> str:
    """Load numba, and compile the kernels for these dtypes and optional statistics, or load them from numba's cache.

    Without this, the first call of `statistics` for a dtype compiles or loads its kernel. Compiling takes about a
    second per dtype, once on a machine; loading takes some hundredths of a second. Returns the engine that `statistics`
    will use, "numba" or "numpy".
    Raises ConfigError (AD101) for dtypes that have no statistics. A failure of numba is only logged, as a warning.
    """
    layouts = [layout_of(dtype_named(each)) for each in dtypes]
    engine = _choose(None)
    try:
        for layout in layouts:
            engine.prepare(layout)
        for entry in optional_statistics(optional):
            engine.sum_of(entry)
    except Exception as error:  # as in `statistics`
        _give_up(error, None)
        return "numpy"
    return "numpy" if engine is NUMPY else "numba"


def is_ready(dtype: np.dtype[Any], optional: Iterable[str] = ()) -> bool:
    """Return True if `statistics` of a dtype does not have to compile: its kernels are compiled, or numba is unusable.

    Raises ConfigError (AD101) for a dtype that has no statistics.
    """
    layout = layout_of(dtype)
    return _numba_tried and (_numba is None or _numba.is_ready(layout, optional_statistics(optional)))


def compiled(layout: Layout) -> Optional[Callable[[np.ndarray], Any]]:
    """Return numba's kernel for a layout if it is compiled already; else None."""
    return _numba.scanner(layout) if _numba is not None and _numba.is_ready(layout, ()) else None


def dtype_named(name: Union[str, np.dtype[Any], type]) -> np.dtype[Any]:
    candidate = getattr(ml_dtypes, name, name) if isinstance(name, str) else name
    try:
        return np.dtype(candidate)
    except TypeError as error:
        raise ConfigError(f"no dtype {name!r}", hint="give the name of a numpy or ml_dtypes type") from error


def _choose(engine: Optional[str]) -> Engine:
    if engine == "numpy":
        return NUMPY
    if engine not in (None, "numba"):
        raise ConfigError(f"engine={engine!r}, expected 'numpy', 'numba' or None", hint="None chooses the fastest")
    if not _numba_tried:
        _load()
    if _numba is None and engine == "numba":
        raise ConfigError(
            f"engine='numba', but numba cannot be used: {_numba_error}", hint="pip install 'ascend-dump[analyze]'"
        ) from _numba_error
    return _numba or NUMPY


def _load() -> None:
    global _numba_tried, _numba, _numba_error
    with loading():
        if _numba_tried:
            return
        try:
            from ascend_dump.statistics._numba import NUMBA

            _numba = NUMBA
        except Exception as error:  # a broken installation raises anything
            _numba_error = error
            # There is no warning if numba is not installed, because it is an optional dependency.
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
    with loading():
        first, _numba, _numba_error = _numba is not None, None, error
    if first and not isinstance(error, ForkedInCompiler):
        _warn(error)


def _warn(error: Exception) -> None:
    log.warning(
        "numba cannot compute statistics (%s: %s): numpy is used instead, which is several times slower. "
        "Repair or uninstall numba, or set NUMBA_CACHE_DIR to a directory that can be written.",
        type(error).__name__,
        str(error).strip().splitlines()[0] if str(error).strip() else "no message",
    )


def _scan(array: np.ndarray, layout: Layout, engine: Engine, most: int) -> list[Any]:
    """Return the engine's result for each block of the array. most: the maximum number of threads."""
    scan = engine.scanner(layout)
    block = engine.block
    if scan is None:
        scan, block = NUMPY.scanner(layout), NUMPY.block
    assert scan is not None, "numpy has a scanner for every layout"
    flat = flatten(array, layout)
    if flat is None:
        return [scan(words) for words in chunks(array, layout)]
    if flat.size <= block and flat.nbytes < _PART_BYTES:
        return [scan(flat)]

    def scan_part(part: np.ndarray) -> list[Any]:
        return [scan(part[start : start + block]) for start in range(0, part.size, block)]

    return [partial for partials in _over_parts(scan_part, flat, most) for partial in partials]


def _over_parts(task: Callable[[np.ndarray], _Result], flat: np.ndarray, most: int) -> list[_Result]:
    """Call `task` for each part of an array, on up to `most` threads including the calling thread.

    `task` has to release the GIL. Each thread takes the next part when it has finished one, so the results are in any
    order. The threads end with the call: a pool of threads could hang in a forked process.
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
                    return  # no parts are left
                results.append(task(part))
        except BaseException as error:  # the calling thread raises it again after all threads have ended
            failures.append(error)
            parts.clear()

    helpers = [threading.Thread(target=work, name="ascend_dump-statistics") for _ in range(threads - 1)]
    started = []
    # Starting a thread raises RuntimeError while the interpreter exits; then this thread processes all parts.
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
