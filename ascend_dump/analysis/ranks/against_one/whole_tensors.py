"""Recognise the whole tensor of the other side, or a part of it, in what one of several ranks has."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from ascend_dump.analysis.alignment.rank_parts.relations import cuts_of, distance_of
from ascend_dump.analysis.numerics.float_types import is_float_tensor
from ascend_dump.errors import AscendDumpError
from ascend_dump.reading import Record

if TYPE_CHECKING:
    import numpy as np

__all__ = ["NO_SUMS", "has_whole", "is_constant", "is_near", "is_whole"]

#: Reductions whose result is no sum or mean.
NO_SUMS = ("max", "min", "product")
#: The largest relative difference of a tensor that is the same on both sides.
_SAME = 1e-5


def has_whole(record: Record, whole: Record) -> bool:
    """Return True if a tensor is the whole tensor, or a part of it that a rank may have."""
    if not is_float_tensor(record) or record.dtype != whole.dtype:
        return False
    shape, size = record.shape or (), whole.shape or ()
    if len(shape) != len(size) or sum(a != b for a, b in zip(shape, size)) > 1:
        return False
    try:
        return is_whole(record.numpy(), whole.numpy())
    except AscendDumpError:
        return False


def is_whole(values: np.ndarray, whole: np.ndarray) -> bool:
    """Return True if an array is the whole array, or a part of it that a rank may have."""
    if len(values.shape) != len(whole.shape) or sum(a != b for a, b in zip(values.shape, whole.shape)) > 1:
        return False
    parts = _parts(values.shape, whole)
    return any(_spread(part) > 0 and distance_of(values, part) <= _SAME * _spread(part) for part in parts)


def is_near(values: np.ndarray, other: np.ndarray) -> bool:
    """Return True if two arrays are equal, or differ by no more than rounding."""
    if values.dtype.kind in "biu":
        return bool((values == other).all())
    return distance_of(values, other) <= _SAME * distance_of(other, other * 0)


def is_constant(record: Record) -> bool:
    """Return True if all elements of a tensor are equal."""
    try:
        return _spread(record.numpy()) == 0
    except AscendDumpError:
        return False


def _parts(shape: tuple[int, ...], whole: np.ndarray) -> Iterator[np.ndarray]:
    """Yield the parts of a whole array that have this shape, if the array is divided evenly."""
    axes = [axis for axis, size in enumerate(shape) if size != whole.shape[axis]]
    if not axes:
        yield whole
    elif len(axes) == 1 and shape[axes[0]]:
        count = whole.shape[axes[0]] // shape[axes[0]]
        for position in range(count):
            yield from (cut.of(whole) for cut in cuts_of(position, [shape] * count, whole.shape))


def _spread(array: np.ndarray) -> float:
    """Return the distance of an array from its mean: tensors of equal elements identify nothing."""
    mean = array.astype("float64").mean(keepdims=True) if array.size else array
    return distance_of(array, mean)
