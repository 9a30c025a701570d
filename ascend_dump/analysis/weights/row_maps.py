"""Map the rows of one tensor to equal rows of the tensors of the other side."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, NamedTuple, Optional

from ascend_dump.analysis.weights.row_hashes import row_width
from ascend_dump.reading.weights import WeightTensor

if TYPE_CHECKING:
    import numpy as np

__all__ = ["RowIndex", "RowMap", "expected_rows", "nearest_rows"]


#: Number of leading elements of a row that are compared for similarity, cosine above which two rows are similar, and
#: maximum number of products in memory at once.
_SAMPLE, _NEAR, _MOST_PRODUCTS = 64, 0.9, 1 << 24
#: Maximum number of pairs of rows that are compared, which takes some seconds. Two tensors of more than about 46,000
#: rows each have more pairs, and are not compared.
_MOST_COMPARED = 1 << 31


class RowMap(NamedTuple):
    """The partner of each row of a tensor.

    dtype    the type to which both sides are rounded
    targets  number of the partner's tensor on the other side, -1 for a row without a partner; shape (rows,)
    rows     index of the partner in that tensor
    exact    True if both rows have the same bytes after rounding
    columns  for each side: True if columns of matrices are mapped instead of rows
    """

    dtype: str
    targets: np.ndarray
    rows: np.ndarray
    exact: np.ndarray
    columns: tuple[bool, bool] = (False, False)


class RowIndex:
    """All rows of some tensors, by their hashes."""

    def __init__(self, tensors: Mapping[int, np.ndarray]) -> None:
        """Create an index. tensors: the hashes of the rows of each tensor, by its number."""
        import numpy as np

        self._rows_of = tensors
        numbers = [np.full(len(hashes), number, np.int64) for number, hashes in tensors.items()]
        rows = [np.arange(len(hashes)) for hashes in tensors.values()]
        hashes = np.concatenate([*tensors.values(), np.empty(0, np.uint64)])
        order = np.argsort(hashes, kind="stable")
        self._hashes = hashes[order]
        self._numbers = np.concatenate([*numbers, np.empty(0, np.int64)])[order]
        self._rows = np.concatenate([*rows, np.empty(0, np.int64)])[order]

    def find(self, hashes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return for each hash the tensor (-1: none) and the row with this hash.

        If several rows have the hash, the row after the partner of the previous hash is chosen; else the row with the
        same index in the tensor that has most of the unique partners; else the first one.
        """
        import numpy as np

        first = np.searchsorted(self._hashes, hashes, "left")
        count = np.searchsorted(self._hashes, hashes, "right") - first
        positions = np.minimum(first, max(len(self._hashes) - 1, 0))
        if not len(self._hashes):
            return np.full(len(hashes), -1), np.zeros(len(hashes), np.int64)
        targets = np.where(count > 0, self._numbers[positions], -1)
        rows = np.where(count > 0, self._rows[positions], 0)
        once = targets[count == 1]
        usual = int(np.bincount(once).argmax()) if len(once) else None
        for position in np.flatnonzero(count > 1):
            target, row = self._repeated(hashes[position], int(position), targets, rows, usual)
            if target is not None:
                targets[position], rows[position] = target, row
        return targets, rows

    def _repeated(
        self, row_hash: int, position: int, targets: np.ndarray, rows: np.ndarray, usual: Optional[int]
    ) -> tuple[Optional[int], int]:
        """Choose one of several rows with the same hash: return its tensor and row, (None, 0) for the first one."""
        guesses: list[tuple[int, int]] = []
        if position and targets[position - 1] >= 0:
            guesses.append((int(targets[position - 1]), int(rows[position - 1]) + 1))
        if usual is not None:
            guesses.append((usual, position))
        for target, row in guesses:
            there = self._rows_of[target]
            if row < len(there) and there[row] == row_hash:
                return target, row
        return None, 0


def nearest_rows(tensor: WeightTensor, candidates: Mapping[int, WeightTensor]) -> tuple[np.ndarray, np.ndarray]:
    """Return for each row of a tensor the candidate (-1: none) and the row with almost the same direction.

    Only the first elements of rows are compared. If there are too many rows, the result is -1 for all of them.

    candidates: tensors by their numbers, with rows of the same length
    """
    import numpy as np

    rows = sum(candidate.size // row_width(candidate.shape) for candidate in candidates.values())
    count = tensor.size // row_width(tensor.shape)
    if rows * count > _MOST_COMPARED:
        return np.full(count, -1), np.zeros(count, np.int64)
    directions = [_directions(candidate) for candidate in candidates.values()]
    numbers = np.concatenate([np.full(len(rows), number) for number, rows in zip(candidates, directions)])
    positions = np.concatenate([np.arange(len(rows)) for rows in directions])
    candidate_rows = np.concatenate(directions)
    tensor_rows = _directions(tensor)
    targets, positions_found = np.full(len(tensor_rows), -1), np.zeros(len(tensor_rows), np.int64)
    step = max(_MOST_PRODUCTS // max(len(candidate_rows), 1), 1)
    for first in range(0, len(tensor_rows), step):
        cosines = tensor_rows[first : first + step] @ candidate_rows.T
        best = cosines.argmax(axis=1)
        near = cosines[np.arange(len(best)), best] > _NEAR
        targets[first : first + step] = np.where(near, numbers[best], -1)
        positions_found[first : first + step] = np.where(near, positions[best], 0)
    return targets, positions_found


def _directions(tensor: WeightTensor) -> np.ndarray:
    """Return the first elements of each row, scaled to a norm of 1: shape (rows, elements)."""
    import numpy as np

    rows = tensor.elements().reshape(-1, row_width(tensor.shape))[:, :_SAMPLE].astype(np.float32)
    with np.errstate(all="ignore"):
        rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    rows[~np.isfinite(rows)] = 0.0
    return rows


def expected_rows(
    positions_found: tuple[np.ndarray, np.ndarray], sizes: Mapping[int, int]
) -> tuple[np.ndarray, np.ndarray]:
    """Fill gaps: the partner of a row without an equal row is expected next to the partners of the rows around it.

    sizes: number of rows of each tensor of the other side. Returns targets and rows; rows with a partner are unchanged.
    """
    import numpy as np

    targets, rows = positions_found[0].copy(), positions_found[1].copy()
    mapped = np.flatnonzero(positions_found[0] >= 0)
    if not len(mapped) or len(mapped) == len(targets):
        return targets, rows
    taken = {*zip(targets[mapped].tolist(), rows[mapped].tolist())}
    missing = np.flatnonzero(positions_found[0] < 0).tolist()
    for positions, step in ((missing, 1), (reversed(missing), -1)):
        _extend(targets, rows, positions, step, sizes, taken)
    return targets, rows


def _extend(
    targets: np.ndarray,
    rows: np.ndarray,
    positions: Iterable[int],
    step: int,
    sizes: Mapping[int, int],
    taken: set[tuple[int, int]],
) -> None:
    for position in positions:
        before = position - step
        if targets[position] >= 0 or not 0 <= before < len(targets) or targets[before] < 0:
            continue
        partner = int(targets[before]), int(rows[before]) + step
        if 0 <= partner[1] < sizes[partner[0]] and partner not in taken:
            taken.add(partner)
            targets[position], rows[position] = partner
