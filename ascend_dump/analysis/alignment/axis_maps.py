"""Describe a part of a tensor as pieces of one axis, and make a record of this part."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Optional

from ascend_dump.reading import Record

if TYPE_CHECKING:
    import numpy as np

    from ascend_dump.statistics import Statistics

__all__ = ["AxisMap", "part_of"]


class AxisMap(NamedTuple):
    """The part of a tensor that some pieces of one axis select, one piece after the other.

    >>> AxisMap(0, (slice(4, 5), slice(6, 7))).shape_of((8, 3))
    (2, 3)
    """

    axis: int
    pieces: tuple[slice, ...]

    def of(self, array: np.ndarray) -> np.ndarray:
        """Return the part of an array; it is a view if there is only one piece."""
        import numpy as np

        parts = [array[(slice(None),) * self.axis + (piece,)] for piece in self.pieces]
        return parts[0] if len(parts) == 1 else np.concatenate(parts, self.axis)

    def shape_of(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """Return the shape of the part of an array of this shape."""
        size = sum(len(range(*piece.indices(shape[self.axis]))) for piece in self.pieces)
        return (*shape[: self.axis], size, *shape[self.axis + 1 :])


class _PartLoader:
    """Reads a part of the tensor of another record."""

    def __init__(self, whole: Record, axis_map: AxisMap) -> None:
        self._whole = whole
        self._axis_map = axis_map

    def tensor(self, record: Record, format: Optional[str]) -> np.ndarray:
        return self._axis_map.of(self._whole.numpy(format=format))

    def statistics(self, record: Record) -> Optional[Statistics]:
        return None


def part_of(record: Record, axis_map: AxisMap) -> Record:
    """Return a record of a part of a tensor, which analyses can use like any other record."""
    return record.as_part(_PartLoader(record, axis_map), axis_map.shape_of(record.shape or ()))
