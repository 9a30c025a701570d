"""Compiled kernels over the memory of two tensors: which one, on how many threads, and when numpy does it instead."""

from __future__ import annotations

import functools
import logging
import os
import sys
from typing import TYPE_CHECKING, Any, Callable, NamedTuple, Optional

from ascend_dump.statistics._compiling import compiling

if TYPE_CHECKING:
    import numpy as np

    from ascend_dump.analysis.compare._floats import FloatKind

__all__ = ["Sums", "compiled_sums", "compiled_unequal"]

log = logging.getLogger("ascend_dump")

#: Elements from which compiled kernels are worth loading numba, and worth calling where it is loaded.
_WORTH_LOADING = 1 << 20
_WORTH_CALLING = 1 << 13
#: Elements of a part: a thread has work for about half a millisecond, many times what it takes to start one.
_PART = 1 << 18
_MOST_THREADS = 8

_failed = False
_compiled: set[Any] = set()


class Sums(NamedTuple):
    """What one pass over a pair gives; the names are those of `Measure`, or of what it is computed from."""

    d2: float
    b2: float
    a2: float
    ab: float
    leaning: float
    total: float
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
    """The pass over two flat arrays of floats, whose types may differ; None where numpy has to do it."""
    if not _is_worth_it(a.size):
        return None
    tables = [_table(array.dtype) for array in (a, b)]
    if any(table is None for table in tables):
        return None
    words = [_words(array) for array in (a, b)]
    known = (kind.mantissa, kind.lowest, kind.unit, a.dtype == b.dtype, "float64" in (a.dtype.name, b.dtype.name))
    try:
        with compiling():
            from ascend_dump.analysis.compare._kernels import pair

        parts = _over_parts(pair, *words, *tables, known)
    except Exception as error:  # whatever a compiler or its cache may raise: numpy can do the same work
        _give_up(error)
        return None
    return _merged(parts)


def compiled_unequal(a: np.ndarray, b: np.ndarray) -> Optional[tuple[int, float, int]]:
    """Of exact types: how many elements differ, by how much at most, and where; None where numpy has to do it."""
    import numpy as np

    if not _is_worth_it(a.size) or a.dtype != b.dtype or a.dtype.kind not in "iub" or not a.dtype.isnative:
        return None
    words = [_read_only(array.view(np.uint8) if array.dtype.kind == "b" else array) for array in (a, b)]
    try:
        with compiling():
            from ascend_dump.analysis.compare._kernels import count_unequal

        parts = _over_parts(count_unequal, *words)
    except Exception as error:  # as above
        _give_up(error)
        return None
    unequal = sum(found[0] for _, found in parts)
    largest, where = max(((size, -(start + at)) for start, (_, size, at) in parts if at >= 0), default=(0.0, 1))
    return unequal, largest, -where


def _is_worth_it(size: int) -> bool:
    return not _failed and size >= (_WORTH_CALLING if "numba" in sys.modules else _WORTH_LOADING)


def _give_up(error: Exception) -> None:
    global _failed
    _failed = True
    if not (isinstance(error, ModuleNotFoundError) and error.name in ("numba", "llvmlite")):
        log.warning("numba cannot compare tensors (%s); numpy does, several times slower", type(error).__name__)


def _words(array: np.ndarray) -> np.ndarray:
    """The bits as the kernels tell types by them: those of bfloat16 are signed."""
    name = "i2" if array.dtype.name == "bfloat16" else f"u{array.dtype.itemsize}"
    return _read_only(array.view(name))


def _read_only(array: np.ndarray) -> np.ndarray:
    """The array as memory maps are: numba compiles a kernel for writable ones once more."""
    view: np.ndarray = array.view()
    view.flags.writeable = False
    return view


@functools.lru_cache(maxsize=64)
def _table(dtype: np.dtype[Any]) -> Any:
    """The values of a type of 8 bits, () of a wider one that the kernels know, None of any other."""
    import numpy as np

    if not dtype.isnative:
        return None
    if dtype.name in ("float32", "float64", "bfloat16", "float16"):
        return ()
    if dtype.itemsize != 1:
        return None
    return _read_only(np.arange(256, dtype=np.uint8).view(dtype).astype(np.float64))


def _over_parts(kernel: Callable[..., Any], a: np.ndarray, b: np.ndarray, *how: Any) -> list[tuple[int, Any]]:
    """What a kernel that releases the GIL gives for each part, with where the part begins.

    The threads end with the call, and each takes the next part when it is done with one.
    """
    signature = (kernel, a.dtype, b.dtype)
    if signature not in _compiled:
        with compiling():
            kernel(a[:0], b[:0], *how)
        _compiled.add(signature)

    def part(start: int) -> tuple[int, Any]:
        return start, kernel(*(_aligned(side[start : start + _PART]) for side in (a, b)), *how)

    threads = min(_MOST_THREADS, _processors(), -(-a.size // _PART))
    starts = range(0, a.size, _PART)
    if threads < 2:
        return [part(start) for start in starts]
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(threads, "ascend_dump-compare") as pool:
        return list(pool.map(part, starts))


def _aligned(array: np.ndarray) -> np.ndarray:
    """The array, copied where its elements are at odd addresses: kernels are compiled for others only."""
    return array if array.flags.aligned else _read_only(array.copy())


def _processors() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _merged(parts: list[tuple[int, Any]]) -> Sums:
    from ascend_dump.analysis.compare._kernels import SUM_NAMES, merged_counts

    every = [(start, dict(zip(SUM_NAMES, values.tolist()))) for start, (values, _) in parts]
    unequal, signed, ulp = merged_counts(sum(counts for _, (_, counts) in parts))

    def total(name: str) -> float:
        return float(sum(values[name] for _, values in every))

    def most(name: str) -> float:
        return float(max(values[name] for _, values in every))

    largest = most("largest")
    where = next((start + int(v["where"]) for start, v in every if v["where"] >= 0 and v["largest"] == largest), -1)
    first = next((start + int(v["first_nonfinite"]) for start, v in every if v["first_nonfinite"] >= 0), -1)
    return Sums(
        d2=total("d2"),
        b2=total("b2"),
        a2=total("a2"),
        ab=total("ab"),
        leaning=total("leaning"),
        total=total("total"),
        largest=largest,
        largest_rel=most("largest_rel"),
        excess=most("excess"),
        where=where,
        unequal=unequal,
        signed=signed,
        finite=int(total("finite")),
        nonfinite=int(total("nonfinite")),
        first_nonfinite=first,
        nan=(int(total("nan_a")), int(total("nan_b"))),
        inf=(int(total("inf_a")), int(total("inf_b"))),
        ulp=ulp,
    )
