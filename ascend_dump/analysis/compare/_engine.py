"""Compiled kernels over the memory of two tensors: which one, on how many threads, and when numpy does it instead."""

from __future__ import annotations

import logging
import math
import os
import sys
import threading
from collections import deque
from typing import TYPE_CHECKING, Any, Callable, NamedTuple, Optional

if TYPE_CHECKING:
    import numpy as np

    from ascend_dump.analysis.compare._floats import FloatKind

__all__ = ["Sums", "compiled_sums", "compiled_unequal"]

log = logging.getLogger("ascend_dump")

#: Elements from which compiled kernels are worth loading numba, and worth calling where it is loaded.
_WORTH_LOADING = 1 << 20
_WORTH_CALLING = 1 << 13
#: Elements of a part: a whole number of blocks.
_PART = 1 << 20
_MOST_THREADS = 8

_failed = False


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


def compiled_sums(a: np.ndarray, b: np.ndarray, kind: FloatKind, name: str) -> Optional[Sums]:
    """The pass over two flat arrays of one float type; None where numpy has to do it."""
    if not _is_worth_it(a.size):
        return None
    try:
        task = _task(kind, name)
        if task is None:
            return None
        parts = _over_parts(task, *(_words(array) for array in (a, b)))
    except Exception as error:  # whatever a compiler or its cache may raise: numpy can do the same work
        _give_up(error)
        return None
    return _merged(parts)


def compiled_unequal(a: np.ndarray, b: np.ndarray) -> Optional[tuple[int, float, int]]:
    """Of exact types: how many elements differ, by how much at most, and where; None where numpy has to do it."""
    import numpy as np

    if not _is_worth_it(a.size) or a.dtype != b.dtype or a.dtype.kind not in "iub" or not a.dtype.isnative:
        return None
    if a.dtype.kind == "b":
        a, b = a.view(np.uint8), b.view(np.uint8)
    try:
        from ascend_dump.analysis.compare._kernels import count_unequal

        parts = _over_parts(count_unequal, a, b)
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
    """The bits: signed 64-bit words where there are so many bits, else unsigned ones."""
    return array.view({1: "u1", 2: "i2", 4: "u4", 8: "i8"}[array.dtype.itemsize])


def _task(kind: FloatKind, name: str) -> Optional[Callable[[Any, Any], Any]]:
    import numpy as np

    from ascend_dump.statistics._compiling import compiling

    with compiling():
        from ascend_dump.analysis.compare import _kernels
    known = (kind.mantissa, kind.lowest, kind.unit)
    if name == "float32":
        return lambda a, b: _kernels.pair_float32(a, b, *known)
    if name == "float64":
        return lambda a, b: _kernels.pair_float64(a, b, *known)
    if name == "bfloat16":
        halves = (np.int32(16), np.int32(-1), np.float32(1), 0x7F80)
        return lambda a, b: _kernels.pair_halves(a, b, *known, *halves)
    if name == "float16":
        halves = (np.int32(13), np.int32(-0x70002000), np.float32(2.0**112), 0x7C00)
        return lambda a, b: _kernels.pair_halves(a, b, *known, *halves)
    import ml_dtypes

    dtype = np.dtype(getattr(ml_dtypes, name))
    if dtype.itemsize != 1:
        return None
    table = np.arange(256, dtype=np.uint8).view(dtype).astype(np.float32)
    return lambda a, b: _kernels.pair_table(a, b, *known, table)


def _over_parts(task: Callable[[Any, Any], Any], a: np.ndarray, b: np.ndarray) -> list[tuple[int, Any]]:
    """What a task that releases the GIL gives for each part, with where the part begins.

    The threads end with the call, and each takes the next part when it is done with one.
    """
    threads = min(_MOST_THREADS, _processors(), a.size // _PART)
    if threads < 2:
        return [(0, task(a, b))]
    waiting = deque(range(0, a.size, _PART))
    found: list[tuple[int, Any]] = []
    failures: list[Exception] = []

    def work() -> None:
        try:
            while not failures:
                start = waiting.popleft()
                found.append((start, task(a[start : start + _PART], b[start : start + _PART])))
        except IndexError:
            return  # nothing is left
        except Exception as error:
            failures.append(error)

    # The first part compiles the kernel, so that no two threads do.
    start = waiting.popleft()
    found.append((start, task(a[:_PART], b[:_PART])))
    helpers = [threading.Thread(target=work, name="ascend_dump-compare") for _ in range(threads - 1)]
    for helper in helpers:
        helper.start()
    work()
    for helper in helpers:
        helper.join()
    if failures:
        raise failures[0]
    return sorted(found, key=lambda part: part[0])


def _processors() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _merged(parts: list[tuple[int, Any]]) -> Sums:
    from ascend_dump.analysis.compare._kernels import SUM_NAMES

    every = [(start, dict(zip(SUM_NAMES, values.tolist()))) for start, (values, _) in parts]

    def total(name: str) -> float:
        return math.fsum(values[name] for _, values in every)

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
        unequal=int(total("unequal")),
        signed=int(total("signed")),
        finite=int(total("finite")),
        nonfinite=int(total("nonfinite")),
        first_nonfinite=first,
        nan=(int(total("nan_a")), int(total("nan_b"))),
        inf=(int(total("inf_a")), int(total("inf_b"))),
        ulp=sum(ulp.sum(axis=0)[:-1] for _, (_, ulp) in parts),
    )
