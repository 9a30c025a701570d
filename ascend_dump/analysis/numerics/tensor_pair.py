"""Compare two records of one tensor: whether they are equal, how far apart they are, and the key of the difference."""

from __future__ import annotations

import math
from collections.abc import Collection, Hashable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple, Optional, Protocol

from ascend_dump.analysis.numerics.device_formats import as_in_model, in_one_layout, may_differ_in_layout
from ascend_dump.analysis.numerics.float_types import float_kind
from ascend_dump.analysis.numerics.measure import Measure, measure
from ascend_dump.analysis.numerics.permutations import IDENTITY, find_layout, is_permutation, order_of_axes
from ascend_dump.analysis.numerics.statistics_bounds import RoundedStatistics, bounds, rounded_statistics
from ascend_dump.analysis.numerics.valueless import is_no_value
from ascend_dump.errors import AscendDumpError, ConfigError, NotSupported
from ascend_dump.reading import Record

if TYPE_CHECKING:
    import numpy as np


__all__ = [
    "AlignedParts",
    "Difference",
    "Differences",
    "Types",
    "are_of_other_integers",
    "identity_of",
    "type_of",
]

#: For actual and for the reference: the types in which the program has a tensor and its views, by `identity_of`.
Types = tuple[Mapping[Hashable, Collection[Optional[str]]], Mapping[Hashable, Collection[Optional[str]]]]


class AlignedParts(Protocol):
    """Finds the values that correspond in two tensors that are divided among ranks in different ways.

    `arrays` and `statistics` return the corresponding values of actual, those of the reference, and the name of the
    transformation; None if the tensors are compared as they are. `aligned` returns two records with the same elements;
    None if values of several ranks are combined. `is_of_one_rank` returns True if only one of several ranks runs the
    operator of a record. `has_to_agree` returns True if all ranks must have the same value; `why_different` returns
    sentences on how ranks differ in such a tensor. `differs_over_ranks` returns True if the ranks have different
    contents; `are_numbers_of_ranks` returns True if an argument is an integer of the part of a rank;
    `has_own_number` if the ranks have different integers there.
    """

    def differs_over_ranks(self, pair: tuple[Optional[Record], Optional[Record]]) -> bool: ...

    def are_numbers_of_ranks(self, pair: tuple[Record, Record], name: str) -> bool: ...

    def has_own_number(self, pair: tuple[Record, Record], name: str) -> bool: ...

    def is_of_one_rank(self, actual: Record, reference: Record) -> bool: ...

    def has_to_agree(self, actual: Record, reference: Record) -> bool: ...

    def why_different(self, actual: Record, reference: Record) -> list[str]: ...

    def aligned(self, actual: Record, reference: Record) -> Optional[tuple[Record, Record]]: ...

    def arrays(self, actual: Record, reference: Record) -> Optional[tuple[np.ndarray, np.ndarray, str]]: ...

    def statistics(
        self, actual: Record, reference: Record
    ) -> Optional[tuple[RoundedStatistics, RoundedStatistics, str]]: ...


@dataclass(frozen=True)
class Difference:
    """The relation of two records, before their numbers are judged.

    verdict     "equal", "unmatched", "unreadable", "structure", or "different" if the numbers have to be judged
    contents    the key of the difference, the same wherever both tensors appear again; None if a side lacks bytes and
                statistics
    measure     the numbers of the difference; None if there are none
    bounds      the numbers are lower bounds, taken from statistics
    cast        True if the types differ because the programs compute in different types. For the verdict "structure":
                True if both types are types of floats
    layout      the change of the axes of actual before it was measured
    """

    verdict: str
    reason: str = ""
    contents: Optional[tuple[Hashable, Hashable]] = None
    measure: Optional[Measure] = None
    bounds: bool = False
    cast: bool = False
    layout: str = IDENTITY

    @property
    def has_values(self) -> bool:
        """True if the values can be judged: there are numbers, and the elements of other shapes correspond.

        Shapes differ in axes of length 1, or in the order of the axes, which the values show.
        """
        if self.verdict == "structure" and not (self.layout == _RESHAPED or is_permutation(self.layout)):
            return False
        return self.measure is not None

    def of_values(self) -> Difference:
        """Return the difference without the verdict "structure" if only the floating-point types differ; else self."""
        is_cast = self.verdict == "structure" and self.cast and self.measure is not None
        return replace(self, verdict="different", reason="") if is_cast else self


