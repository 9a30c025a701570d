"""Find the permutation of its axes, and the new shape, that turn one array into another."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import permutations
from typing import TYPE_CHECKING, NamedTuple, Optional

if TYPE_CHECKING:
    import numpy as np

__all__ = ["IDENTITY", "Rearrangement", "find_layout"]

IDENTITY = "identity"
#: Arrays with more axes longer than 1 have too many orders to try.
_MOST_AXES = 5
#: Two arrays further apart than this, relative to the norm, are not the same tensor in another layout.
_SAME = 1e-2


class Rearrangement(NamedTuple):
    """A change of an array: split its axes, take them in another order, then reshape it.

    name    in words: "identity", "reshape", "permute(0, 3, 1, 2)"
    parts   the shape with split axes; None if none is split
    """

    name: str
    axes: tuple[int, ...]
    shape: tuple[int, ...]
    parts: Optional[tuple[int, ...]] = None

    def of(self, array: np.ndarray) -> np.ndarray:
        split = array if self.parts is None else array.reshape(self.parts)
        moved: np.ndarray = split.transpose(self.axes).reshape(self.shape)
        return moved


def find_layout(array: np.ndarray, target: np.ndarray, *, nearest: bool = False) -> Optional[Rearrangement]:
    """Return the permutation that maps `array` to `target`, up to a hundredth of its norm, or None.

    nearest: if no layout maps them, return that of the least difference instead, provided that it is at most half of
    the difference of elements at equal indices, and half of the norm.
    """
    import numpy as np

    if array.size != target.size or array.dtype.kind not in "fV" or target.dtype.kind not in "fV" or not array.size:
        return None
    flat = target.astype(np.float64).reshape(-1)
    norm = float(np.linalg.norm(flat[np.isfinite(flat)]))
    values = array.astype(np.float64)

    def distance_of(layout: Rearrangement) -> float:
        with np.errstate(invalid="ignore"):
            difference = layout.of(values).reshape(-1) - flat
        return float(np.linalg.norm(difference[np.isfinite(difference)]))

    name = IDENTITY if array.shape == target.shape else "reshape"
    plain = Rearrangement(name, tuple(range(array.ndim)), target.shape)
    plain_distance = distance_of(plain)
    if plain_distance <= _SAME * norm:
        return plain
    best, least = None, min(plain_distance, norm) / 2
    for layout in _layouts(array.shape, target.shape):
        distance = distance_of(layout)
        if distance <= _SAME * norm:
            return layout
        if distance < least:
            best, least = layout, distance
    return best if nearest else None


def _layouts(shape: tuple[int, ...], target: tuple[int, ...]) -> list[Rearrangement]:
    """Return other orders of the axes; first those with the target shape, then those that must be reshaped.

    If the target has more axes, they are parts of those of the array: attention takes [batch, length, heads * size] for
    [batch, heads, length, size].
    """
    sizes = [size for size in target if size > 1]
    layouts = []
    for order, short in _orders(shape):
        axes = (*order, *short)
        reshaped = [shape[axis] for axis in order] != sizes
        layouts.append(Rearrangement(f"permute{axes}" + (" and reshape" if reshaped else ""), axes, target))
    layouts.sort(key=lambda layout: layout.name.endswith("reshape"))
    if len(sizes) > sum(size > 1 for size in shape):
        for order, short in _orders(target):
            parts = (*order, *short)
            axes = tuple(parts.index(axis) for axis in range(len(target)))
            split = tuple(target[axis] for axis in parts)
            layouts.append(Rearrangement(f"reshape{split} and permute{axes}", axes, target, split))
    return layouts


def _orders(shape: tuple[int, ...]) -> Iterator[tuple[tuple[int, ...], list[int]]]:
    """Yield the other orders of the axes longer than 1, with the remaining axes; none if there are too many."""
    long = [axis for axis, size in enumerate(shape) if size > 1]
    if len(long) <= _MOST_AXES:
        short = [axis for axis, size in enumerate(shape) if size == 1]
        yield from ((order, short) for order in permutations(long) if list(order) != long)
