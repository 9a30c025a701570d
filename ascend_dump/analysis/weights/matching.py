"""Find for each weight of one checkpoint the weights of the other with the same rows.

Weights are paired by content first: whole tensors, then rows, then columns. The rows of the remaining weights are then
expected, without equal content: like the rows of the same weight in other layers, or in the weight with the most
similar name.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import TYPE_CHECKING, NamedTuple, Optional

from ascend_dump.analysis.numerics.float_types import narrower
from ascend_dump.analysis.weights.merged_weights import MergedWeight, merged_weights
from ascend_dump.analysis.weights.names import paired_by_name, parsed
from ascend_dump.analysis.weights.row_maps import RowIndex, RowMap, expected_rows, nearest_rows
from ascend_dump.analysis.weights.sides import Side

if TYPE_CHECKING:
    import numpy as np

__all__ = ["Matches", "match_weights"]

#: Maximum number of other layers whose row maps are tried for a weight.
_MOST_SIBLINGS = 4


class Matches(NamedTuple):
    """The partners of the weights. A weight is given by its number in its `Side`.

    whole   (weight of actual, weight of the reference, type): tensors with the same bytes after rounding to the type
    copies  (side, weight, weight of the other side): weights whose equal weight of the other side has another partner
    maps    by weight of actual: the partners of its rows
    merged  weights into which an adapter of the other side was merged
    equal_to  by weight of actual: an equal weight of the reference that has another partner
    alone   the weights of actual, and the weights of the reference, without a partner
    """

    whole: list[tuple[int, int, str]]
    copies: list[tuple[int, int, int]]
    maps: dict[int, RowMap]
    merged: list[MergedWeight]
    equal_to: dict[int, int]
    alone: tuple[list[int], list[int]]


class _Matching:
    """The state of a matching.

    unpaired  for each side: the weights that have no partner as a whole
    maps      by weight of actual: the row maps found up to now. An expected map contains pairs of rows that differ
    covered   the weights of the reference that occur in a map
    """

    def __init__(self, actual: Side, reference: Side) -> None:
        self.sides = actual, reference
        self.unpaired = [
            dict.fromkeys(number for number in range(len(side.tensors)) if number not in side.unreadable)
            for side in self.sides
        ]
        self.whole: list[tuple[int, int, str]] = []
        self.maps: dict[int, RowMap] = {}
        self.merged: list[MergedWeight] = []
        self.covered: set[int] = set()
        self._equal_to: list[dict[int, int]] = [{}, {}]

    def pair_whole(self) -> None:
        """Pair tensors with the same bytes. If several tensors have the same bytes, pair them by name."""
        actual, reference = self.sides
        keys = sorted({dtype for hashes in actual.hashes for dtype in hashes})
        # Tensors that have the same type on both sides are paired before tensors that are equal after rounding.
        for is_same in (True, False):
            for key in keys:
                for numbers, candidates in self._groups(key, is_same):
                    names = paired_by_name([actual.names[i] for i in numbers], [reference.names[j] for j in candidates])
                    for name, target in names:
                        self._pair(actual.number_of[name], reference.number_of[target], key)
                    self._equal_to[0].update((i, candidates[0]) for i in numbers if i in self.unpaired[0])
                    self._equal_to[1].update((j, numbers[0]) for j in candidates if j in self.unpaired[1])

    def _groups(self, dtype: str, is_same: bool) -> Iterator[tuple[list[int], list[int]]]:
        by_content: dict[tuple[bytes, int], tuple[list[int], list[int]]] = {}
        for position, (side, unpaired) in enumerate(zip(self.sides, self.unpaired)):
            for number in unpaired:
                hashes = side.hashes[number].get(dtype)
                if hashes is not None and (not is_same or side.tensors[number].dtype == dtype):
                    size = side.tensors[number].size
                    by_content.setdefault((hashes.whole, size), ([], []))[position].append(number)
        return (group for group in by_content.values() if all(group))

    def _pair(self, number: int, target: int, dtype: str) -> None:
        self.whole.append((number, target, dtype))
        del self.unpaired[0][number], self.unpaired[1][target]

    def find_merged(self) -> None:
        """Find the weights into which an adapter of the other side was merged."""
        self.merged = [*merged_weights(self.sides, self.unpaired)]
        for merged in self.merged:
            self.unpaired[merged.side].pop(merged.number, None)
            for part in merged.parts:
                self.unpaired[1 - merged.side].pop(part, None)

    def map_parts(self, columns: tuple[bool, bool], *, vectors: bool = False) -> None:
        """Map the rows, or the columns, of matrices (or of vectors) that have no partner yet."""
        actual, reference = self.sides
        waiting, targets = (
            [number for number in unpaired if (len(side.tensors[number].shape) < 2) == vectors and number not in paired]
            for side, unpaired, paired in zip(self.sides, self.unpaired, (self.maps, self.covered))
        )
        if not waiting or not targets:
            return
        for dtype in sorted({key for number in waiting for key in actual.hashes[number]}):
            index_of = {j: rows for j in targets if (rows := self._hashes(reference, j, dtype, columns[1])) is not None}
            if not index_of:
                continue
            index = RowIndex(index_of)
            widths = {self._length(reference, j, columns[1]) for j in index_of}
            for number in waiting:
                if self._length(actual, number, columns[0]) not in widths:
                    continue
                rows = self._hashes(actual, number, dtype, columns[0])
                if rows is None:
                    continue
                targets_of, rows_of = index.find(rows)
                mapped = self.maps.get(number)
                if (targets_of >= 0).sum() > (0 if mapped is None else mapped.exact.sum()):
                    exact = targets_of >= 0
                    self.maps[number] = RowMap(dtype, targets_of, rows_of, exact, columns)
        self._expect_gaps(waiting, columns)

    def _expect_gaps(self, numbers: Iterable[int], columns: tuple[bool, bool]) -> None:
        reference = self.sides[1]
        for number in numbers:
            rows_found = self.maps.get(number)
            if rows_found is not None:
                sizes = {
                    int(j): reference.rows(int(j), columns=columns[1]) for j in {*rows_found.targets.tolist()} - {-1}
                }
                targets, rows = expected_rows((rows_found.targets, rows_found.rows), sizes)
                self.maps[number] = rows_found._replace(targets=targets, rows=rows)
                self.covered.update(sizes)

    @staticmethod
    def _hashes(side: Side, number: int, dtype: str, columns: bool) -> Optional[np.ndarray]:
        if dtype not in side.hashes[number]:
            return None
        hashes = side.columns(number, dtype) if columns else side.hashes[number][dtype]
        return None if hashes is None else hashes.rows

    @staticmethod
    def _length(side: Side, number: int, columns: bool) -> int:
        tensor = side.tensors[number]
        if columns:
            return tensor.shape[-2] if len(tensor.shape) > 1 else 0
        return tensor.size // max(side.rows(number), 1)

    def map_vectors_as_matrices(self) -> None:
        """Map the elements of each bias without a partner like the rows of its weight."""
        actual, reference = self.sides
        maps = {**self.maps, **{i: self._identity(i, j, dtype) for i, j, dtype in self.whole}}
        for number in [number for number in self.unpaired[0] if number not in self.maps]:
            tensor, name = actual.tensors[number], actual.names[number]
            weight = actual.number_of.get(f"{name.rpartition('.')[0]}.weight")
            rows = None if weight is None else maps.get(weight)
            if rows is None or len(tensor.shape) != 1 or not name.endswith(".bias") or rows.columns != (False, False):
                continue
            of_vector = self._of_vector(rows, len(rows.targets) // max(actual.rows(number), 1))
            biases = {
                target: reference.number_of.get(f"{reference.names[target].rpartition('.')[0]}.bias")
                for target in {*rows.targets.tolist()} - {-1}
            }
            if of_vector is not None and len(of_vector.targets) == actual.rows(number):
                moved = self._with_partners(of_vector, biases)
                if moved is not None:
                    self._add(number, moved)

    @staticmethod
    def _of_vector(rows: RowMap, size: int) -> Optional[RowMap]:
        """Convert the row map of a matrix to the map of a vector that has one element per row of the matrix.

        A row of the vector has `size` elements. Returns None if the elements of a row are not together on the other
        side.
        """
        import numpy as np

        if not size or len(rows.targets) % size:
            return None
        targets, positions = rows.targets.reshape(-1, size), rows.rows.reshape(-1, size)
        is_whole = (targets == targets[:, :1]).all() and (np.diff(positions, axis=1) == 1).all()
        if not is_whole or (positions[:, 0] % size).any():
            return None
        return rows._replace(targets=targets[:, 0], rows=positions[:, 0] // size, exact=targets[:, 0] < -1)

    def map_as_in_other_layers(self) -> None:
        """Map weights with unmapped rows like the same weight of another layer."""
        actual = self.sides[0]
        siblings: dict[tuple[str, tuple[int, ...]], list[int]] = {}
        mapped = {**self.maps, **{i: self._identity(i, j, dtype) for i, j, dtype in self.whole}}
        for number, rows in mapped.items():
            alike = siblings.setdefault(_but_layer(actual.names[number]), [])
            if len(alike) < _MOST_SIBLINGS and (rows.targets >= 0).all():
                alike.append(number)
        for number in self.unpaired[0]:
            name, incomplete = parsed(actual.names[number]), self.maps.get(number)
            if not name.numbers or (incomplete is not None and (incomplete.targets >= 0).all()):
                continue
            for sibling in siblings.get(_but_layer(actual.names[number]), ()):
                distance = name.numbers[0] - parsed(actual.names[sibling]).numbers[0]
                same_shape = actual.tensors[sibling].shape == actual.tensors[number].shape
                moved = self._moved(mapped[sibling], distance) if same_shape else None
                if moved is not None and _agree(moved, incomplete):
                    self._add(number, moved)
                    break

    def _moved(self, rows: RowMap, distance: int) -> Optional[RowMap]:
        """Return the map of the layer that is `distance` layers further.

        Returns None if the reference lacks one of its weights, or if one of them has a partner.
        """
        reference = self.sides[1]
        partners: dict[int, Optional[int]] = {}
        for target in {*rows.targets.tolist()} - {-1}:
            name = parsed(reference.names[target])
            partner = reference.number_of.get(name.shifted(distance)) if name.numbers else None
            same_shape = partner is not None and reference.tensors[partner].shape == reference.tensors[target].shape
            partners[target] = partner if same_shape else None
        return self._with_partners(rows, partners)

    def _with_partners(self, rows: RowMap, partners: dict[int, Optional[int]]) -> Optional[RowMap]:
        """Return the map with each weight of the reference replaced by its entry in `partners`.

        Returns None if an entry is None, or has a partner already.
        """
        targets = rows.targets.copy()
        for target, partner in partners.items():
            if partner is None or partner not in self.unpaired[1]:
                return None
            targets[rows.targets == target] = partner
        return rows._replace(targets=targets)

    def _add(self, number: int, rows: RowMap) -> None:
        """Compare the rows of an expected map, and add the map. A map beyond the end of a tensor is not added."""
        exact = rows.targets < -1
        for target in {*rows.targets.tolist()} - {-1}:
            hashes, reference_hashes = (
                self._hashes(side, member, rows.dtype, columns)
                for side, member, columns in zip(self.sides, (number, target), rows.columns)
            )
            positions = (rows.targets == target).nonzero()[0]
            is_inside = reference_hashes is not None and rows.rows[positions].max() < len(reference_hashes)
            if not is_inside:
                return
            if hashes is not None and reference_hashes is not None:
                exact[positions] = hashes[positions] == reference_hashes[rows.rows[positions]]
        self.maps[number] = rows._replace(exact=exact)
        self.covered.update({*rows.targets.tolist()} - {-1})

    def _identity(self, number: int, target: int, dtype: str) -> RowMap:
        import numpy as np

        count = self.sides[0].rows(number)
        return RowMap(dtype, np.full(count, target), np.arange(count), np.ones(count, bool))

    def _unmapped(self) -> tuple[list[int], list[int]]:
        actual, reference = self.unpaired
        return [i for i in actual if i not in self.maps], [j for j in reference if j not in self.covered]

    def map_same_names(self) -> None:
        """Map each weight without a partner to the weight of the reference with the same name and shape."""
        actual, reference = self.sides
        numbers, candidates = self._unmapped()
        by_name = {reference.names[j]: j for j in candidates}
        self._expect((i, by_name[actual.names[i]]) for i in numbers if actual.names[i] in by_name)

    def map_near_rows(self) -> None:
        """Map the rows of weights without a partner to the most similar rows.

        Only one layer is mapped for each template of names. `map_as_in_other_layers` then maps the others.
        """
        actual, reference = self.sides
        numbers, candidates = self._unmapped()
        first = {parsed(actual.names[i]).template: i for i in reversed(numbers) if len(actual.tensors[i].shape) > 1}
        for number in first.values():
            layer = parsed(actual.names[number]).numbers[:1]
            near = [
                j
                for j in candidates
                if len(reference.tensors[j].shape) > 1
                and parsed(reference.names[j]).numbers[:1] == layer
                and self._length(actual, number, False) == self._length(reference, j, False)
            ]
            if near and actual.tensors[number].size:
                targets, rows = nearest_rows(actual.tensors[number], {j: reference.tensors[j] for j in near})
                if (targets >= 0).any():
                    sizes = {j: reference.rows(j) for j in near}
                    dtype = narrower(actual.tensors[number].dtype, reference.tensors[near[0]].dtype)
                    expected = expected_rows((targets, rows), sizes)
                    self._add(number, RowMap(dtype, *expected, expected[0] < -1))

    def map_similar_names(self) -> None:
        """Map each weight without a partner to the weight of the reference with the most similar name.

        Both have the same shape, and the same numbers in their names. If the sides have names in common, nothing is
        mapped: then a missing name is a missing weight.
        """
        actual, reference = self.sides
        if any(name in reference.number_of for name in actual.names):
            return
        by_shape: dict[tuple[int, ...], tuple[list[str], list[str]]] = {}
        for position, numbers in enumerate(self._unmapped()):
            side = self.sides[position]
            for number in numbers:
                by_shape.setdefault(side.tensors[number].shape, ([], []))[position].append(side.names[number])
        for names in by_shape.values():
            pairs = [pair for pair in paired_by_name(*names) if _share_numbers(*pair)]
            self._expect((actual.number_of[name], reference.number_of[target]) for name, target in pairs)

    def _expect(self, pairs: Iterable[tuple[int, int]]) -> None:
        actual, reference = self.sides
        for number, target in [*pairs]:
            if actual.tensors[number].shape == reference.tensors[target].shape:
                dtype = narrower(actual.tensors[number].dtype, reference.tensors[target].dtype)
                self._add(number, self._identity(number, target, dtype))

    def result(self) -> Matches:
        actual_alone = [i for i in self.unpaired[0] if i not in self.maps]
        reference_alone = [j for j in self.unpaired[1] if j not in self.covered]
        copies = [(0, i, self._equal_to[0][i]) for i in actual_alone if i in self._equal_to[0]]
        copies += [(1, j, self._equal_to[1][j]) for j in reference_alone if j in self._equal_to[1]]
        copied = {(side, number) for side, number, _ in copies}
        alone = (
            [i for i in actual_alone if (0, i) not in copied],
            [j for j in reference_alone if (1, j) not in copied],
        )
        return Matches(self.whole, copies, self.maps, self.merged, self._equal_to[0], alone)


def _but_layer(name: str) -> tuple[str, tuple[int, ...]]:
    """Return a name without its first number, the layer."""
    template, numbers = parsed(name)
    return template, numbers[1:]


def _agree(rows: RowMap, mapped: Optional[RowMap]) -> bool:
    """Return True if a map agrees with `mapped` in all rows whose partner in `mapped` is exact."""
    if mapped is None:
        return True
    if rows.columns != mapped.columns or len(rows.targets) != len(mapped.targets):
        return False
    certain = mapped.exact
    same = (rows.targets == mapped.targets) & (rows.rows == mapped.rows)
    return bool(same[certain].all())


def _share_numbers(name: str, target: str) -> bool:
    return parsed(name).numbers == parsed(target).numbers


#: For each pass of `map_parts`: True for each side whose columns are compared instead of its rows. Columns with columns
#: find parts along the last axis, rows with columns find transposed tensors.
_PARTS = ((False, False), (True, True), (True, False), (False, True))


def match_weights(actual: Side, reference: Side) -> Matches:
    """Find the partners of all weights of actual in the reference."""
    matching = _Matching(actual, reference)
    stages: list[Callable[[], None]] = [matching.pair_whole, matching.find_merged]
    stages += [partial(matching.map_parts, columns) for columns in _PARTS]
    stages += [matching.map_vectors_as_matrices, partial(matching.map_parts, _PARTS[0], vectors=True)]
    stages += [matching.map_as_in_other_layers, matching.map_same_names, matching.map_near_rows]
    stages += [matching.map_as_in_other_layers, matching.map_vectors_as_matrices, matching.map_similar_names]
    for stage in stages:
        stage()
    return matching.result()