#: Number of bytes that are compared at a time.
_PIECE = 1 << 20
#: Names of the layouts that `find_layout` returns for other shapes.
_RESHAPED = "reshape"
_REARRANGED = (_RESHAPED, "permute")


class _Read(NamedTuple):
    """The result of reading and measuring two records.

    numbers   the measure; None if the shapes differ and no layout turns one tensor into the other
    lower     the numbers are lower bounds
    layout    the change of the axes of actual before it was measured
    same      every element has the same bits
    """

    numbers: Optional[Measure]
    lower: bool = False
    layout: str = IDENTITY
    same: bool = False


class Differences:
    """Differences between the records of two dumps; each pair of contents is read once."""

    def __init__(self) -> None:
        self._measured: dict[Any, _Read] = {}
        #: True if a tensor may have another layout on each side, because the dumps are of two frameworks.
        self.layouts = False
        #: Finds corresponding values if one side divides tensors among more ranks than the other.
        self.shards: Optional[AlignedParts] = None
        #: The types of actual and reference, if the two programs compute in different types.
        self.cast: Optional[tuple[Optional[str], Optional[str]]] = None
        #: The types of tensors. Set for programs in two frameworks, and if a compiler decomposed operators of one side.
        self.types: Types = ({}, {})

    def between(self, a: Optional[Record], b: Optional[Record]) -> Difference:
        """Return how two records differ; None stands for a record that one side lacks."""
        if a is None or b is None:
            return Difference("unmatched", f"recorded in {'the reference' if a is None else 'actual'} only")
        content_a, content_b = a.content, b.content
        if content_a is not None and content_a == content_b:
            return Difference("equal", contents=(content_a[0], content_a[0]))
        typed_alike = a.dtype == b.dtype or None in (a.dtype, b.dtype)  # some dumps lack the type
        cast = not typed_alike and ((a.dtype, b.dtype) == self.cast or self._is_rounded_later(a, b))
        empty = [is_no_value(record) for record in (a, b)]
        if any(empty):
            without_value = _valueless(a, b, empty, cast)
            if self.shards is not None and without_value.verdict == "structure":
                return replace(without_value, verdict="unmatched")
            return without_value
        for record in (a, b):
            if record.attrs.get("skipped"):
                return Difference("unreadable", f"not stored: {record.attrs['skipped']}")
        hashed = content_a is not None and content_b is not None
        contents = (identity_of(a), identity_of(b))
        identities = None if None in contents else contents
        key = (content_a, content_b) if hashed else (*contents, a.shape, b.shape, a.dtype, b.dtype, a.format, b.format)
        # With shards, a result is not kept: the same tensor may be another part for another rank.
        read = self._measured.get(key) if identities is not None and self.shards is None else None
        if read is None:
            try:
                read = self._read(a, b)
            except ConfigError:  # the `shards=` argument is wrong
                raise
            except AscendDumpError as error:
                return Difference("unreadable", str(error), identities)
            if identities is not None:
                self._measured[key] = read
        numbers, lower, layout = read.numbers, read.lower, read.layout
        if numbers is None and self.shards is not None:
            reason = f"{shape_text(a.shape)} on one rank of several is no part or term of {shape_text(b.shape)}"
            return Difference("unmatched", reason, identities)
        may_be_rearranged = self.layouts or self.shards is not None
        is_of_other_shape = a.shape != b.shape and layout.startswith(_REARRANGED)
        if numbers is None or ((is_of_other_shape or is_permutation(layout)) and not may_be_rearranged):
            reason = f"shape {shape_text(a.shape)} instead of {shape_text(b.shape)}"
            if a.shape == b.shape:
                reason = f"its axes are in another order: {layout}"
            elif numbers is not None and not numbers.unequal:
                reason += f", of the same values: {layout}"
            return Difference("structure", reason, identities, numbers, layout=layout)
        if not typed_alike and not cast:
            is_float = float_kind(a.dtype or "") is not None and float_kind(b.dtype or "") is not None
            text = f"{a.dtype} instead of {b.dtype}"
            if are_of_other_integers(a, b) and not numbers.unequal:
                if lower:  # statistics do not prove that the values are the same
                    return Difference("different", "", identities, numbers, lower, cast=True, layout=layout)
                return Difference("equal", f"{text}, of the same values", identities, layout=layout)
            return Difference("structure", text, identities, numbers, lower, is_float, layout)
        if read.same:
            return Difference("equal", contents=identities, layout=layout)
        return Difference("different", "", identities, numbers, lower, cast, layout)

    def rounded_type(self, a: Record, b: Record) -> Optional[str]:
        """Return the type to which one of two programs rounds its parameters; None if both compute in one type.

        A parameter that was rounded may be cast back before it is read, as norms do. Then its type is the wider one on
        both sides.
        """
        kinds = {} if self.cast is None else {dtype: float_kind(dtype or "") for dtype in self.cast}
        units = {dtype: kind.unit for dtype, kind in kinds.items() if kind is not None}
        own = float_kind(type_of(a, b))
        if len(units) < 2 or own is None:
            return None
        coarser = max(units, key=lambda dtype: units[dtype])
        return coarser if units[coarser] > own.unit else None

    def _is_rounded_later(self, a: Record, b: Record) -> bool:
        """Return True if the side with the finer type also has the same tensor in the type of the other side."""
        kinds = [float_kind(record.dtype or "") for record in (a, b)]
        if kinds[0] is None or kinds[1] is None or kinds[0].mantissa == kinds[1].mantissa:
            return False
        is_finer = kinds[0].mantissa > kinds[1].mantissa
        finer, coarser, types = (a, b, self.types[0]) if is_finer else (b, a, self.types[1])
        identity = identity_of(finer) if types else None
        return identity is not None and coarser.dtype in types.get(identity, ())

    def _read(self, a: Record, b: Record) -> _Read:
        try:
            arrays = self._arrays(a, b)
        except NotSupported:
            # At least one side has only statistics. If the other side has values, its statistics are computed.
            parts = None if self.shards is None else self.shards.statistics(a, b)
            if parts is not None:
                return _Read(bounds(parts[0], parts[1], type_of(a, b)), lower=True, layout=parts[2])
            if a.shape != b.shape and not self._may_be_one(a, b):
                return _Read(None)
            return _Read(bounds(rounded_statistics(a), rounded_statistics(b), type_of(a, b)), lower=True)
        if arrays is None:
            return _Read(None)
        array_a, array_b, layout = arrays
        numbers = measure(array_a, array_b, type_of(a, b))
        # Even if all values are equal, bits may differ: +0.0 and -0.0, and the bits of NaN.
        same = not numbers.unequal and array_a.dtype == array_b.dtype and _same_bytes(array_a, array_b)
        return _Read(numbers, layout=layout, same=same)

    def _arrays(self, a: Record, b: Record) -> Optional[tuple[np.ndarray, np.ndarray, str]]:
        """Return both arrays in one shape, and the change of the axes of actual; None if no change gives one shape."""
        stored = in_one_layout(a, b)
        if stored is not None:
            return stored
        if self.shards is not None:
            part = self.shards.arrays(a, b)
            if part is not None:
                return part
        if not self.layouts and a.shape == b.shape:
            arrays = (a.numpy(), b.numpy())
            # What a rank has is never in another order of axes: a split along one would look like one along another.
            return _in_one_order(*arrays) if self.shards is None else (*arrays, IDENTITY)
        if not self._may_be_one(a, b):
            return None
        array_a, array_b = as_in_model(a), as_in_model(b)
        layout = find_layout(array_a, array_b, nearest=self.layouts)
        if layout is not None:
            return layout.of(array_a), array_b, layout.name
        has_one_order = self.layouts or _long_axes(array_a) == _long_axes(array_b)
        if array_a.size != array_b.size or not has_one_order:
            return None
        # The values differ in any layout: compare elements at equal indices.
        return array_a.reshape(array_b.shape), array_b, IDENTITY if array_a.shape == array_b.shape else _RESHAPED

    def _may_be_one(self, a: Record, b: Record) -> bool:
        if a.shape is None or b.shape is None:
            return True
        return math.prod(a.shape) == math.prod(b.shape) or may_differ_in_layout(a, b)


