"""Statistics of bytes in memory, as the index stores them."""

from __future__ import annotations

import math
from typing import Any, Optional, Union

import numpy as np

from ascend_dump.writing.dtypes import numpy_dtype

__all__ = ["summarize"]


def summarize(
    data: Union[bytes, memoryview], dtype: str, strided: Optional[tuple[tuple[int, ...], tuple[int, ...]]]
) -> tuple[Any, ...]:
    """The values of `Statistics` in its order, with NaN and Inf as text (JSON has none).

    strided: shape and strides in bytes of a view on the data, None for all of it in a row.
    """
    # Imported when used: analysis stands above writing.
    from ascend_dump.analysis.statistics import statistics

    kind = numpy_dtype(dtype)
    array: np.ndarray[Any, Any] = np.frombuffer(data, dtype=kind)
    if strided is not None:
        shape, strides = strided
        array = np.ndarray(shape, dtype=kind, buffer=data, strides=strides)
    return tuple(_plain(value) for value in statistics(array))


def _plain(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return repr(value)
    return value
