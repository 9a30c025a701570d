"""Find masks and fills: elements that are equal on both sides and much larger than all elements that differ.

They are no scale for the other elements: a mask of -3.4e38 would hide any difference of the scores that it is added to.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np

__all__ = ["equal_fills"]

#: Masks and fills are at least this many times as large as all elements that differ, and as 1.
_MASK = 1000.0


def equal_fills(actual: np.ndarray, reference: np.ndarray) -> np.ndarray:
    """Return an array of bool with True for each mask or fill. Nothing is one if no element differs.

    actual, reference: arrays of one shape, in float64 or complex128. Equal infinities are masks.
    """
    import numpy as np

    with np.errstate(invalid="ignore"):
        differ = actual != reference
        if not differ.any():
            return np.zeros(differ.shape, bool)
        sizes = np.abs(reference[differ])
        finite = sizes[np.isfinite(sizes)]
        least = _MASK * max(1.0, finite.max() if finite.size else 0.0)
        fills: np.ndarray = np.logical_and(~differ, np.abs(reference) >= least)
        return fills
