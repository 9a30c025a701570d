"""Two records of one tensor: whether they are equal, how far apart they are, and what identifies their difference."""

from __future__ import annotations

import math
from collections.abc import Collection, Hashable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, Optional, Protocol

from ascend_dump.analysis.numerics.device_formats import as_in_model, in_one_layout, may_differ_in_layout
from ascend_dump.analysis.numerics.float_types import float_kind
from ascend_dump.analysis.numerics.measure import Measure, measure
from ascend_dump.analysis.numerics.permutations import IDENTITY, find_layout
from ascend_dump.analysis.numerics.statistics_bounds import bounds
from ascend_dump.analysis.numerics.valueless import is_no_value
from ascend_dump.errors import AscendDumpError, ConfigError, NotSupported
from ascend_dump.reading import Record

if TYPE_CHECKING:
    import numpy as np

    from ascend_dump.statistics import Statistics

__all__ = ["AlignedParts", "Difference", "Differences", "Types", "identity_of", "type_of"]

#: By the identity of a tensor of actual, and of one of the reference: the types in which the program has its elements.
Types = tuple[Mapping[Hashable, Collection[Optional[str]]], Mapping[Hashable, Collection[Optional[str]]]]


class AlignedParts(Protocol):
    """The part of each tensor that holds the same values of the program, where the two tensors are not the same whole.

    Both methods return the values of actual, those of the reference, and the name of the transformation; None where
    the tensors are compared as they are.
    """

    def arrays(self, actual: Record, reference: Record) -> Optional[tuple[np.ndarray, np.ndarray, str]]: ...

    def statistics(self, actual: Record, reference: Record) -> Optional[tuple[Statistics, Statistics, str]]: ...


@dataclass(frozen=True)
class Difference:
    """What two records are to each other, before their numbers are judged.

    verdict     "equal", "unmatched", "unreadable", "structure", or "different" where the numbers have to be judged
    contents    what the difference is known by wherever it appears again; None where neither bytes nor statistics are
    measure     the numbers
    bounds      the numbers are lower bounds of them, taken from statistics
    cast        the types differ, as those of both programs do
    layout      what was done to the axes of actual before it was measured
    """

    verdict: str
    reason: str = ""
    contents: Optional[tuple[Hashable, Hashable]] = None
    measure: Optional[Measure] = None
    bounds: bool = False
    cast: bool = False
    layout: str = IDENTITY


#: Bytes that are compared at once.
_PIECE = 1 << 20
#: What `find_layout` calls the layouts that it finds, where shapes differ.
_REARRANGED = ("reshape", "permute")


class _Read(NamedTuple):
    """What reading both gave. numbers: None where shapes differ and no layout makes one tensor of both; lower: they are
    lower bounds; same: every element has the same bits."""

    numbers: Optional[Measure]
    lower: bool = False
    layout: str = IDENTITY
    same: bool = False


