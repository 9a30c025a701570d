"""Hash the rows of tensors, so that equal rows are found wherever they are.

A tensor is read as a matrix: a row is its last axis. If that is short, as in the kernel of a convolution, a row is
several of the last axes. A vector is cut into rows of 8 elements. Rows are also hashed after rounding to narrower types
that the other side has, so that rows are found although they were cast.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING, NamedTuple

from ascend_dump.reading.weights import WeightTensor

if TYPE_CHECKING:
    import numpy as np

__all__ = ["RowHashes", "hash_columns", "hash_rows", "row_width"]

#: Minimum number of elements in a row of a matrix; number of elements in a row of a vector; and number of elements from
#: which a vector has longer rows.
_SHORTEST, _OF_VECTOR, _LONG_VECTOR = 16, 8, 1 << 20
#: Number of elements that are read at once.
_PIECE = 1 << 22


class RowHashes(NamedTuple):
    """The hashes of a tensor.

    rows   xxh3-64 of each row, shape (rows,)
    whole  xxh3-128 of all bytes
    width  number of elements in a row
    """

    rows: np.ndarray
    whole: bytes
    width: int


def row_width(shape: tuple[int, ...]) -> int:
    """Return the number of elements of a row of a tensor of this shape.

    >>> row_width((64, 32)), row_width((64, 3, 7, 7)), row_width((48,)), row_width((5,))
    (32, 49, 8, 5)
    """
    if len(shape) < 2:
        size = shape[0] if shape else 1
        widths = (_OF_VECTOR,) if size <= _LONG_VECTOR else (4096, 512, 64, _OF_VECTOR)
        return next((width for width in widths if size and size % width == 0), max(size, 1))
    width = shape[-1]
    for size in reversed(shape[1:-1]):
        if width >= _SHORTEST:
            break
        width *= size
    return max(width, 1)


def hash_rows(tensor: WeightTensor, dtypes: Collection[str]) -> dict[str, RowHashes]:
    """Return the hashes of a tensor by type: of its rows after rounding to each of the types. Raises ReadError."""
    import numpy as np
    import xxhash

    from ascend_dump.reading.weights import numpy_dtype

    width = row_width(tensor.shape)
    count = tensor.size // width
    hashes = {dtype: np.empty(count, np.uint64) for dtype in dtypes}
    wholes = {dtype: xxhash.xxh3_128() for dtype in dtypes}
    step = max(_PIECE // width, 1) if tensor.is_in_pieces else max(count, 1)
    for first in range(0, count, step):
        values = tensor.elements(first * width, min(first + step, count) * width)
        for dtype in dtypes:
            data = _rounded(values, numpy_dtype(dtype)).view(np.uint8).data
            wholes[dtype].update(data)
            size = len(data) * width // len(values)
            hashes[dtype][first : first + len(values) // width] = [
                xxhash.xxh3_64_intdigest(data[start : start + size]) for start in range(0, len(data), size)
            ]
    return {dtype: RowHashes(hashes[dtype], wholes[dtype].digest(), width) for dtype in dtypes}


def hash_columns(tensor: WeightTensor, dtype: str) -> RowHashes:
    """Return the hashes of the columns of all matrices in the last two axes of a tensor. Raises ReadError."""
    import numpy as np
    import xxhash

    from ascend_dump.reading.weights import numpy_dtype

    matrices = _rounded(tensor.elements(), numpy_dtype(dtype)).reshape(tensor.shape)
    whole = xxhash.xxh3_128()
    hashes: list[int] = []
    for matrix in matrices.reshape(-1, *tensor.shape[-2:]):
        data = np.ascontiguousarray(matrix.T).view(np.uint8).reshape(-1).data
        whole.update(data)
        size = len(data) // matrix.shape[1]
        hashes += [xxhash.xxh3_64_intdigest(data[start : start + size]) for start in range(0, len(data), size)]
    return RowHashes(np.array(hashes, np.uint64), whole.digest(), tensor.shape[-2])


def _rounded(values: np.ndarray, dtype: np.dtype) -> np.ndarray:
    import numpy as np

    if values.dtype == dtype:
        return values
    with np.errstate(over="ignore", invalid="ignore"):
        return values.astype(dtype)
