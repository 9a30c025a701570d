"""Tell from hashes and statistics whether two tensors have other elements, or the same elements in another order."""

from __future__ import annotations

import math
from collections.abc import Hashable
from typing import Optional

from ascend_dump.analysis.numerics.valueless import statistics_of
from ascend_dump.reading import Record

__all__ = ["are_rearranged", "arrangement", "have_other_bytes", "is_dense"]

#: Sums of the same numbers in two orders differ by less, relative to the sum of their magnitudes. The rounding of one
#: element to float32 changes the sum of 10000 elements by more.
_SAME_SUM = 1e-13
#: Statistics that do not depend on the order of the elements.
_COUNTS = ("count", "max", "min", "nan", "posinf", "neginf", "zero", "poszero", "negzero")


def arrangement(record: Record) -> Optional[tuple[Hashable, ...]]:
    """Return the key of a record's bytes and layout, without the strides of axes of length 1; None if it has none."""
    content, stride = record.content, record.attrs.get("stride")
    if content is None or not stride or record.shape is None:
        return content
    return (*content[:-1], tuple(step for size, step in zip(record.shape, stride) if size > 1))


def is_dense(record: Record) -> bool:
    """Return True if the memory range that a tensor covers has no gaps between its elements."""
    stride, shape = record.attrs.get("stride"), record.shape or ()
    return not stride or 1 + sum((size - 1) * step for size, step in zip(shape, stride)) <= math.prod(shape)


def have_other_bytes(a: Record, b: Record) -> bool:
    """Return True if two tensors have one layout without gaps, and the hashes of their bytes differ."""
    sides = [arrangement(record) for record in (a, b)]
    if sides[0] is None or sides[1] is None or not (is_dense(a) and is_dense(b)):
        return False
    return sides[0][0] != sides[1][0] and sides[0][1:] == sides[1][1:]


def are_rearranged(a: Record, b: Record) -> bool:
    """Return True if two tensors probably have the same elements in another order.

    Their hashes or strides differ, although their statistics are the same: rounding changes sums by more than another
    order of the terms does. It is not certain, because rounding may change tiny elements only. Their shapes may differ.
    """
    contents = [arrangement(record) for record in (a, b)]
    if None in contents or contents[0] == contents[1] or a.dtype != b.dtype:
        return False
    if a.shape != b.shape and (not _is_reshaped(a, b) or _have_one_order(a, b)):
        return False
    if _have_other_layouts(a, b):
        return False
    x, y = statistics_of(a), statistics_of(b)
    if x is None or y is None or any(getattr(x, name) != getattr(y, name) for name in _COUNTS) or x.max == x.min:
        return False
    if x.l2norm is None or y.l2norm is None or x.mean is None or y.mean is None:
        return False
    rms = x.l2norm / math.sqrt(max(x.count, 1))
    return abs(x.l2norm - y.l2norm) <= _SAME_SUM * x.l2norm and abs(x.mean - y.mean) <= _SAME_SUM * rms


def _have_other_layouts(a: Record, b: Record) -> bool:
    """Return True if other bytes may be the same elements in another order in memory, such as channels last."""
    contents = [arrangement(record) for record in (a, b)]
    if contents[0] is None or contents[1] is None or a.shape != b.shape or not (is_dense(a) and is_dense(b)):
        return False
    return contents[0][0] != contents[1][0] and contents[0][-1] != contents[1][-1]


def _is_reshaped(a: Record, b: Record) -> bool:
    return a.shape is not None and b.shape is not None and math.prod(a.shape) == math.prod(b.shape)


def _have_one_order(a: Record, b: Record) -> bool:
    """Return True if two tensors have the same bytes, and in both the elements follow each other in memory."""
    is_equal = a.content is not None and b.content is not None and a.content[0] == b.content[0]
    return is_equal and all(map(_is_in_order, (a, b)))


def _is_in_order(record: Record) -> bool:
    """Return True if the elements of a tensor follow each other in memory without gaps."""
    stride, size = record.attrs.get("stride"), 1
    for length, step in zip(reversed(record.shape or ()), reversed(stride or ())):
        if length > 1 and step != size:
            return False
        size *= length
    return True
