"""Hashes and statistics of many tensors, as one function that any number of threads of any runtime may run at once.

The function takes jobs from a list until none is left. It touches no Python object: the threads need not be Python's.
Of a tensor that is both hashed and scanned each part is read from memory once: the scan finds it in the cache.
What numba keeps of it holds the kernels too: touch this file after a change of theirs.
"""

from __future__ import annotations

from typing import Any, Callable, cast

import numba
import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from ascend_dump.statistics import _kernels as kernels
from ascend_dump.statistics._merge import ORDINARY
from ascend_dump.statistics._numba_primitives import inner

__all__ = ["FLOATS", "FUNCTIONS", "HASH", "JOB", "MEANWHILE", "PART", "PYTHON", "RAISED", "ROW", "UNUSUAL", "work"]

#: What a job does: scan a part that holds floats of a type, by the position of its name here; hash; or do both, which
#: is HASH and 1 and that position, for all parts of a tensor.
FLOATS = ("float32", "bfloat16", "float16", "float64")
HASH = len(FLOATS)
#: Bytes of a part, which the caches next to a CPU hold. A sum over the sums of parts does not depend on who made them.
PART = 256 << 10
#: 64-bit integers of a job: what it does, the address, the number of bytes, and the rows that it fills: of the digest,
#: and the first of those of parts.
JOB = 5
#: 64-bit numbers of a row: the digest in the first two, or what a scan returns.
ROW = 9
#: The functions of xxhash whose addresses `work` is given. Builds for x86 have two more that use the vectors of the CPU
#: they run on, and take half the time.
FUNCTIONS = (
    ("XXH3_128bits_dispatch", "XXH3_128bits"),
    ("XXH3_createState",),
    ("XXH3_128bits_reset",),
    ("XXH3_128bits_update_dispatch", "XXH3_128bits_update"),
    ("XXH3_128bits_digest",),
    ("XXH3_freeState",),
)
#: The functions of Python whose addresses `work` is given. A callback of ctypes would lose what a signal handler raises
#: as Python begins.
PYTHON = ("PyGILState_Ensure", "PyObject_CallObject", "Py_DecRef", "PyErr_Fetch", "PyGILState_Release")
#: 64-bit integers of what `work` is given: jobs taken, jobs there are, whether a scan found sums that are not ordinary;
#: addresses of jobs and results; a Python object that one thread calls before it takes jobs, 0 if none or when that is
#: done, what it raised as `PyErr_Fetch` gives it, and that thread; the function that tells a thread which it is,
#: `PYTHON`, and `FUNCTIONS`.
_HEAD = 11 + len(PYTHON) + len(FUNCTIONS)
#: Positions of some.
UNUSUAL, MEANWHILE, RAISED = 2, 5, 6


_array: Any = vars(numba)["carray"]


def _intrinsic(function: Callable[..., Any]) -> Callable[..., Any]:
    return cast("Callable[..., Any]", intrinsic(function))


