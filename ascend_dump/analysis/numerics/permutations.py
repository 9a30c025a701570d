"""Find the permutation of axes, and the new shape, that turn one array into another."""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import permutations
from typing import TYPE_CHECKING, NamedTuple, Optional

if TYPE_CHECKING:
    import numpy as np

__all__ = ["IDENTITY", "Rearrangement", "find_layout", "is_permutation", "order_of_axes"]

IDENTITY = "identity"
#: Arrays with more axes longer than 1 have too many orders to try.
_MOST_AXES = 5
#: Two arrays further apart than this, relative to the norm, are not the same tensor in another layout.
_SAME = 1e-2


class Rearrangement(NamedTuple):
    """A change of an array: split its axes, permute them, then reshape it.

    name    the change in words: "identity", "reshape", "permute(0, 3, 1, 2)"
    axes    the order of the axes, after the split
    shape   the final shape
    parts   the shape with split axes; None if no axis is split
    """

    name: str
    axes: tuple[int, ...]
    shape: tuple[int, ...]
    parts: Optional[tuple[int, ...]] = None

    def of(self, array: np.ndarray) -> np.ndarray:
        split = array if self.parts is None else array.reshape(self.parts)
        moved: np.ndarray = split.transpose(self.axes).reshape(self.shape)
        return moved


def is_permutation(name: str) -> bool:
    """Return True for the name of a change that only moves axes, as "permute(0, 2, 1, 3)"."""
    return name.startswith("permute") and "reshape" not in name


def find_layout(array: np.ndarray, target: np.ndarray, *, nearest: bool = False) -> Optional[Rearrangement]:
    """Return the change of layout that turns `array` into `target`; None if there is none.

    The changed array may differ from `target` by a hundredth of the norm; integers and flags may not differ.

    nearest: if there is no such change, return the change that leaves the least difference. It has to be at most half
    of the difference in the unchanged order, and at most half of the norm.
    """
    import numpy as np

    kinds = array.dtype.kind + target.dtype.kind
    is_exact = not {*kinds} - {*"biu"}
    if array.size != target.size or not (is_exact or not {*kinds} - {*"fV"}) or not array.size:
        return None
    with np.errstate(invalid="ignore"):  # memory without a value may be a signaling NaN
        flat, values = target.astype(np.float64).reshape(-1), array.astype(np.float64)
    norm = float(np.linalg.norm(flat[np.isfinite(flat)]))
    same = 0.0 if is_exact else _SAME * norm

    def distance_of(layout: Rearrangement) -> float:
        with np.errstate(invalid="ignore"):
            difference = layout.of(values).reshape(-1) - flat
        return float(np.linalg.norm(difference[np.isfinite(difference)]))

    name = IDENTITY if array.shape == target.shape else "reshape"
    plain = Rearrangement(name, tuple(range(array.ndim)), target.shape)
    plain_distance = distance_of(plain)
    if plain_distance <= same:
        return plain
    best, least = None, min(plain_distance, norm) / 2
    for layout in _layouts(array.shape, target.shape):
        distance = distance_of(layout)
        if distance <= same:
            return layout
        if distance < least:
            best, least = layout, distance
    return best if nearest else None


def order_of_axes(array: np.ndarray, target: np.ndarray) -> Optional[Rearrangement]:
    """Return the order of axes in which an array has the values of another one of its shape; None if there is none.

    The array differs from the other one as it is. The changed array may differ by a hundredth of the norm.
    """
    import numpy as np

    lengths = [size for size in array.shape if size > 1]
    if len({*lengths}) == len(lengths) or array.dtype.kind not in "fV" or target.dtype.kind not in "fV":
        return None
    with np.errstate(invalid="ignore", over="ignore"):
        values, wanted = array.astype(np.float64), target.astype(np.float64)
        norm = float(np.linalg.norm(wanted))
        # Most tensors that differ are off by less, or are not the same in any order: their norms tell at once.
        if not math.isfinite(norm) or abs(float(np.linalg.norm(values)) - norm) > _SAME * norm:
            return None
        if float(np.linalg.norm(values - wanted)) <= 2 * _SAME * norm:
            return None
        for order, short in _orders(array.shape):
            axes = _with_short(order, short, array.ndim)
            layout = Rearrangement(f"permute{axes}", axes, array.shape)
            is_of_shape = tuple(array.shape[axis] for axis in axes) == array.shape
            if is_of_shape and float(np.linalg.norm(layout.of(values) - wanted)) <= _SAME * norm:
                return layout
    return None


def _with_short(order: tuple[int, ...], short: list[int], count: int) -> tuple[int, ...]:
    """Return the order of all axes: those of length 1 stay where they are."""
    long = iter(order)
    return tuple(axis if axis in short else next(long) for axis in range(count))


def _layouts(shape: tuple[int, ...], target: tuple[int, ...]) -> list[Rearrangement]:
    """Return changes that permute the axes; first those that lead to the target shape, then those that reshape, too.

    If the target has more long axes, its axes may be parts of the axes of the array: [batch, length, heads * size]
    becomes [batch, heads, length, size] in attention.
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
    """Yield (order of the axes longer than 1, axes of length 1) for every order but the present one.

    Nothing is yielded if there are more than _MOST_AXES long axes.
    """
    long = [axis for axis, size in enumerate(shape) if size > 1]
    if len(long) <= _MOST_AXES:
        short = [axis for axis, size in enumerate(shape) if size == 1]
        yield from ((order, short) for order in permutations(long) if list(order) != long)