def _in_one_order(a: np.ndarray, b: np.ndarray) -> tuple[np.ndarray, np.ndarray, str]:
    """Return two arrays of one shape, and the change of the axes of the first, of which some are equally long.

    One program may have [heads, tokens], and the other one [tokens, heads], with as many heads as tokens.
    """
    order = order_of_axes(a, b)
    return (a, b, IDENTITY) if order is None else (order.of(a), b, order.name)


def _long_axes(array: np.ndarray) -> list[int]:
    return [length for length in array.shape if length != 1]


def _same_bytes(a: np.ndarray, b: np.ndarray) -> bool:
    import numpy as np

    x, y = (np.ascontiguousarray(side).reshape(-1).view(np.uint8) for side in (a, b))
    return all(
        np.array_equal(x[start : start + _PIECE], y[start : start + _PIECE]) for start in range(0, x.size, _PIECE)
    )


def identity_of(record: Record) -> Optional[Hashable]:
    """Return the hash of a tensor's bytes, which views with the same elements share; else its shape and statistics.

    None if the dump has neither bytes nor statistics, or they cannot be read.
    """
    content = record.content
    if content is not None:
        return content[0]
    try:
        import numpy as np
        import xxhash

        array = np.ascontiguousarray(record.numpy())
        return xxhash.xxh3_128_hexdigest(array.reshape(-1).view(np.uint8).data if array.size else b"")
    except NotSupported:
        pass
    except (AscendDumpError, TypeError, ValueError):
        return None
    try:
        return (record.shape, record.statistics())
    except AscendDumpError:
        return None


