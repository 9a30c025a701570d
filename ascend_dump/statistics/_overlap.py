"""Statistics of arrays whose elements share memory: broadcast arrays and sliding windows.

A few bytes can represent more elements than could be read one by one, so each address is read once
and counted as often as it is an element.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from ascend_dump.statistics._value import Statistics

__all__ = ["distinct", "merge"]

#: Smaller arrays, and those with less overlap of windows, are read element by element.
_SIZE = 1 << 20
_OVERLAP = 16


def distinct(array: np.ndarray) -> list[tuple[np.ndarray, int]]:
    """Arrays without shared memory, and how often each counts; together they have the elements of `array`."""
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
    # As a void type of the same size, because as_strided does not support all dtypes.
    raw = np.lib.stride_tricks.as_strided(
        corner.view(f"V{array.itemsize}"), (addresses,), (array.itemsize,), writeable=False
    )
    memory = raw.view(array.dtype)
    weights = _count(forward.shape, steps, addresses)
    bits = range(int(weights.max()).bit_length())
    return [(memory[(weights >> bit) & 1 == 1], times << bit) for bit in bits]


def _count(shape: tuple[int, ...], steps: list[int], addresses: int) -> np.ndarray:
    """Return the number of elements at each address."""
    weights = np.zeros(addresses, dtype=np.int64)
    weights[0] = 1
    reach = 1
    for n, step in zip(shape, steps):
        if n > 1:
            # The sum of n copies, each shifted by one step, as a difference of two cumulative sums.
            reach += (n - 1) * step
            table = np.zeros((-(-reach // step), step), dtype=np.int64)
            table.reshape(-1)[:reach] = weights[:reach]
            np.cumsum(table, axis=0, out=table)
            table[n:] -= table[:-n].copy()
            weights[:reach] = table.reshape(-1)[:reach]
    return weights


def merge(parts: Sequence[tuple[Statistics, int]]) -> Statistics:
    """Combine the statistics of parts, each with the number of times that its elements occur."""
    parts = [part for part in parts if part[0].count]
    names = ("count", "nan", "posinf", "neginf", "zero", "poszero", "negzero")
    counts = {name: sum(times * getattr(part, name) for part, times in parts) for name in names}
    # The sign of a zero decides between zeros.
    highest = max((part.max for part, _ in parts if part.max is not None), key=_rank, default=None)
    lowest = min((part.min for part, _ in parts if part.min is not None), key=_rank, default=None)
    mean = norm = math.nan
    if counts["posinf"] or counts["neginf"]:
        norm = math.inf
        mean = math.nan if counts["posinf"] and counts["neginf"] else math.inf if counts["posinf"] else -math.inf
    elif not counts["nan"] and highest is not None and lowest is not None:
        shares = [(part, times * part.count / counts["count"]) for part, times in parts]
        # Halves, because a sum of the largest floats could overflow by rounding.
        mean = 2 * math.fsum(float(part.mean or 0) / 2 * share for part, share in shares)
        mean = min(max(mean, lowest), highest) if len(parts) > 1 else float(parts[0][0].mean or 0)
        norm = _join_norms([(float(part.l2norm or 0), times) for part, times in parts])
    if counts["nan"]:
        mean = norm = math.nan
    return Statistics(max=highest, min=lowest, mean=mean, l2norm=norm, **counts)


def _rank(value: float) -> tuple[float, float]:
    return value, math.copysign(1, value)


def _join_norms(norms: list[tuple[float, int]]) -> float:
    largest = max(norm for norm, _ in norms)
    if largest in (0, math.inf):
        return largest
    return largest * math.sqrt(math.fsum((norm / largest) ** 2 * times for norm, times in norms))
