"""By which permutation of its axes, and which new shape, one array becomes another."""

from __future__ import annotations

from itertools import permutations
from typing import TYPE_CHECKING, NamedTuple, Optional

if TYPE_CHECKING:
    import numpy as np

__all__ = ["IDENTITY", "Rearrangement", "find_layout"]

IDENTITY = "identity"
#: Beyond so many axes that are longer than 1 there are too many orders to try.
_MOST_AXES = 5
#: Two arrays further apart than this, relative to the norm, are not the same tensor in another layout.
_SAME = 1e-2


class Rearrangement(NamedTuple):
    """What to do to an array: take its axes in another order, then give it the shape.

    name    in words: "identity", "reshape", "permute(0, 3, 1, 2)"
    """

    name: str
    axes: tuple[int, ...]
    shape: tuple[int, ...]

    def of(self, array: np.ndarray) -> np.ndarray:
        moved: np.ndarray = array.transpose(self.axes).reshape(self.shape)
        return moved


def find_layout(array: np.ndarray, other: np.ndarray, *, nearest: bool = False) -> Optional[Rearrangement]:
    """The layout of the first in which it is the second, up to a hundredth of its norm.

    None where there is none: then they are not the same values. nearest: the layout of the least difference then, if it
    is half that of elements of one place at the most, and half the norm.
    """
    import numpy as np

    if array.size != other.size or array.dtype.kind not in "fV" or other.dtype.kind not in "fV" or not array.size:
        return None
    flat = other.astype(np.float64).reshape(-1)
    norm = float(np.linalg.norm(flat[np.isfinite(flat)]))
    values = array.astype(np.float64)

    def apart(layout: Rearrangement) -> float:
        with np.errstate(invalid="ignore"):
            difference = layout.of(values).reshape(-1) - flat
        return float(np.linalg.norm(difference[np.isfinite(difference)]))

    plain = Rearrangement(IDENTITY if array.shape == other.shape else "reshape", tuple(range(array.ndim)), other.shape)
    of_plain = apart(plain)
    if of_plain <= _SAME * norm:
        return plain
    best, least = None, min(of_plain, norm) / 2
    for layout in _layouts(array.shape, other.shape):
        distance = apart(layout)
        if distance <= _SAME * norm:
            return layout
        if distance < least:
            best, least = layout, distance
    return best if nearest else None


def _layouts(shape: tuple[int, ...], wanted: tuple[int, ...]) -> list[Rearrangement]:
    """Other orders of the axes; first those that have the wanted shape, then those that must be reshaped to it."""
    long = [axis for axis, size in enumerate(shape) if size > 1]
    if len(long) > _MOST_AXES:
        return []
    short = [axis for axis, size in enumerate(shape) if size == 1]
    sizes = [size for size in wanted if size > 1]
    found = []
    for order in permutations(long):
        if list(order) != long:
            axes = (*order, *short)
            reshaped = [shape[axis] for axis in order] != sizes
            found.append(Rearrangement(f"permute{axes}" + (" and reshape" if reshaped else ""), axes, wanted))
    return sorted(found, key=lambda layout: layout.name.endswith("reshape"))