def type_of(*records: Record) -> str:
    """Return the coarsest floating-point type of some records; the type of the first record if all are exact."""
    names = [_rounded_to(record) for record in records]
    kinds = [(kind.mantissa, name) for name in names for kind in (float_kind(name),) if kind is not None]
    return min(kinds)[1] if kinds else names[0]


def _rounded_to(record: Record) -> str:
    """Return the type to which the values were rounded. It may be coarser than the type of the recorded array."""
    if record.format is not None and record.dtype == "float32":
        stored = str(record.attrs.get("data_type", "")).lower()
        if float_kind(stored) is not None:
            return stored
    return record.dtype or ""


def are_of_other_integers(*records: Optional[Record]) -> bool:
    """Return True if two tensors have different types of integers or flags, such as int64 and bool."""
    types = {record.dtype or "" for record in records if record is not None}
    return len(types) > 1 and all(name == "bool" or name.startswith(("int", "uint")) for name in types)


def shape_text(shape: Optional[tuple[int, ...]]) -> str:
    return "unknown" if shape is None else str(list(shape))


def _valueless(a: Record, b: Record, empty: list[bool], cast: bool) -> Difference:
    """Compare two records of which at least one has no value of the program.

    empty: for each side, True if it has no value. cast: the types may differ
    """
    reasons = [record.attrs.get("skipped") or "no tensor" for record in (a, b)]
    if all(empty) and (a.dtype == b.dtype or cast) and a.shape == b.shape:
        return Difference("equal", f"{reasons[0]} on both sides, there is nothing to compare")
    if all(empty):
        return Difference("structure", f"{a.dtype} {shape_text(a.shape)} instead of {b.dtype} {shape_text(b.shape)}")
    side, text = ("actual", reasons[0]) if empty[0] else ("the reference", reasons[1])
    return Difference("structure", f"{text} in {side} only")
