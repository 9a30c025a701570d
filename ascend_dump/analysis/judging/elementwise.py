"""Compare each element with the rounding of its inputs.

An optimizer that divides each gradient by its own size turns rounding noise into full-size updates: these cannot be
judged. And the relative error of a reciprocal is that of its input: a small input with a large error has a large output
with a large error.
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

__all__ = ["follows_inputs", "measure_without_outliers"]

_InputPairs = Iterable[tuple[Record, Record]]


def measure_without_outliers(a: Record, b: Record, inputs: _InputPairs, unit: float) -> Optional[tuple[Measure, int]]:
    """Measure a pair without its outliers, and return their number too; None if there are none.

    An outlier differs, in an input of the same shape, by more than sqrt(unit) of its size.
    """
    import numpy as np

    try:
        actual, reference = a.numpy(), b.numpy()
        outliers = np.zeros(reference.shape, dtype=bool)
        for x, y in _arrays((pair for pair in inputs if pair[0].shape == reference.shape), reference.shape):
            with np.errstate(all="ignore"):
                outliers |= np.abs(x - y) > math.sqrt(unit) * np.abs(y)
    except (AscendDumpError, TypeError, ValueError):
        return None
    if not outliers.any():
        return None
    return measure(actual[~outliers], reference[~outliers]), int(outliers.sum())


def follows_inputs(a: Record, b: Record, inputs: _InputPairs, gain: float, unit: float) -> bool:
    """Return whether the relative error of each element is at most `gain` times that of its inputs, or a few roundings.

    inputs: those of the shape of the output, or that are broadcast to it.
    """
    import numpy as np

    try:
        actual, reference = (_wide(record.numpy()) for record in (a, b))
        allowed = np.full(reference.shape, 8 * unit)
        with np.errstate(all="ignore"):
            for x, y in _arrays(inputs, reference.shape):
                distances = np.abs(x - y)
                allowed = allowed + np.where(distances > 0, gain * distances / np.abs(y), 0.0)
            # A larger tolerance would accept any element.
            allowed = np.minimum(allowed, math.sqrt(unit))
            distance = np.abs(actual - reference)
            inside = (distance <= allowed * np.abs(reference)) | (actual == reference)
    except (AscendDumpError, TypeError, ValueError):
        return False
    return bool((inside | (np.isnan(actual) & np.isnan(reference))).all())


def _arrays(inputs: _InputPairs, shape: tuple[int, ...]) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    for a, b in inputs:
        if a.shape == b.shape and _reaches(a.shape, shape):
            yield _wide(a.numpy()), _wide(b.numpy())


def _reaches(shape: Optional[tuple[int, ...]], target: tuple[int, ...]) -> bool:
    """Return whether an array of a shape can be broadcast to the target shape."""
    if shape is None or len(shape) > len(target):
        return False
    return all(size in (1, target_size) for size, target_size in zip(shape[::-1], target[::-1]))


def _wide(array: np.ndarray) -> np.ndarray:
    import numpy as np

    wide: Any = np.complex128 if array.dtype.kind == "c" else np.float64
    with np.errstate(invalid="ignore"):  # memory that was never written may contain signalling NaN
        return array.astype(wide)
