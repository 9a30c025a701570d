"""Find tensors of two programs that may be one tensor in two layouts, or of which one repeats the other."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Optional

from ascend_dump.analysis.numerics.valueless import statistics_of
from ascend_dump.errors import AscendDumpError, NotSupported
from ascend_dump.reading import Record
from ascend_dump.statistics import Statistics

if TYPE_CHECKING:
    import numpy as np

__all__ = ["have_other_elements", "pairs_in_other_layouts", "repeated_pairs"]

#: Norms and extremes of one tensor in two layouts differ by less, relatively.
_NEAR = 1e-3
#: A tensor is not said to be repeated more often, such as the keys of the heads of a group.
_MOST_REPEATS = 64


def have_other_elements(a: Record, b: Record) -> bool:
    """Return True if two tensors differ in any order of their elements."""
    x, y = statistics_of(a), statistics_of(b)
    return x is not None and y is not None and not (_have_one_range(x, y) and _are_near(x.l2norm, y.l2norm))


def pairs_in_other_layouts(actual: Iterable[Record], reference: Iterable[Record]) -> Iterator[tuple[Record, Record]]:
    """Yield pairs of other shapes that may be one tensor: tokens are in one axis, or the axes have another order.

    Their norms and extremes agree, and no constant is among them.
    """
    of_size: dict[int, list[tuple[Record, Statistics]]] = {}
    for b, y in _with_statistics(reference):
        of_size.setdefault(math.prod(b.shape or ()), []).append((b, y))
    for a, x in _with_statistics(actual) if of_size else ():
        for b, y in of_size.get(math.prod(a.shape or ()), []):
            if a.shape != b.shape and _have_one_range(x, y) and _are_near(x.l2norm, y.l2norm):
                yield a, b


def repeated_pairs(
    actual: Iterable[Record], reference: Iterable[Record], *, limit: float
) -> Iterator[tuple[Record, Record]]:
    """Yield pairs of which one tensor repeats the other along an axis, such as both halves of a table of angles.

    limit: the largest relative distance of the values. If only statistics are recorded, they decide
    """
    sides = [*_with_statistics(reference)]
    for a, x in _with_statistics(actual):
        for b, y in sides:
            sizes = sorted(math.prod(record.shape or ()) for record in (a, b))
            count, remainder = divmod(sizes[1], sizes[0])
            if remainder or not 1 < count <= _MOST_REPEATS or not _have_one_range(x, y):
                continue
            norms = sorted((x.l2norm or 0.0, y.l2norm or 0.0))
            if _are_near(norms[0] * math.sqrt(count), norms[1]) and _repeats(a, b, count, limit):
                yield a, b


def _repeats(a: Record, b: Record, count: int, limit: float) -> bool:
    import numpy as np

    try:
        small, large = sorted((np.asarray(record.numpy(), np.float64).squeeze() for record in (a, b)), key=np.size)
    except NotSupported:  # there are only statistics
        return True
    except (AscendDumpError, TypeError, ValueError):
        return False
    norm = float(np.linalg.norm(small))
    parts = (part for each in _splits(large, count) if each.shape[1:] == small.shape for part in (each - small,))
    return any(float(np.abs(part).max()) <= limit * norm for part in parts)


def _splits(array: np.ndarray, count: int) -> Iterator[np.ndarray]:
    """Yield the array with an axis divided into equal parts, or into every n-th element; the parts come first."""
    import numpy as np

    for axis, length in enumerate(array.shape):
        if length % count == 0:
            before, after = array.shape[:axis], array.shape[axis + 1 :]
            inner = (length // count,) if length > count else ()
            yield np.moveaxis(array.reshape(*before, count, *inner, *after), axis, 0)
            if inner:
                yield np.moveaxis(array.reshape(*before, *inner, count, *after), axis + 1, 0)


def _with_statistics(records: Iterable[Record]) -> Iterator[tuple[Record, Statistics]]:
    """Yield the records with more than one value that are no constants, with their statistics."""
    for record in records:
        statistics = statistics_of(record) if math.prod(record.shape or ()) > 1 else None
        if statistics is not None and statistics.max != statistics.min:
            yield record, statistics


def _have_one_range(x: Statistics, y: Statistics) -> bool:
    return _are_near(x.max, y.max) and _are_near(x.min, y.min)


def _are_near(x: Optional[float], y: Optional[float]) -> bool:
    return x is not None and y is not None and math.isclose(x, y, rel_tol=_NEAR)
