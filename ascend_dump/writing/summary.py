"""Statistics of bytes in memory, as the index stores them."""

from __future__ import annotations

import math
import os
import threading
from typing import TYPE_CHECKING, Any, Optional, Union

import numpy as np

from ascend_dump._errors import NotSupported
from ascend_dump.host.dtypes import has_values, numpy_dtype

if TYPE_CHECKING:
    from ascend_dump.statistics._statistics import Statistics

__all__ = ["as_stored", "prepare", "summarize"]

#: Longest wait of a fork for what happens under `_busy`, in seconds: a compiler's first run takes some.
_PATIENCE = 60.0

# Held while numba loads, compiles or computes: a child forked meanwhile would inherit numba's locks, and hang
# when it uses numba itself.
_busy = threading.RLock()
_held = False


def prepare() -> None:
    """Load and compile what most statistics need, before it is in a hurry."""
    from ascend_dump.statistics._statistics import warm_up

    with _busy:
        warm_up()


def summarize(
    data: Union[bytes, memoryview], dtype: str, strided: Optional[tuple[tuple[int, ...], tuple[int, ...]]]
) -> tuple[Any, ...]:
    """Statistics of bytes, as `as_stored` gives them.

    strided: shape and strides in bytes of a view on the data, None for all of it in a row.
    Raises NotSupported or ConfigError for a type without statistics.
    """
    # Imported when used: analysis stands above writing.
    from ascend_dump.statistics._statistics import statistics

    kind = numpy_dtype(dtype)
    if not has_values(dtype) or kind.subdtype is not None:
        raise NotSupported(f"no statistics are defined for {dtype}", hint="dump with data='tensor'")
    array: np.ndarray[Any, Any] = np.frombuffer(data, dtype=kind)
    if strided is not None:
        shape, strides = strided
        array = np.ndarray(shape, dtype=kind, buffer=data, strides=strides)
    with _busy:
        # On this thread only: the others belong to the program that is captured.
        return as_stored(statistics(array, threads=1))


def as_stored(found: Statistics) -> tuple[Any, ...]:
    """The values in their order, with NaN and Inf as text: JSON has none."""
    count, top, low, mean, norm, *counts = found
    return (count, _plain(top), _plain(low), _plain(mean), _plain(norm), *counts)


def _plain(value: Optional[float]) -> Union[float, str, None]:
    return value if value is None or math.isfinite(value) else repr(value)


def _before_fork() -> None:
    global _held
    _held = _busy.acquire(timeout=_PATIENCE)


def _after_fork() -> None:
    if _held:
        _busy.release()


def _after_fork_in_child() -> None:
    global _busy
    _busy = threading.RLock()


os.register_at_fork(before=_before_fork, after_in_parent=_after_fork, after_in_child=_after_fork_in_child)
