"""Run compiled kernels over two arrays: select the kernel, divide the work among threads, and fall back to numpy."""

from __future__ import annotations

import functools
import logging
import os
from collections import deque
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Callable, NamedTuple, Optional

from ascend_dump.statistics.compiling import (
    ForkedInCompiler,
    announce_compiling,
    compiling,
    is_worth_loading,
    loading,
)

if TYPE_CHECKING:
    import numpy as np

    from ascend_dump.analysis.numerics.float_types import FloatKind

__all__ = ["Sums", "compiled_codes", "compiled_sums", "compiled_unequal", "first_code"]

log = logging.getLogger("ascend_dump")

#: Minimum number of elements for which a compiled kernel is faster than numpy.
_WORTH_CALLING = 1 << 13
#: Minimum number of elements for `compiled_codes`, whose parts each allocate a table of one megabyte.
_WORTH_COUNTING = 1 << 24
#: Elements per part. A thread gets at least two parts (about 0.3 ms of work), several times the cost of starting it.
#: Large tensors are split into about `_PARTS` parts, whose sizes are multiples of `_PART`.
_PART, _PARTS = 1 << 18, 32
_MOST_THREADS = 8

_failed = False
_compiled: set[Any] = set()


class Sums(NamedTuple):
    """Sums and maxima over one pair of arrays, from which `Measure` is computed.

    All but the last four fields and `nonfinite` are over the elements that are finite on both sides, and
    d = actual - reference.

    d2, b2, a2            sums of d^2, reference^2 and actual^2
    ab                    sum of actual * reference
    leaning               sum of d sign(reference)
    total                 sum of |reference|
    differing2            sum of reference^2, over the elements that differ
    differing             largest |reference|, over the elements that differ
    largest, where        largest |d|, and the index of an element that has it; -1 if no element is finite
    largest_rel, excess   as `max_rel` and `excess` of `Measure`
    unequal               number of elements that differ
    signed                sum of sign(d) sign(reference)
    finite                number of elements
    nonfinite             as in `Measure`
    first_nonfinite       index of the first element that counts as nonfinite; -1 if there is none
    nan, inf, ulp         as in `Measure`
    """

    d2: float
    b2: float
    a2: float
    ab: float
    leaning: float
    total: float
    differing2: float
    differing: float
    largest: float
    largest_rel: float
    excess: float
    where: int
    unequal: int
    signed: int
    finite: int
    nonfinite: int
    first_nonfinite: int
    nan: tuple[int, int]
    inf: tuple[int, int]
    ulp: Any


def compiled_sums(a: np.ndarray, b: np.ndarray, kind: FloatKind) -> Optional[Sums]:
    """Return the sums of two flat arrays of floats, whose types may differ; None if numpy has to compute them."""
    if not _is_worth_it(a.size):
        return None
    words_a, words_b = _words(a.dtype), _words(b.dtype)
    if words_a is None or words_b is None:
        return None
    parameters = (kind.mantissa, kind.lowest, kind.unit, a.dtype == b.dtype, 8 in (a.itemsize, b.itemsize))
    try:
        with loading():
            from ascend_dump.analysis.numerics.kernels import pair

        sides = (_read_only(a.view(words_a.dtype)), _read_only(b.view(words_b.dtype)))
        parts = _over_parts(pair, *sides, words_a.table, words_b.table, parameters)
    except Exception as error:  # whatever a compiler or its cache may raise: numpy can do the same work
        _give_up(error)
        return None
    return _merged(parts)


def compiled_codes(a: np.ndarray, b: np.ndarray) -> Optional[np.ndarray]:
    """Return the count of each pair of bytes (a, b), at index 256 * a + b, for types of one byte.

    None if numpy has to compare them.
    """
    import numpy as np

    if a.itemsize != 1 or b.itemsize != 1 or a.size < _WORTH_COUNTING or not _is_worth_it(a.size):
        return None
    try:
        with loading():
            from ascend_dump.analysis.numerics.kernels import count_codes

        parts = _over_parts(count_codes, *(_read_only(side.view(np.uint8)) for side in (a, b)))
    except Exception as error:  # as above
        _give_up(error)
        return None
    total: np.ndarray = sum(counts for _, counts in parts)
    return total


def first_code(a: np.ndarray, b: np.ndarray, codes: np.ndarray) -> int:
    """Return the index of the first pair of bytes (a, b) whose number 256 * a + b is in `codes`."""
    import numpy as np

    from ascend_dump.analysis.numerics.kernels import find_code

    selected = np.zeros(1 << 16, dtype=np.bool_)
    selected[codes] = True
    bytes_a, bytes_b = (_read_only(side.view(np.uint8)) for side in (a, b))
    return int(find_code(bytes_a, bytes_b, selected))


def compiled_unequal(a: np.ndarray, b: np.ndarray) -> Optional[tuple[int, float, int]]:
    """Return the number of unequal elements, the largest difference, and its index (-1 if there is none).

    Return None if numpy has to compute them: for small arrays, and unless both have the same integer or bool type.
    """
    import numpy as np

    if not _is_worth_it(a.size) or a.dtype != b.dtype or a.dtype.kind not in "iub" or not a.dtype.isnative:
        return None
    words = [_read_only(array.view(np.uint8) if array.dtype.kind == "b" else array) for array in (a, b)]
    try:
        with loading():
            from ascend_dump.analysis.numerics.kernels import count_unequal

        parts = _over_parts(count_unequal, *words)
    except Exception as error:  # as above
        _give_up(error)
        return None
    unequal = sum(counted[0] for _, counted in parts)
    # Indices are negated, so that `max` returns the smallest index of several equally large differences.
    differing = [(size, -(start + index)) for start, (_, size, index) in parts if index >= 0]
    largest, where = max(differing, default=(0.0, 1))
    return unequal, largest, -where