class Differences:
    """Differences between the records of two dumps; each pair of contents is read once."""

    def __init__(self) -> None:
        self._measured: dict[Any, _Read] = {}
        #: Whether one tensor may lie in memory in two ways: in two frameworks.
        self.layouts = False
        #: The other ranks, where several of one side hold parts of what the one of the other side has.
        self.shards: Optional[AlignedParts] = None
        #: The types of actual and reference, where the one program as a whole computes in another type.
        self.cast: Optional[tuple[Optional[str], Optional[str]]] = None
        #: Of programs in two frameworks, or of which one was taken apart.
        self.types: Types = ({}, {})

    def between(self, a: Optional[Record], b: Optional[Record]) -> Difference:
        if a is None or b is None:
            return Difference("unmatched", f"recorded in {'the reference' if a is None else 'actual'} only")
        left, right = a.content, b.content
        if left is not None and left == right:
            return Difference("equal", contents=(left[0], left[0]))
        cast = a.dtype != b.dtype and ((a.dtype, b.dtype) == self.cast or self._is_rounded_later(a, b))
        empty = [is_no_value(one) for one in (a, b)]
        if any(empty):
            return _valueless(a, b, empty, cast)
        for one in (a, b):
            if one.attrs.get("skipped"):
                return Difference("unreadable", f"not stored: {one.attrs['skipped']}")
        hashed = left is not None and right is not None
        contents = (identity_of(a), identity_of(b))
        known = None if None in contents else contents
        key = (left, right) if hashed else (*contents, a.shape, b.shape, a.dtype, b.dtype, a.format, b.format)
        # A tensor of a rank may be one thing here and another there.
        found = self._measured.get(key) if known is not None and self.shards is None else None
        if found is None:
            try:
                found = self._read(a, b)
            except ConfigError:  # the user says of parts what is not so
                raise
            except AscendDumpError as error:
                return Difference("unreadable", str(error), known)
            if known is not None:
                self._measured[key] = found
        numbers, lower, layout = found.numbers, found.lower, found.layout
        if numbers is None or (a.shape != b.shape and layout.startswith(_REARRANGED) and not self.layouts):
            reason = f"shape {shape_text(a.shape)} instead of {shape_text(b.shape)}"
            if numbers is not None:
                reason += f", of the same values: {layout}"
            return Difference("structure", reason, known, numbers, layout=layout)
        if a.dtype != b.dtype and not cast:
            return Difference("structure", f"{a.dtype} instead of {b.dtype}", known, numbers, lower, True, layout)
        if found.same:
            return Difference("equal", contents=known, layout=layout)
        return Difference("different", "", known, numbers, lower, cast, layout)

    def _is_rounded_later(self, a: Record, b: Record) -> bool:
        """Whether one side computes in a finer type what the other has, and has it in the type of the other too."""
        kinds = [float_kind(one.dtype or "") for one in (a, b)]
        if kinds[0] is None or kinds[1] is None or kinds[0].mantissa == kinds[1].mantissa:
            return False
        finer, other, types = (a, b, self.types[0]) if kinds[0].mantissa > kinds[1].mantissa else (b, a, self.types[1])
        identity = identity_of(finer) if types else None
        return identity is not None and other.dtype in types.get(identity, ())

    def _read(self, a: Record, b: Record) -> _Read:
        try:
            arrays = self._arrays(a, b)
        except NotSupported:
            # One side at least has statistics only; those of the other are computed.
            parts = None if self.shards is None else self.shards.statistics(a, b)
            if parts is not None:
                return _Read(bounds(parts[0], parts[1], type_of(a, b)), lower=True, layout=parts[2])
            if a.shape != b.shape and not self._may_be_one(a, b):
                return _Read(None)
            return _Read(bounds(a.statistics(), b.statistics(), type_of(a, b)), lower=True)
        if arrays is None:
            return _Read(None)
        left, right, name = arrays
        numbers = measure(left, right, type_of(a, b))
        # Memory may hold equal elements in another order; zeros and NaN may be equal in other bits.
        same = not numbers.unequal and left.dtype == right.dtype and _same_bytes(left, right)
        return _Read(numbers, layout=name, same=same)

    def _arrays(self, a: Record, b: Record) -> Optional[tuple[np.ndarray, np.ndarray, str]]:
        """Both in one shape, and what was done to actual for that; None where they are not one tensor."""
        stored = in_one_layout(a, b)
        if stored is not None:
            return stored
        if self.shards is not None:
            part = self.shards.arrays(a, b)
            if part is not None:
                return part
        if not self.layouts and a.shape == b.shape:
            return a.numpy(), b.numpy(), IDENTITY
        if not self._may_be_one(a, b):
            return None
        left, right = as_in_model(a), as_in_model(b)
        layout = find_layout(left, right, nearest=self.layouts)
        if layout is not None:
            return layout.of(left), right, layout.name
        if left.size != right.size or not self.layouts:
            return None
        # Other values: elements of one place are compared.
        return left.reshape(right.shape), right, IDENTITY if left.shape == right.shape else "reshape"

    def _may_be_one(self, a: Record, b: Record) -> bool:
        return math.prod(a.shape or ()) == math.prod(b.shape or ()) or may_differ_in_layout(a, b)


def _same_bytes(a: np.ndarray, b: np.ndarray) -> bool:
    import numpy as np

    x, y = (np.ascontiguousarray(side).reshape(-1).view(np.uint8) for side in (a, b))
    return all(
        np.array_equal(x[start : start + _PIECE], y[start : start + _PIECE]) for start in range(0, x.size, _PIECE)
    )


def identity_of(record: Record) -> Optional[Hashable]:
    """The bytes of a tensor whatever view is taken of them; its statistics where those are all there is; None where
    there is nothing at all."""
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
    """The coarsest type of some records."""
    names = [_rounded_to(one) for one in records]
    known = [(kind.mantissa, name) for name in names for kind in (float_kind(name),) if kind is not None]
    return min(known)[1] if known else names[0]


def _rounded_to(record: Record) -> str:
    """The type that the values were rounded to, which may be coarser than that of the array that has them."""
    if record.format is not None and record.dtype == "float32":
        stored = str(record.attrs.get("data_type", "")).lower()
        if float_kind(stored) is not None:
            return stored
    return record.dtype or ""


def shape_text(shape: Optional[tuple[int, ...]]) -> str:
    return "unknown" if shape is None else str(list(shape))


def _valueless(a: Record, b: Record, empty: list[bool], cast: bool) -> Difference:
    """Of two records, of which one at least stands for no value of the program."""
    why = [one.attrs.get("skipped") or "no tensor" for one in (a, b)]
    if all(empty) and (a.dtype == b.dtype or cast) and a.shape == b.shape:
        return Difference("equal", f"{why[0]} on both sides, there is nothing to compare")
    if all(empty):
        return Difference("structure", f"{a.dtype} {shape_text(a.shape)} instead of {b.dtype} {shape_text(b.shape)}")
    side, text = ("actual", why[0]) if empty[0] else ("the reference", why[1])
    return Difference("structure", f"{text} in {side} only")
