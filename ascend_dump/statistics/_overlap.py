"""Handle arrays whose elements share memory: broadcast arrays and sliding windows.

A few bytes of memory can represent more elements than could be read one by one. So each address is read
once, and its value counts as many times as there are elements at this address.
"""

from __future__ import annotations

from typing import Any

import numpy as np

__all__ = ["distinct"]

#: Limits of sliding windows that are read once per address: minimum number of elements, and minimum average number of
#: elements per address. Smaller arrays, and arrays with less overlap, are read element by element.
_SIZE = 1 << 20
_OVERLAP = 16


def distinct(array: np.ndarray) -> list[tuple[np.ndarray, int]]:
    """Return pairs (array, times) that together have the same elements as `array`.

    Each element of a returned array counts `times` times. The elements of one array do not share memory, unless the
    array is small or only few of its elements share memory.
    """
    once: list[Any] = []
    times = 1
    if 0 in array.strides:
        for size, step in zip(array.shape, array.strides):
            broadcast = step == 0 and size > 1
            once.append(0 if broadcast else slice(None))
            times *= size if broadcast else 1
        once.append(Ellipsis)
        array = array[tuple(once)]
    if array.size < _SIZE or any(step % array.itemsize for step in array.strides):
        return [(array, times)]
    forward = array[tuple(slice(None, None, -1 if step < 0 else None) for step in array.strides)]
    steps = [step // array.itemsize for step in forward.strides]
    addresses = 1 + sum((n - 1) * step for n, step in zip(forward.shape, steps))
    if addresses * _OVERLAP > array.size:
        return [(array, times)]
    corner = forward[(0,) * forward.ndim + (Ellipsis,)]
    # The elements are viewed as a void type of the same size, because as_strided does not support all dtypes.
    raw = np.lib.stride_tricks.as_strided(
        corner.view(f"V{array.itemsize}"), (addresses,), (array.itemsize,), writeable=False
    )
    memory = raw.view(array.dtype)
    weights = _count(forward.shape, steps, addresses)
    bits = range(int(weights.max()).bit_length())
    return [(memory[(weights >> bit) & 1 == 1], times << bit) for bit in bits]


def _count(shape: tuple[int, ...], steps: list[int], addresses: int) -> np.ndarray:
    """Return the number of elements at each address. steps: the strides in elements."""
    weights = np.zeros(addresses, dtype=np.int64)
    weights[0] = 1
    reach = 1
    for n, step in zip(shape, steps):
        if n > 1:
            # Along this axis each element occurs n times, each time shifted by `step` addresses. The sum of these n
            # shifted copies is computed as the difference of two cumulative sums.
            reach += (n - 1) * step
            table = np.zeros((-(-reach // step), step), dtype=np.int64)
            table.reshape(-1)[:reach] = weights[:reach]
            np.cumsum(table, axis=0, out=table)
            table[n:] -= table[:-n].copy()
            weights[:reach] = table.reshape(-1)[:reach]
    return weights
