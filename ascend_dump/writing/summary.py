"""Compute the statistics of bytes in memory, and convert them to the form that the index stores."""

from __future__ import annotations

import math
from typing import Any, Callable, Optional, Union

import numpy as np

from ascend_dump.dump_format import has_values, numpy_dtype
from ascend_dump.errors import AscendDumpError, NotSupported
from ascend_dump.statistics import COUNTS, Scan, Statistics, is_ready, statistics, surely_finite, warm_up_soon
from ascend_dump.statistics import scanner as scanner_of
from ascend_dump.statistics.nonfinite import is_nonfinite

__all__ = ["as_stored", "nonfinite", "prepare", "scanner", "summarize"]

#: A kernel is compiled for a type when a tensor of it has at least this many elements. Smaller tensors, such as the
#: counters of BatchNorm, are not worth it.
_WORTH_COMPILING = 1024

#: Positions in `Statistics` of the values that are not counts.
_REALS = tuple(position for position, name in enumerate(Statistics._fields) if name not in COUNTS)

_Scanner = Callable[[Union[bytes, memoryview]], Scan]
_scanners: dict[str, _Scanner] = {}


def prepare(optional: tuple[str, ...]) -> None:
    """Start loading the compiled kernels for float32 in the background. optional: as for `summarize`."""
    warm_up_soon(np.dtype("float32"), optional)


def summarize(
    data: Union[bytes, memoryview],
    dtype: str,
    strided: Optional[tuple[tuple[int, ...], tuple[int, ...]]],
    optional: tuple[str, ...],
) -> Statistics:
    """Return the statistics of bytes.

    strided: shape and strides in bytes of a view of the data; None if it is contiguous.
    optional: names of optional statistics to add.
    Raises NotSupported or ConfigError for a type without statistics.
    """
    array = _array(data, dtype, strided)
    # Until a kernel is compiled, numpy is used: records that waited for the compiler would be lost if the program were
    # killed.
    ready = is_ready(array.dtype, optional)
    if not ready and array.size >= _WORTH_COMPILING:
        warm_up_soon(array.dtype, optional)
    # One thread: the other processors belong to the captured program.
    return statistics(array, engine=None if ready else "numpy", threads=1, optional=optional)


def scanner(dtype: str) -> Optional[_Scanner]:
    """Return `ascend_dump.statistics.scanner` for the dtype of this name.

    Returns None if the dtype has no statistics, if one pass is not enough, or if no kernel is compiled for it yet.
    """
    scan = _scanners.get(dtype)
    if scan is None:
        # The result None is not cached, because the kernel may be compiled later.
        try:
            kind = numpy_dtype(dtype)
            scan = scanner_of(kind) if has_values(dtype) and kind.subdtype is None else None
        except AscendDumpError:
            return None
        if scan is not None:
            _scanners[dtype] = scan
    return scan


def nonfinite(
    data: Union[bytes, memoryview], dtype: str, strided: Optional[tuple[tuple[int, ...], tuple[int, ...]]]
) -> Optional[Statistics]:
    """Return the statistics of the bytes if an element is NaN or Inf; None if all elements are finite.

    Raises NotSupported or ConfigError for a type that cannot be checked.
    """
    array = _array(data, dtype, strided)
    if surely_finite(array):
        return None
    result = statistics(array, engine="numpy", threads=1)
    return result if is_nonfinite(result) else None


def _array(
    data: Union[bytes, memoryview], dtype: str, strided: Optional[tuple[tuple[int, ...], tuple[int, ...]]]
) -> np.ndarray[Any, Any]:
    kind = numpy_dtype(dtype)
    if not has_values(dtype) or kind.subdtype is not None:
        raise NotSupported(f"no statistics are defined for {dtype}", hint="dump with data='tensor'")
    array: np.ndarray[Any, Any] = np.frombuffer(data, dtype=kind)
    if strided is not None:
        shape, strides = strided
        array = np.ndarray(shape, dtype=kind, buffer=data, strides=strides)
    return array


def as_stored(result: Statistics) -> list[Any]:
    """Return the fields of the statistics as a list, with NaN and Inf as text, because JSON has no such numbers."""
    values: list[Any] = list(result)
    for position in _REALS:
        value = values[position]
        if value is not None and not math.isfinite(value):
            values[position] = repr(value)
    return values
