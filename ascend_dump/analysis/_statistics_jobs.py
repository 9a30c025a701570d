"""Hashes and statistics of many tensors, as one function that any number of threads of any runtime may run at once.

The function takes jobs from a list until none is left. It touches no Python object: the threads need not be Python's.
What numba keeps of it holds the kernels too: touch this file after a change of theirs.
"""

from __future__ import annotations

from typing import Any, Callable, cast

import numba
import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from ascend_dump.analysis import _statistics_kernels as kernels

__all__ = ["FLOATS", "HASH", "HEAD", "JOB", "RESULT", "work"]

#: What a job does: hash, or scan the words of a float, by the position of its name here.
FLOATS = ("float32", "bfloat16", "float16", "float64")
HASH = len(FLOATS)
#: 64-bit integers of a job: what it does, the address, and bytes to hash or words to scan.
JOB = 3
#: 64-bit numbers that a job leaves: the low and high half of a hash, or what a scan returns.
RESULT = 9
#: 64-bit integers of what `work` is given: jobs taken, jobs there are, addresses of XXH3_128bits, jobs and results.
HEAD = 5


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
def _call_hash(typing: Any, function: Any, address: Any, nbytes: Any) -> Any:
    """Call XXH3_128bits(address, nbytes): two 64-bit halves, which x86-64 and AArch64 return in two registers."""
    halves = cast(Any, types).UniTuple(types.uint64, 2)

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        integer = ir.IntType(64)
        kind = ir.FunctionType(ir.LiteralStructType([integer, integer]), [integer, integer])
        found = builder.call(builder.inttoptr(arguments[0], kind.as_pointer()), arguments[1:])
        return context.make_tuple(builder, halves, [builder.extract_value(found, half) for half in (0, 1)])

    return halves(types.int64, types.int64, types.int64), generate


def _work(head: Any) -> None:
    state = _array(_pointer(head), HEAD, np.int64)
    count = state[1]
    jobs = _array(_pointer(state[3]), (count, JOB), np.int64)
    results = _array(_pointer(state[4]), (count, RESULT), np.float64)
    hashes = _array(_pointer(state[4]), (count, RESULT), np.uint64)
    while True:
        i = _take(head)
        if i >= count:
            break
        kind, address, size = jobs[i, 0], jobs[i, 1], jobs[i, 2]
        if kind == HASH:
            hashes[i, 0], hashes[i, 1] = _call_hash(state[2], address, size)
            continue
        if kind == 0:
            found = kernels.scan_float32(_array(_pointer(address), size, np.uint32))
        elif kind == 1:
            found = kernels.scan_bfloat16(_array(_pointer(address), size, np.uint16))
        elif kind == 2:
            found = kernels.scan_float16(_array(_pointer(address), size, np.uint16))
        else:
            found = kernels.scan_float64(_array(_pointer(address), size, np.uint64))
        top, low, total, squares, nan, posinf, neginf, poszero, negzero = found
        results[i, 0], results[i, 1], results[i, 2], results[i, 3] = top, low, total, squares
        results[i, 4], results[i, 5], results[i, 6] = nan, posinf, neginf
        results[i, 7], results[i, 8] = poszero, negzero


work: Any = cast(Any, numba).cfunc(types.void(types.int64), cache=True)(_work)
