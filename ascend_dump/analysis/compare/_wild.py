"""Elements that are nothing but rounding in the inputs of an operator already: no output can be judged there.

An optimizer that divides each gradient by its own size makes steps of full length of gradients that are rounding alone.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Optional

from ascend_dump._errors import AscendDumpError
from ascend_dump.analysis.compare._measure import Measure, measure
from ascend_dump.reading import Record

__all__ = ["measure_others"]


def measure_others(
    a: Record, b: Record, inputs: Iterable[tuple[Record, Record]], unit: float
) -> Optional[tuple[Measure, int]]:
    """The numbers of a pair without the elements that differ in an input of the same shape by more than sqrt(unit) of
    their size, and how many those are; None where there are no such elements."""
    import numpy as np

    try:
        actual, reference = a.numpy(), b.numpy()
        wild = np.zeros(reference.shape, dtype=bool)
        with np.errstate(all="ignore"):
            for one, other in inputs:
                if one.shape != a.shape or other.shape != b.shape:
                    continue
                x, y = (array.astype(np.float64) for array in (one.numpy(), other.numpy()))
                wild |= np.abs(x - y) > math.sqrt(unit) * np.abs(y)
    except (AscendDumpError, TypeError, ValueError):
        return None
    if not wild.any():
        return None
    return measure(actual[~wild], reference[~wild]), int(wild.sum())