@_intrinsic
def _pointer(typing: Any, address: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.inttoptr(arguments[0], context.get_value_type(types.voidptr))

    return types.voidptr(types.int64), generate


@_intrinsic
def _take(typing: Any, address: Any) -> Any:
    """Give the integer at an address, and leave there the next one for other threads."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        integer = ir.IntType(64)
        place = builder.inttoptr(arguments[0], integer.as_pointer())
        return builder.atomic_rmw("add", place, ir.Constant(integer, 1), "monotonic")

    return types.int64(types.int64), generate


@_intrinsic
def _swapped(typing: Any, value: Any) -> Any:
    """The bytes from the high end on, as a digest is written."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.bswap(arguments[0])

    return types.uint64(types.uint64), generate


@_intrinsic
def _call(typing: Any, function: Any, arguments: Any) -> Any:
    """Call a C function of 64-bit integers or addresses that gives one, or nothing."""

    def generate(context: Any, builder: Any, signature: Any, given: Any) -> Any:
        integer = ir.IntType(64)
        values = [builder.extract_value(given[1], i) for i in range(arguments.count)]
        kind = ir.FunctionType(integer, [integer] * len(values))
        return builder.call(builder.inttoptr(given[0], kind.as_pointer()), values)

    return types.int64(types.int64, arguments), generate


@_intrinsic
def _call_hash(typing: Any, function: Any, arguments: Any) -> Any:
    """Call one that gives a hash: two 64-bit halves, which x86-64 and AArch64 return in two registers."""
    halves = cast(Any, types).UniTuple(types.uint64, 2)

    def generate(context: Any, builder: Any, signature: Any, given: Any) -> Any:
        integer = ir.IntType(64)
        values = [builder.extract_value(given[1], i) for i in range(arguments.count)]
        kind = ir.FunctionType(ir.LiteralStructType([integer, integer]), [integer] * len(values))
        found = builder.call(builder.inttoptr(given[0], kind.as_pointer()), values)
        return context.make_tuple(builder, halves, [builder.extract_value(found, half) for half in (0, 1)])

    return halves(types.int64, arguments), generate


@inner()
def _scan(kind: Any, address: Any, nbytes: Any, result: Any) -> Any:
    """Fill a row; tells whether its sums may have left their range."""
    if kind == 0:
        count = nbytes >> 2
        found = kernels.scan_float32(_array(_pointer(address), count, np.uint32))
    elif kind == 1:
        count = nbytes >> 1
        found = kernels.scan_bfloat16(_array(_pointer(address), count, np.uint16))
    elif kind == 2:
        count = nbytes >> 1
        found = kernels.scan_float16(_array(_pointer(address), count, np.uint16))
    else:
        count = nbytes >> 3
        found = kernels.scan_float64(_array(_pointer(address), count, np.uint64))
    top, low, total, squares, nan, posinf, neginf, poszero, negzero = found
    result[0], result[1], result[2], result[3] = top, low, total, squares
    result[4], result[5], result[6] = nan, posinf, neginf
    result[7], result[8] = poszero, negzero
    return not (1 / ORDINARY < squares < ORDINARY or poszero + negzero == count)


@inner()
def _call_python(head: Any, given: Any) -> None:
    ensure, call, let_go, fetch, release = given[11], given[12], given[13], given[14], given[15]
    held = _call(ensure, ())
    _call(let_go, (_call(call, (given[MEANWHILE], 0)),))
    raised = head + 8 * RAISED
    _call(fetch, (raised, raised + 8, raised + 16))
    given[MEANWHILE] = 0
    _call(release, (held,))


def _work(head: Any) -> None:
    given = _array(_pointer(head), _HEAD, np.int64)
    count = given[1]
    jobs = _array(_pointer(given[3]), (count, JOB), np.int64)
    results, thread, current = given[4], given[9], given[10]
    hash_all, create, reset, update, digest, free = given[16], given[17], given[18], given[19], given[20], given[21]
    if given[MEANWHILE] != 0 and _call(current, ()) == thread:
        _call_python(head, given)
    state = 0
    while True:
        i = _take(head)
        if i >= count:
            break
        kind, address, nbytes = jobs[i, 0], jobs[i, 1], jobs[i, 2]
        place = results + jobs[i, 4] * 8 * ROW
        if kind < HASH:
            if _scan(kind, address, nbytes, _array(_pointer(place), ROW, np.float64)):
                given[UNUSUAL] = 1
            continue
        if kind == HASH:
            low, high = _call_hash(hash_all, (address, nbytes))
        else:
            if state == 0:
                state = _call(create, ())
            _call(reset, (state,))
            for begin in range(0, nbytes, PART):
                part = min(PART, nbytes - begin)
                _call(update, (state, address + begin, part))
                if _scan(kind - HASH - 1, address + begin, part, _array(_pointer(place), ROW, np.float64)):
                    given[UNUSUAL] = 1
                place += 8 * ROW
            low, high = _call_hash(digest, (state,))
        written = _array(_pointer(results + jobs[i, 3] * 8 * ROW), 2, np.uint64)
        written[0], written[1] = _swapped(high), _swapped(low)
    if state != 0:
        _call(free, (state,))


work: Any = cast(Any, numba).cfunc(types.void(types.int64), cache=True)(_work)
