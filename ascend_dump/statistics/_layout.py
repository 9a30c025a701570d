"""Describe how kernels read each dtype, and iterate over the words of an array without copying it.

A word is an element (or a part of a complex element) read as an unsigned integer. Integers of more than one byte are
words as they are.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Callable, NamedTuple, Optional

import numpy as np

from ascend_dump.errors import ConfigError
from ascend_dump.statistics._table import Statistic

__all__ = ["CHUNK", "Engine", "Layout", "Table", "chunks", "flatten", "layout_of"]

#: Elements per chunk (see `chunks`). A chunk fits into the second-level cache.
CHUNK = 1 << 16


class Table(NamedTuple):
    """The values of a one-byte type. A pattern is one of the 256 values of the byte.

    values      the values of `patterns`: int64 for integers and bool, float64 for floats
    patterns    the patterns that are not NaN, sorted by value
    poszero, negzero   the patterns of +0 and of -0
    finite      True if the type has no NaN and no Inf
    lookup      the values of all patterns, as float64
    """

    values: np.ndarray
    patterns: np.ndarray
    poszero: np.ndarray
    negzero: np.ndarray
    finite: bool
    lookup: np.ndarray


class Layout(NamedTuple):
    """The description of a dtype for kernels.

    name      "float32", "bfloat16", "int64", "complex64", "bool", …; "table" for every other one-byte dtype
    kind      "float", "integer", "complex" or "table"
    word      the dtype of words, which the kernels read; a complex element is two words
    table     for a one-byte dtype: its values; else None
    """

    name: str
    kind: str
    word: np.dtype[Any]
    table: Optional[Table] = None


class Engine(NamedTuple):
    """An implementation of statistics: numba or numpy.

    block     maximum number of words per call of a scanner
    scanner   returns the scanner of a layout, or None if the engine has none. A scanner reduces a block of words to a
              `Partial`, or for one-byte elements to the counts of the 256 patterns
    sum_of    compiles and returns the function that computes the sum of a chunk for an optional statistic
    prepare   compiles the scanner of a layout
    is_ready  returns True if the scanner of a layout and the functions for some optional statistics are compiled
    """

    block: int
    scanner: Callable[[Layout], Optional[Callable[[np.ndarray], Any]]]
    sum_of: Callable[[Statistic], Callable[[np.ndarray, float], float]]
    prepare: Callable[[Layout], None]
    is_ready: Callable[[Layout, tuple[Statistic, ...]], bool]


_FLOATS = {
    "float16": "u2",
    "bfloat16": "u2",
    "float32": "u4",
    "float64": "u8",
}
_COMPLEX = {"complex32": "float16", "bcomplex32": "bfloat16", "complex64": "float32", "complex128": "float64"}

#: The layouts by scalar class. The class is the same for both byte orders, and it tells types of ml_dtypes apart.
_known: dict[type, Layout] = {}


def layout_of(dtype: np.dtype[Any]) -> Layout:
    """Return the layout of a dtype, of either byte order.

    Raises ConfigError (AD101) for a dtype that has no statistics: object, text, dates, structures, extended floats.
    """
    layout = _known.get(dtype.type)
    if layout is None:
        layout = _known[dtype.type] = _describe(dtype)
    return layout


def _describe(dtype: np.dtype[Any]) -> Layout:
    name = dtype.type.__name__
    if issubclass(dtype.type, np.bool_):
        # numpy stores bools as 0 and 1, and treats every other byte as True.
        return Layout("bool", "table", np.dtype("u1"), table=_tabulate(np.minimum(np.arange(256), 1)))
    # The kind is tested too, because timedelta64 is a subclass of np.integer.
    if issubclass(dtype.type, np.integer) and dtype.kind in "iu":
        # numpy has two classes for int64, long and longlong. Both get the name "int64".
        native = np.dtype(f"{dtype.kind}{dtype.itemsize}")
        if native.itemsize > 1:
            return Layout(native.name, "integer", native)
        return Layout("table", "table", np.dtype("u1"), table=_tabulate(_patterns(native).astype(np.int64)))
    if dtype.itemsize == 1 and dtype.type.__module__ == "ml_dtypes":
        values = _patterns(dtype).astype(np.int64 if "int" in name else np.float64)
        return Layout("table", "table", np.dtype("u1"), table=_tabulate(values))
    kind, part = ("complex", _COMPLEX[name]) if name in _COMPLEX else ("float", name)
    if part in _FLOATS:
        return Layout(name, kind, np.dtype(_FLOATS[part]))
    raise ConfigError(
        f"statistics of dtype {dtype.name!r} are not defined, expected a number or bool of at most 64 bits per part",
        hint="convert the array first, e.g. array.astype('float64')",
    )


def _patterns(dtype: np.dtype[Any]) -> np.ndarray:
    return np.arange(256, dtype=np.uint8).view(dtype.type)


def _tabulate(values: np.ndarray) -> Table:
    zero = values == 0
    minus = np.signbit(values) if values.dtype.kind == "f" else np.zeros(256, dtype=bool)
    order = np.argsort(values, kind="stable")
    order = order[~np.isnan(values[order])]
    return Table(
        values[order],
        order,
        np.flatnonzero(zero & ~minus),
        np.flatnonzero(zero & minus),
        bool(np.isfinite(values).all()),
        values.astype(np.float64),
    )


def flatten(array: np.ndarray, layout: Layout) -> Optional[np.ndarray]:
    """Return the words of an array as a one-dimensional view, in memory order; None if its memory has gaps.

    None is also returned if the array is not aligned or not of native byte order. Transposed arrays, and arrays
    reversed along some axes, have no gaps.
    """
    flags = array.flags
    if not (flags.aligned and array.dtype.isnative):
        return None
    if not flags.c_contiguous:
        axes = sorted(range(array.ndim), key=lambda axis: -abs(array.strides[axis]))
        forward = tuple(slice(None, None, -1 if step < 0 else None) for step in array.strides)
        array = array[forward].transpose(axes)
        if not array.flags.c_contiguous:
            return None
    flat = array if array.ndim == 1 else array.reshape(-1)
    return flat if flat.dtype is layout.word else flat.view(layout.word)


def chunks(array: np.ndarray, layout: Layout) -> Iterator[np.ndarray]:
    """Yield the words of any array in chunks of at most CHUNK elements. A chunk is valid until the next one is yielded.

    A chunk is a view of the array if possible, else a copy in a small buffer that is used again for the next chunk.
    """
    flat = flatten(array, layout)
    if flat is not None:
        size = CHUNK * (2 if layout.kind == "complex" else 1)
        for start in range(0, flat.size, size):
            yield flat[start : start + size]
        return
    # An axis is added, because the iterator of numpy 2.0 yields uninitialized memory for unaligned arrays without axes.
    array = array if array.ndim else array.reshape(1)
    # Typed as Any, because numpy's type stubs misspell "contig".
    flags: Any = [["readonly", "nbo", "aligned", "contig"]]
    walk: Any = np.nditer(array, ["external_loop", "buffered"], flags, order="K", buffersize=CHUNK)
    for block in walk:
        yield block.view(layout.word)
