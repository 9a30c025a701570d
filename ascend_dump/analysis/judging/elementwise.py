"""Outputs held element by element against the noise in what each element was made of.

An optimizer that divides each gradient by its own size makes steps of full length of gradients that are rounding alone:
there no output can be judged. And a reciprocal is as far off, relative to its size, as its input is: where a small
input is far off, so is the large output.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, Optional

from ascend_dump.analysis.numerics.measure import Measure, measure
from ascend_dump.errors import AscendDumpError
from ascend_dump.reading import Record

if TYPE_CHECKING:
    import numpy as np

__all__ = ["follows_inputs", "measure_others"]

_Sides = Iterable[tuple[Record, Record]]


def measure_others(a: Record, b: Record, inputs: _Sides, unit: float) -> Optional[tuple[Measure, int]]:
    """The numbers of a pair without the elements that differ in an input of the same shape by more than sqrt(unit) of
    their size, and how many those are; None where there are no such elements."""
    import numpy as np

    try:
        actual, reference = a.numpy(), b.numpy()
        wild = np.zeros(reference.shape, dtype=bool)
        same = [(one, other) for one, other in inputs if one.shape == reference.shape]
        for x, y in _arrays(same, reference.shape):
            with np.errstate(all="ignore"):
                wild |= np.abs(x - y) > math.sqrt(unit) * np.abs(y)
    except (AscendDumpError, TypeError, ValueError):
        return None
    if not wild.any():
        return None
    return measure(actual[~wild], reference[~wild]), int(wild.sum())


def follows_inputs(a: Record, b: Record, inputs: _Sides, gain: float, unit: float) -> bool:
    """Whether no element is further off, relative to its size, than `gain` times all that it is made of, and than a few
    units of rounding. inputs: those of the shape of the output, or that are broadcast to it."""
    import numpy as np

    try:
        actual, reference = (_wide(one.numpy()) for one in (a, b))
        allowed = np.full(reference.shape, 8 * unit)
        with np.errstate(all="ignore"):
            for x, y in _arrays(inputs, reference.shape):
                apart = np.abs(x - y)
                allowed = allowed + np.where(apart > 0, gain * apart / np.abs(y), 0.0)
            # More than that says nothing of an element any more.
            allowed = np.minimum(allowed, math.sqrt(unit))
            distance = np.abs(actual - reference)
            inside = (distance <= allowed * np.abs(reference)) | (actual == reference)
    except (AscendDumpError, TypeError, ValueError):
        return False
    return bool((inside | (np.isnan(actual) & np.isnan(reference))).all())


def _arrays(inputs: _Sides, shape: tuple[int, ...]) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    for one, other in inputs:
        if one.shape == other.shape and _reaches(one.shape, shape):
            yield _wide(one.numpy()), _wide(other.numpy())


def _reaches(shape: Optional[tuple[int, ...]], other: tuple[int, ...]) -> bool:
    """Whether an array of the first shape can be broadcast to the second."""
    if shape is None or len(shape) > len(other):
        return False
    return all(size in (1, to) for size, to in zip(shape[::-1], other[::-1]))


def _wide(array: np.ndarray) -> np.ndarray:
    import numpy as np

    wide: Any = np.complex128 if array.dtype.kind == "c" else np.float64
    with np.errstate(invalid="ignore"):  # memory that nobody has written may hold signalling NaN
        return array.astype(wide)
