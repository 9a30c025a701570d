"""The tensors of both sides, with the hashes of their rows. Hashes of columns are computed when they are needed."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Optional

from ascend_dump.analysis.numerics.float_types import narrower
from ascend_dump.analysis.weights.layouts import RowUnit
from ascend_dump.analysis.weights.row_hashes import RowHashes, hash_columns, hash_rows, row_width
from ascend_dump.errors import ReadError
from ascend_dump.reading.weights import Weights, WeightTensor, numpy_dtype

if TYPE_CHECKING:
    import numpy as np

__all__ = ["Side", "read_sides"]

Watch = Callable[[Iterable[WeightTensor]], Iterable[WeightTensor]]


class Side:
    """One checkpoint. A tensor is identified by its number, its position in the checkpoint.

    hashes      for each tensor: the hashes of its rows, by the type to which the rows were rounded
    unreadable  tensors that cannot be read, with the reason
    """

    def __init__(self, weights: Weights) -> None:
        self.weights = weights
        self.tensors = list(weights.tensors.values())
        self.names = list(weights.tensors)
        self.number_of = {name: number for number, name in enumerate(self.names)}
        self.hashes: list[dict[str, RowHashes]] = [{} for _ in self.tensors]
        self.unreadable: dict[int, ReadError] = {}
        self._columns: dict[tuple[int, str], RowHashes] = {}

    def rows(self, number: int, *, columns: bool = False) -> int:
        """Return the number of rows of a tensor, or of the columns of its matrices."""
        tensor = self.tensors[number]
        length = tensor.shape[-2] if columns else row_width(tensor.shape)
        return tensor.size // max(length, 1)

    def unit(self, number: int, *, columns: bool = False) -> RowUnit:
        """Return the unit in which texts count the rows of a tensor."""
        tensor = self.tensors[number]
        if columns:
            return RowUnit("columns")
        return RowUnit("elements", row_width(tensor.shape)) if len(tensor.shape) < 2 else RowUnit("rows")

    def columns(self, number: int, dtype: str) -> Optional[RowHashes]:
        """Return the hashes of the columns; None for a vector, and for a tensor that cannot be read."""
        tensor = self.tensors[number]
        if len(tensor.shape) < 2 or not tensor.size or number in self.unreadable:
            return None
        key = number, dtype
        if key not in self._columns:
            self._columns[key] = hash_columns(tensor, dtype)
        return self._columns[key]

    def values(self, number: int, rows: np.ndarray, *, columns: bool = False) -> np.ndarray:
        """Return some rows, or columns of the matrices, as an array of shape (rows, width)."""
        import numpy as np

        tensor = self.tensors[number]
        if columns:
            matrices = tensor.elements().reshape(-1, *tensor.shape[-2:])
            vectors = matrices.transpose(0, 2, 1).reshape(-1, tensor.shape[-2])
            return np.asarray(vectors[rows])
        width = row_width(tensor.shape)
        if len(rows) and rows[-1] - rows[0] == len(rows) - 1 and (np.diff(rows) == 1).all():
            first = int(rows[0])
            return tensor.elements(first * width, (first + len(rows)) * width).reshape(-1, width)
        if not tensor.is_in_pieces:
            return np.asarray(tensor.elements().reshape(-1, width)[rows])
        pieces = [tensor.elements(int(row) * width, (int(row) + 1) * width) for row in rows]
        return np.stack(pieces) if pieces else np.empty((0, width), numpy_dtype(tensor.dtype))


def read_sides(actual: Weights, reference: Weights, watch: Watch) -> tuple[Side, Side]:
    """Read all tensors once, and hash their rows in the types in which they may be equal to those of the other side."""
    sides = Side(actual), Side(reference)
    types = [{tensor.dtype for tensor in side.tensors} for side in sides]

    def tensors() -> Iterable[WeightTensor]:
        for side, other_types in zip(sides, reversed(types)):
            for number, tensor in enumerate(side.tensors):
                dtypes = dict.fromkeys(narrower(tensor.dtype, other) for other in sorted(other_types))
                try:
                    side.hashes[number] = hash_rows(tensor, dtypes)
                except ReadError as error:
                    side.unreadable[number] = error
                yield tensor

    for _ in watch(tensors()):
        pass
    return sides
