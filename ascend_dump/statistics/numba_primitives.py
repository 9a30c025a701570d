"""Decorators that compile numba kernels, and operations that, unlike numba's, do not convert integers to 64 bits.

numba compiles a cached kernel again only if the kernel's own file changes. After a change of this module, touch the
files of all kernels.
"""

from __future__ import annotations

import functools
import os
from typing import Any, Callable, TypeVar, cast

import numba
import numba.extending
from llvmlite import ir
from numba import types
from numba.core import config as numba_config

from ascend_dump.common.paths import is_private, make_private_directory, user_cache
from ascend_dump.errors import WriteError

__all__ = [
    "BLOCK",
    "SUMS",
    "as_float",
    "float_bits",
    "high_half",
    "inner",
    "intrinsic",
    "kernel",
    "larger",
    "largest_exponent",
    "like",
    "low_half",
    "prefetch",
    "two_sum",
]

#: Typed as Any, because numba defines the attributes of its configuration at run time.
_config: Any = numba_config
_Function = TypeVar("_Function", bound=Callable[..., Any])

#: Number of words in a block. They take 16 KiB as float64, and counters of 16 bits are large enough for them.
BLOCK = 2048
#: Fast-math flags: the compiler may reorder and fuse sums to vectorise them. NaN, Inf and signed zeros stay correct.
SUMS = frozenset({"reassoc", "contract"})


def inner(fastmath: Any = (), *, inline: bool = False) -> Callable[[_Function], _Function]:
    """Return a decorator that compiles a function for calls by kernels. inline: always inline it."""
    return cast("Callable[[_Function], _Function]", numba.njit(fastmath=set(fastmath), forceinline=inline, nogil=True))


@functools.cache
def _directory() -> str:
    """Return the directory for compiled kernels; "" if it cannot be created, or if other users can write to it.

    Compiled kernels are executed, so nobody else may replace them.
    """
    directory = user_cache() / "numba"
    try:
        make_private_directory(directory)
        safe = all(is_private(os.lstat(level)) for level in (directory.parent, directory))
    except (OSError, WriteError):
        return ""
    return os.fspath(directory) if safe else ""


def kernel(function: _Function, fastmath: Any = ()) -> _Function:
    """Compile a function for calls by Python, which releases the GIL.

    The compiled code is cached in the directory that NUMBA_CACHE_DIR names, else in the user's cache directory. If the
    latter is not writable, or if other users can write to it, numba chooses another directory. Only call this while no
    other thread loads or compiles, because the call changes numba's configuration for a moment.
    """
    before = _config.CACHE_DIR
    _config.CACHE_DIR = before or _directory()
    try:
        return cast(_Function, numba.njit(cache=True, nogil=True, fastmath=set(fastmath))(function))
    finally:
        _config.CACHE_DIR = before


def intrinsic(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return `numba.extending.intrinsic(function)`. The function returns the signature and the code generator."""
    return cast("Callable[..., Any]", numba.extending.intrinsic(function))


@intrinsic
def as_float(typing: Any, word: Any, shift: Any, mask: Any) -> Any:
    """Return the float64 value of a float's bits.

    A word of 16 bits is shifted left by `shift` and masked with `mask`. The result has to be the bits of a float32.
    """

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        bits, shift, mask = arguments
        if word.bitwidth == 64:
            return builder.bitcast(bits, ir.DoubleType())
        if word.bitwidth == 16:
            bits = builder.and_(builder.shl(builder.sext(bits, ir.IntType(32)), shift), mask)
        return builder.fpext(builder.bitcast(bits, ir.FloatType()), ir.DoubleType())

    return types.float64(word, types.int32, types.int32), generate


@intrinsic
def float_bits(typing: Any, value: Any) -> Any:
    """Return the bits of a float64 as int64."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.bitcast(arguments[0], ir.IntType(64))

    return types.int64(value), generate


@intrinsic
def larger(typing: Any, value: Any, second: Any) -> Any:
    """Return the larger of two float64 numbers other than NaN. LLVM vectorises this, but not numba's `max`."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        flags = ("nnan", "nsz")
        return builder.select(builder.fcmp_ordered(">", *arguments, flags=flags), *arguments, flags=flags)

    return types.float64(value, second), generate


@intrinsic
def high_half(typing: Any, word: Any) -> Any:
    """Return the high 32 bits of a 64-bit integer as int64; 0 for a narrower integer."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        if word.bitwidth < 64:
            return ir.Constant(ir.IntType(64), 0)
        move = builder.ashr if word.signed else builder.lshr
        return move(arguments[0], ir.Constant(ir.IntType(64), 32))

    return types.int64(word), generate


@intrinsic
def low_half(typing: Any, word: Any) -> Any:
    """Return the low 32 bits of a 64-bit integer, unsigned, as int64; a narrower integer unchanged as int64."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        if word.bitwidth == 64:
            return builder.and_(arguments[0], ir.Constant(ir.IntType(64), 0xFFFFFFFF))
        extend = builder.sext if word.signed else builder.zext
        return extend(arguments[0], ir.IntType(64))

    return types.int64(word), generate


@intrinsic
def like(typing: Any, value: Any, model: Any) -> Any:
    """Convert `value` to the type of `model`.

    Without this conversion numba computes with 64 bits, and a vector register has room for fewer elements.
    """

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return context.cast(builder, arguments[0], value, model)

    return model(value, model), generate


@intrinsic
def prefetch(typing: Any, words: Any, index: Any) -> Any:
    """Prefetch an element of a contiguous array into the processor's cache; an index beyond the end is harmless."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        word, byte = ir.IntType(32), ir.IntType(8).as_pointer()
        array, position = arguments
        element = builder.gep(context.make_array(words)(context, builder, array).data, [position])
        name = ir.FunctionType(ir.VoidType(), [byte, word, word, word])
        function = builder.module.declare_intrinsic("llvm.prefetch", [byte], name)
        # The numbers mean: for reading, into all cache levels, of the data cache.
        builder.call(function, [builder.bitcast(element, byte), word(0), word(3), word(1)])
        return context.get_dummy_value()

    return types.none(words, types.int64), generate


@inner()
def two_sum(total: float, lost: float, term: float) -> Any:
    """Return the sum of `total` and `term`, and `lost` plus the rounding error of this sum.

    Must not be compiled with flags that reorder operations.
    """
    result = total + term
    if abs(total) >= abs(term):
        return result, lost + ((total - result) + term)
    return result, lost + ((term - result) + total)


@inner()
def largest_exponent(words: Any, exponent: Any) -> Any:
    """Return the largest exponent bits of the words. exponent: the mask of these bits.

    The result is equal to the mask if a word is NaN or Inf.
    """
    largest = like(0, exponent)
    for i in range(words.size):
        largest = max(largest, like(words[i] & exponent, exponent))
    return largest
