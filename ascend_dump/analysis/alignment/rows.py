"""Compare some requests of a batch with the same requests in another batch, by the rows of their tensors.

The axis of the batch is found by shapes: it is the only axis that has different sizes, in the ratio of the sizes of the
two batches. If rows were joined with another axis, such as tokens or heads, a row is either a block of this axis or
every n-th element; values show which. A tensor of the same shape on both sides is compared whole, unless it was
computed from several rows, like the mean of a loss and everything that is computed from it. Tensors that cannot be
aligned are not compared.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from math import gcd
from typing import Any, Optional

from ascend_dump.analysis.alignment.axis_maps import AxisMap, part_of
from ascend_dump.analysis.numerics.float_types import float_kind
from ascend_dump.analysis.operators.operator import Operator, storage_of
from ascend_dump.analysis.operators.properties import operator_class
from ascend_dump.analysis.pairing.matches import Match
from ascend_dump.analysis.pairing.same_framework import align
from ascend_dump.analysis.pairing.weak_pairs import computes
from ascend_dump.errors import AscendDumpError, ConfigError, NotSupported
from ascend_dump.reading import Record

__all__ = ["RowAlignment", "RowFinder", "check_rows", "rows_of_ids"]

_BACKWARD = "from the backward pass on, where a loss over the batch scales all rows"
_MIXED = "computed from several rows of the batch"
_UNALIGNED = "with no axis of the size of the batch"
_ROW_NUMBERS = "that are the numbers of the rows"
_VALUELESS = "without stored values"
_ONE_SIDED = "of operators of one side that compute nothing"
#: Largest relative distance of rows that were computed from tensors with moved elements: in rounding units, but at
#: least _LEAST_NEAR.
_NEAR, _LEAST_NEAR = 4.0, 1e-5
#: Operators that move elements along an axis, maybe from one row to another, like the routing to experts.
_MOVING = frozenset(
    (
        *("argsort", "bincount", "cumsum", "flip", "gather", "histc", "index", "index_add", "index_copy", "index_put"),
        *("index_select", "masked_scatter", "masked_select", "nonzero", "repeat_interleave", "roll", "scatter"),
        *("scatter_add", "scatter_reduce", "searchsorted", "sort", "take", "topk", "unique", "_unique2"),
    )
)
#: Types of ids.
_IDS = ("int32", "int64")


class RowAlignment:
    """The rows of actual and the rows of the reference that are the same requests.

    rows        from rows of actual to rows of the reference
    cut         number of pairs of tensors that were cut to the rows
    whole       number of pairs of tensors that are compared as they are
    omitted     reasons why tensors are not compared, with the number of tensors
    """

    def __init__(self, rows: Mapping[int, int]) -> None:
        self.rows = dict(rows)
        self.cut = self.whole = 0
        self.omitted = Counter[str]()

    def note(self) -> str:
        """Return one sentence on the tensors that were compared, and on the others."""
        pairs = ", ".join(f"{row} with {reference_row}" for row, reference_row in self.rows.items())
        omitted = [f"{count} {reason}" for reason, count in self.omitted.items() if count]
        not_compared = f"; not compared: {', '.join(omitted)}" if omitted else ""
        return (
            f"rows of the batch, of actual with the reference: {pairs}; {self.cut} tensors were cut to them, "
            f"{self.whole} have no rows{not_compared}"
        )

    def cut_to_rows(
        self, actual: Sequence[Operator], reference: Sequence[Operator], mapping: Optional[Mapping[str, str]]
    ) -> tuple[list[Operator], list[Operator]]:
        """Return the operators of a step with tensors cut to the rows, and without tensors that cannot be aligned.

        Raises ConfigError for a row that the batch does not have, NotSupported if no tensor can be cut.
        """
        actual, reference = (self._before_backward(operators) for operators in (actual, reference))
        aligned = align(actual, reference, mapping, parts=True)
        matches = [match for match in aligned if match.tensors is None]
        sizes = _batch_sizes(matches)
        for size, row in zip(sizes, (max(self.rows), max(self.rows.values()))):
            if row >= size:
                raise ConfigError(
                    f"rows= has row {row}, and the batch has {size} rows",
                    hint="rows are counted from 0: rows={0: 4}, or --rows 0=4",
                )
        step = _RowStep(self, sizes)
        for match in matches:
            step.add(match)
        paired = {id(operator) for match in aligned for operator in (match.actual, match.reference)}
        actual, reference = (self._without_moves(operators, paired) for operators in (actual, reference))
        return step.replaced(actual), step.replaced(reference)

    def _without_moves(self, operators: Sequence[Operator], paired: set[int]) -> list[Operator]:
        """Return the operators without those of one side that only view or copy tensors, or bring in constants.

        A wrong one shows where its result is read. Parts of tensors have no place in memory that tells who reads it.

        paired: the `id` of each operator that has a partner
        """
        kept = [op for op in operators if id(op) in paired or computes(op) or op.broken or not op.outputs]
        self.omitted[_ONE_SIDED] += sum(len(list(op.records)) for op in operators) - sum(
            len(list(op.records)) for op in kept
        )
        return kept

    def _before_backward(self, operators: Sequence[Operator]) -> list[Operator]:
        """Return the operators before the backward pass."""
        count = next((n for n, operator in enumerate(operators) if operator.phase == "backward"), len(operators))
        self.omitted[_BACKWARD] += sum(1 for operator in operators[count:] for _ in operator.records)
        return [*operators[:count]]


class RowFinder:
    """Cuts the steps of one rank to rows of their batches: rows that the user gave, or rows with equal ids."""

    def __init__(self, rows: Optional[Mapping[int, int]], *, may_look: bool) -> None:
        """may_look: without rows of the user, look for rows with equal ids in the first step."""
        self._user_rows = rows
        self._may_look = may_look
        self._alignment = None if rows is None else RowAlignment(rows)

    def cut(
        self, actual: list[Operator], reference: list[Operator], mapping: Optional[Mapping[str, str]]
    ) -> tuple[list[Operator], list[Operator]]:
        """Return the operators of a step, cut to the rows; unchanged if there is nothing to align."""
        if self._user_rows is None and self._may_look:
            self._may_look = False
            rows = rows_of_ids(actual, reference)
            self._alignment = None if rows is None else RowAlignment(rows)
        if self._alignment is None:
            return actual, reference
        try:
            return self._alignment.cut_to_rows(actual, reference, mapping)
        except (ConfigError, NotSupported):
            if self._user_rows is not None:
                raise
            self._alignment = None
            return actual, reference

    @property
    def has_rows(self) -> bool:
        """True if the rows are known."""
        return self._alignment is not None

    def notes(self) -> tuple[str, ...]:
        return () if self._alignment is None else (self._alignment.note(),)


def check_rows(rows: Optional[Mapping[int, int]], **settings: object) -> None:
    """Raise ConfigError for rows that are no mapping of numbers, or if a setting is given that excludes `rows`."""
    if rows is None:
        return
    is_mapping = isinstance(rows, Mapping) and bool(rows)
    if not is_mapping or not all(type(row) is int and row >= 0 for pair in rows.items() for row in pair):
        raise ConfigError(
            f"rows={rows!r}, expected rows of actual and the same rows in the reference",
            hint="rows are counted from 0: rows={0: 4}, --rows 0=4",
        )
    excluded = [name for name, value in settings.items() if value]
    if excluded:
        raise ConfigError(f"rows= and {excluded[0]}= were both given", hint="leave one of them out")


class _RowStep:
    """The records of one step after they are cut. sizes: sizes of the batches of actual and of the reference"""

    def __init__(self, alignment: RowAlignment, sizes: tuple[int, int]) -> None:
        self._alignment = alignment
        self._sizes = sizes
        #: By `id` of a record: the part that replaces it; None if it is not compared.
        self._parts: dict[int, Optional[Record]] = {}
        #: Keys of tensors without rows: "reduced" over rows, or with elements "moved" between them.
        self._without_rows: dict[Any, str] = {}

    def add(self, match: Match) -> None:
        """Align the tensors of two operators. All operators that ran before have to be added first."""
        kinds = {self._input(a, b) for a, b in match.inputs if a is not None and b is not None}
        # Outputs may differ if their operator has no inputs, such as positions in the batch, or moves elements to other
        # rows. They are cut only if the values agree.
        moves = not match.actual.inputs or operator_class(match.actual.op_type) in _MOVING
        for a, b in match.outputs:
            if a is not None and b is not None:
                limit = 0.0 if moves else _limit_of(a) if "moved" in kinds else None
                self._output(a, b, limit, depends=bool(kinds - {"whole"}))

    def replaced(self, operators: Sequence[Operator]) -> list[Operator]:
        """Return the operators with the parts of their records, and new positions.

        Operators that have no record left are left out.
        """
        result: list[Operator] = []
        for operator in operators:
            inputs, outputs = (
                [part for record in records if (part := self._parts.get(id(record), record)) is not None]
                for records in (operator.inputs, operator.outputs)
            )
            if inputs or outputs or operator.broken or not (operator.inputs or operator.outputs):
                result.append(replace(operator, position=len(result), inputs=inputs, outputs=outputs))
        return result

    def _input(self, a: Record, b: Record) -> str:
        """Align an input. Return "whole", "cut", "reduced" if it was computed from several rows, or "moved"."""
        kinds = {self._without_rows[key] for key in _keys(a, b) if key in self._without_rows}
        is_moved = "moved" in kinds
        if a.shape == b.shape:
            if not kinds or _is_same(a, b):
                self._alignment.whole += 1
                return "whole"
            self._omit(a, b, _MIXED, "moved" if is_moved else "reduced")
        elif not self._cut(a, b, _limit_of(a) if is_moved else None):
            self._omit(a, b, _MIXED if is_moved else _UNALIGNED, "moved")
        if self._parts.get(id(a), a) is not None:
            return "cut"
        return "moved" if is_moved or a.shape != b.shape else "reduced"

    def _output(self, a: Record, b: Record, limit: Optional[float], *, depends: bool) -> None:
        is_moved = limit is not None
        if a.shape == b.shape:
            if depends and not _is_same(a, b):
                self._omit(a, b, _MIXED, "moved" if is_moved else "reduced")
            else:
                self._alignment.whole += 1
        elif not self._cut(a, b, limit):
            self._omit(a, b, _MIXED if is_moved else _UNALIGNED, "moved")

    def _omit(self, a: Record, b: Record, reason: str, kind: str) -> None:
        self._alignment.omitted[reason] += 1
        self._parts[id(a)] = self._parts[id(b)] = None
        self._without_rows.update(dict.fromkeys(_keys(a, b), kind))

    def _cut(self, a: Record, b: Record, limit: Optional[float] = None) -> bool:
        """Cut both records to the rows; return False if that is impossible.

        Return True also for records that are omitted for another reason.

        limit: if given, also return False if the relative distance of the rows is larger than this
        """
        ways = [*self._ways(a.shape or (), b.shape or ())]
        if not ways:
            return False
        parts = [(part_of(a, way[0]), part_of(b, way[1])) for way in ways]
        try:
            if any(record.attrs.get("skipped") for record in (a, b)):
                raise NotSupported("no values")
            if len(ways) > 1 or limit is not None:
                distances = [_distance(*pair) for pair in parts]
                nearest = min(range(len(parts)), key=distances.__getitem__)
                if limit is not None and distances[nearest] > limit:
                    return False
                parts = [parts[nearest]]
            if (a.dtype or "").startswith("int") and self._are_row_numbers(*parts[0]):
                self._omit(a, b, _ROW_NUMBERS, "moved")
                return True
        except NotSupported:
            self._omit(a, b, _VALUELESS, "moved")
            return True
        except AscendDumpError:
            pass  # the comparison reports unreadable records
        self._parts[id(a)], self._parts[id(b)] = parts[0]
        self._alignment.cut += 1
        return True

    def _are_row_numbers(self, a: Record, b: Record) -> bool:
        """Return True if the elements of both parts are the numbers of their rows."""
        return all(
            part.numpy().reshape(-1).tolist() == [*rows]
            for part, rows in zip((a, b), (self._alignment.rows, self._alignment.rows.values()))
        )

    def _ways(self, shape: tuple[int, ...], reference_shape: tuple[int, ...]) -> Iterator[tuple[AxisMap, AxisMap]]:
        """Yield the possible cuts of both tensors: a row is a block of the axis, or every n-th element."""
        axes = [axis for axis, sizes in enumerate(zip(shape, reference_shape)) if sizes[0] != sizes[1]]
        if len(shape) != len(reference_shape) or len(axes) != 1:
            return
        [axis] = axes
        if shape[axis] * self._sizes[1] != reference_shape[axis] * self._sizes[0] or shape[axis] % self._sizes[0]:
            return
        width = shape[axis] // self._sizes[0]
        rows = list(self._alignment.rows), list(self._alignment.rows.values())
        yield _blocks(axis, rows[0], width), _blocks(axis, rows[1], width)
        if width > 1:
            yield _strided(axis, rows[0], self._sizes[0]), _strided(axis, rows[1], self._sizes[1])


def _blocks(axis: int, rows: Sequence[int], width: int) -> AxisMap:
    return AxisMap(axis, tuple(slice(row * width, (row + 1) * width) for row in rows))


def _strided(axis: int, rows: Sequence[int], count: int) -> AxisMap:
    return AxisMap(axis, tuple(slice(row, None, count) for row in rows))


def _batch_sizes(matches: Sequence[Match]) -> tuple[int, int]:
    """Return the sizes of both batches.

    For tensors that differ in the size of one axis, the most frequent ratio of the two sizes is the ratio of the batch
    sizes. The smallest sizes of this ratio are returned.

    Raises NotSupported if all shapes are the same, or if at least as many pairs of tensors have no such ratio, because
    several axes differ.
    """
    ratios = Counter[tuple[int, int]]()
    smallest: dict[tuple[int, int], tuple[int, int]] = {}
    unaligned: list[str] = []
    for match in matches:
        for a, b in (*match.inputs, *match.outputs):
            shapes = () if a is None or b is None else (a.shape or (), b.shape or ())
            if not shapes or shapes[0] == shapes[1]:
                continue
            differing = [sizes for sizes in zip(*shapes) if sizes[0] != sizes[1]]
            if len(shapes[0]) != len(shapes[1]) or len(differing) != 1 or not all(differing[0]):
                unaligned.append(f"{list(shapes[0])} and {list(shapes[1])}")
                continue
            first, second = differing[0]
            ratio = first // gcd(first, second), second // gcd(first, second)
            ratios[ratio] += 1
            smallest[ratio] = min(smallest.get(ratio, (first, second)), (first, second))
    [(ratio, votes)] = ratios.most_common(1) or [((1, 1), 0)]
    if votes <= len(unaligned):
        reason = f"shapes such as {unaligned[0]} differ on several axes" if unaligned else "all shapes are the same"
        raise NotSupported(
            f"rows= needs batches of different sizes and requests of the same length: {reason}",
            hint="pad the single request to the length that it has in the batch",
        )
    return smallest[ratio]


def rows_of_ids(actual: Sequence[Operator], reference: Sequence[Operator]) -> Optional[dict[int, int]]:
    """Return the rows of actual with the rows of the reference that have the same ids; None if ids show no such rows.

    The ids are the first integers that each side reads. All rows of the smaller batch have to be in the larger one.
    """
    a, b = (_first_ids(operators) for operators in (actual, reference))
    if a is None or b is None or a.shape is None or b.shape is None:
        return None
    if len(a.shape) < 2 or a.shape[1:] != b.shape[1:] or a.shape[0] == b.shape[0]:
        return None
    try:
        ids, reference_ids = ([row.tobytes() for row in record.numpy().astype("int64")] for record in (a, b))
    except AscendDumpError:
        return None
    if len(ids) <= len(reference_ids):
        rows = {row: reference_ids.index(content) for row, content in enumerate(ids) if content in reference_ids}
    else:
        rows = {ids.index(content): row for row, content in enumerate(reference_ids) if content in ids}
    return rows if len(rows) == min(len(ids), len(reference_ids)) else None


def _first_ids(operators: Sequence[Operator]) -> Optional[Record]:
    for operator in operators:
        for record in operator.inputs:
            if record.dtype in _IDS and len(record.shape or ()) >= 1:
                return record
    return None


def _keys(*records: Record) -> Iterator[Any]:
    """Yield keys of the storage and of the content of the tensors of both sides."""
    for side, record in enumerate(records):
        storage, content = storage_of(record), record.content
        if storage is not None:
            yield side, storage[0]
        if content is not None and (record.shape or ()) != ():
            yield side, content[0]


def _is_same(a: Record, b: Record) -> bool:
    content = a.content
    return content is not None and content == b.content


def _limit_of(record: Record) -> float:
    """Return the largest relative distance of two tensors of this type that rounding may explain."""
    kind = float_kind(record.dtype or "")
    return 0.0 if kind is None else max(_NEAR * kind.unit, _LEAST_NEAR)


def _distance(a: Record, b: Record) -> float:
    """Return the L2 norm of the difference, relative to the norm of b."""
    import numpy as np

    with np.errstate(all="ignore"):
        x, y = (record.numpy().astype(np.float64).reshape(-1) for record in (a, b))
        x, y = np.nan_to_num(x), np.nan_to_num(y)
        return float(np.linalg.norm(x - y) / max(float(np.linalg.norm(y)), 1e-300))