def _is_worth_it(size: int) -> bool:
    return not _failed and size >= _WORTH_CALLING and is_worth_loading(size)


def _give_up(error: Exception) -> None:
    global _failed
    _failed = True
    missing = isinstance(error, ModuleNotFoundError) and error.name in ("numba", "llvmlite")
    if not missing and not isinstance(error, ForkedInCompiler):
        log.warning(
            "numba failed (%s): tensors are compared by numpy instead, which is several times slower",
            type(error).__name__,
        )


class _Words(NamedTuple):
    """The integer type under which the kernels read a float type.

    table  the values of the 256 codes of an 8-bit float; else empty
    """

    dtype: np.dtype[Any]
    table: Any


@functools.lru_cache(maxsize=64)
def _words(dtype: np.dtype[Any]) -> Optional[_Words]:
    """Return the words of a type; None for a type that the kernels cannot read."""
    import numpy as np

    if not dtype.isnative:
        return None
    if dtype.name == "bfloat16":
        # Signed words are bfloat16, unsigned ones float16.
        return _Words(np.dtype(np.int16), ())
    if dtype.kind == "f" and dtype.itemsize in (2, 4, 8) and dtype.name.startswith("float"):
        return _Words(np.dtype(f"u{dtype.itemsize}"), ())
    if dtype.itemsize != 1:
        return None
    return _Words(np.dtype(np.uint8), _read_only(np.arange(256, dtype=np.uint8).view(dtype).astype(np.float64)))


def _read_only(array: np.ndarray) -> np.ndarray:
    """Return a read-only view. Memory maps are read-only; numba would compile a second kernel for writable arrays."""
    view: np.ndarray = array.view()
    view.flags.writeable = False
    return view


def _over_parts(kernel: Callable[..., Any], a: np.ndarray, b: np.ndarray, *parameters: Any) -> list[tuple[int, Any]]:
    """Return the results of a kernel for each part, with the index at which the part begins.

    This thread and a pool of threads work in parallel: each takes the next part when it has finished one. The threads
    of the pool end with the call.
    """
    signature = (kernel, a.dtype, b.dtype)
    if signature not in _compiled:
        with compiling():
            announce_compiling(kernel, "comparing tensors")
            kernel(a[:0], b[:0], *parameters)
        _compiled.add(signature)

    size = max(a.size // _PARTS // _PART, 1) * _PART
    waiting = deque(range(0, a.size, size))
    results: list[tuple[int, Any]] = []
    threads = min(_MOST_THREADS, _processors(), len(waiting) // 2)

    def work() -> None:
        while True:
            try:
                start = waiting.popleft()
            except IndexError:
                return
            results.append((start, kernel(*(_aligned(side[start : start + size]) for side in (a, b)), *parameters)))

    if threads < 2:
        work()
        return results
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(threads - 1, "ascend_dump-compare") as pool:
        futures = [pool.submit(work) for _ in range(threads - 1)]
        work()
    for future in futures:
        future.result()
    return sorted(results, key=itemgetter(0))


def _aligned(array: np.ndarray) -> np.ndarray:
    """Return the array, copied if its memory is not aligned: kernels are compiled for aligned arrays only."""
    return array if array.flags.aligned else _read_only(array.copy())


def _processors() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _merged(parts: list[tuple[int, Any]]) -> Sums:
    import numpy as np

    from ascend_dump.analysis.numerics.kernels import SUM_NAMES

    table = np.array([numbers for _, (numbers, _) in parts])
    with np.errstate(all="ignore"):  # sums that are not finite are computed again
        total = dict(zip(SUM_NAMES, table.sum(axis=0).tolist()))
    most = dict(zip(SUM_NAMES, table.max(axis=0).tolist()))
    ulp: np.ndarray = sum(counts for _, (_, counts) in parts)

    def first(name: str, index_name: str, value: float) -> int:
        """Return the global index under `index_name` in the first part whose `name` is at least `value`; else -1."""
        part = int((table[:, SUM_NAMES.index(name)] >= value).argmax())
        index = int(table[part, SUM_NAMES.index(index_name)])
        return parts[part][0] + index if index >= 0 else -1

    return Sums(
        d2=total["d2"],
        b2=total["b2"],
        a2=total["a2"],
        ab=total["ab"],
        leaning=total["leaning"],
        total=total["total"],
        differing2=total["differing2"],
        differing=most["differing"],
        largest=most["largest"],
        largest_rel=most["largest_rel"],
        excess=most["excess"],
        where=first("largest", "where", most["largest"]),
        unequal=int(ulp.sum()),
        signed=int(total["signed"]),
        finite=int(total["finite"]),
        nonfinite=int(total["nonfinite"]),
        first_nonfinite=first("nonfinite", "first_nonfinite", 1),
        nan=(int(total["nan_a"]), int(total["nan_b"])),
        inf=(int(total["inf_a"]), int(total["inf_b"])),
        ulp=ulp,
    )
