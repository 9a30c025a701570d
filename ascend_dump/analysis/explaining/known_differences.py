"""Differences that are known already, and which origins they come from.

A difference is known again by its contents: the pair (content of actual, content of reference). Of a tensor that one
side has alone, what is known is known by the content of that side.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Optional

from ascend_dump.analysis.judging.input_noise import NO_ORIGINS, InputNoise, OriginNumber
from ascend_dump.analysis.numerics.float_types import float_kind
from ascend_dump.analysis.numerics.tensor_pair import Difference, identity_of, type_of
from ascend_dump.analysis.operators.operator import storage_of
from ascend_dump.reading import Record

__all__ = ["Carried"]

_Contents = tuple[Any, Any]
#: The address and size of a storage. Unlike its number they stay the same over steps.
_Memory = tuple[int, int]


class Carried:
    """What is known of the differences of one rank, step after step."""

    def __init__(self) -> None:
        self._causes: dict[_Contents, frozenset[OriginNumber]] = {}
        #: Differences within rounding, with the origins that they may be a small consequence of.
        self._noise: dict[_Contents, InputNoise] = {}
        #: By contents of one side: what an operator without a partner copied them from.
        self._copies: tuple[dict[Any, Any], dict[Any, Any]] = ({}, {})
        self._written: dict[Any, frozenset[OriginNumber]] = {}
        #: By contents of one side: what differs there, or was made by an operator without a partner; and what is noise.
        self._of_side: tuple[dict[Any, frozenset[OriginNumber]], dict[Any, frozenset[OriginNumber]]] = ({}, {})
        self._noise_of_side: tuple[dict[Any, InputNoise], dict[Any, InputNoise]] = ({}, {})
        #: By side and memory: the operator without a partner that wrote there last.
        self._written_alone: dict[tuple[int, _Memory], OriginNumber] = {}

    def begin_step(self, views: Optional[tuple[Mapping[Any, Any], Mapping[Any, Any]]]) -> None:
        """Numbers of storages begin anew with each step. views: by contents of each side, what they are a view of."""
        self._written.clear()
        for copies, known in zip(self._copies, views or ()):
            copies.update(known)

    def __bool__(self) -> bool:
        """Whether some difference is known, so that tensors with equal bytes change what is."""
        return bool(self._causes)

    def add(self, contents: Optional[_Contents], causes: frozenset[OriginNumber]) -> None:
        """What an input brings from outside of the recorded operators."""
        if contents is not None:
            self._causes[contents] = causes

    def add_written(self, a: Record, b: Record, contents: Optional[_Contents], causes: frozenset[OriginNumber]) -> None:
        """What an operator wrote."""
        if contents is not None:
            self._causes[contents] = causes
            for side, name in zip(self._of_side, contents):
                side[name] = causes
        if storage_of(a) is not None:
            self._written[storage_of(a), storage_of(b)] = causes

    def add_alone(
        self, side: int, read: Sequence[Any], written: Sequence[Any], new: OriginNumber, *, copied: bool
    ) -> None:
        """What an operator of one side (0: actual) made of what it read, by contents; copied: of the first of these."""
        known = self._of_side[side]
        causes = frozenset({new}).union(*(known.get(one, NO_ORIGINS) for one in read))
        for name in written:
            known[name] = causes
            if copied and read and read[0] != name:
                copies = self._copies[side]
                copies[name] = copies.get(read[0], read[0])
        known.pop(None, None)

    def add_written_alone(self, side: int, written: Record, new: OriginNumber) -> None:
        """An operator of one side (0: actual) wrote to memory that it was given, maybe to a part of it."""
        memory = _memory_of(written)
        if memory is not None:
            self._written_alone[side, memory] = new

    def add_written_by_both(self, a: Optional[Record], b: Optional[Record]) -> None:
        """Paired operators wrote to this memory, so what one side wrote there before counts no more."""
        if self._written_alone:
            for side, record in enumerate((a, b)):
                memory = None if record is None else _memory_of(record)
                if memory is not None:
                    self._written_alone.pop((side, memory), None)

    def of_memory(self, a: Record, b: Record) -> frozenset[OriginNumber]:
        """The operators without a partner that wrote to the memory of two inputs last.

        A write to a part of a tensor leaves contents of the whole that are in no record of that operator.
        """
        found = [self._written_alone.get((side, _memory_of(one) or (0, 0))) for side, one in enumerate((a, b))]
        return frozenset(one for one in found if one is not None)

    def add_noise(
        self,
        found: Difference,
        dtype: str,
        causes: frozenset[OriginNumber],
        made_of: Collection[InputNoise] = (),
    ) -> InputNoise:
        """What was judged to be within rounding."""
        assert found.measure is not None
        kind = float_kind(dtype)
        unit = max([kind.unit if kind is not None else 0.0, *(one.unit for one in made_of)])
        error = found.measure.rel_l2
        if found.bounds:
            # How far they are apart is not known: as far as noise may be.
            error = max(error, math.sqrt(unit))
        noise = InputNoise(found.measure, error, unit, causes, found.bounds)
        if found.contents is not None:
            self._noise[found.contents] = noise
            for side, name in zip(self._noise_of_side, found.contents):
                side[name] = noise
        return noise

    def forget(self, contents: Optional[_Contents]) -> None:
        """These are equal once more."""
        if contents is not None:
            self._causes.pop(contents, None)

    def is_noise(self, contents: Optional[_Contents]) -> bool:
        return contents in self._noise

    def exactly(self, contents: Optional[_Contents]) -> frozenset[OriginNumber]:
        """Where a difference with these very contents comes from."""
        return NO_ORIGINS if contents is None else self._causes.get(contents, NO_ORIGINS)

    def look_up(
        self, a: Record, b: Record, found: Difference
    ) -> tuple[Optional[frozenset[OriginNumber]], Optional[InputNoise]]:
        """Where the difference of an input comes from, or which noise it is; None where that is not known."""
        known: Optional[frozenset[OriginNumber]] = None
        noise: Optional[InputNoise] = None
        for contents in self._names(found.contents):
            known = known if known is not None else self._causes.get(contents)
            if noise is None:
                noise = self._noise.get(contents)
                if noise is not None and not _may_be_part_of(found, noise, type_of(a, b)):
                    noise = None
        if known is None and noise is None and storage_of(a) is not None:
            known = self._written.get((storage_of(a), storage_of(b)))
        return known, noise

    def of_sides(self, contents: Optional[_Contents]) -> frozenset[OriginNumber]:
        """Where what each side has alone comes from."""
        made = [side.get(name, NO_ORIGINS) for side, name in zip(self._of_side, contents or ())]
        return NO_ORIGINS.union(*made)

    def of_one(
        self, side: int, record: Record, counts: Callable[[OriginNumber], bool]
    ) -> tuple[frozenset[OriginNumber], Optional[InputNoise]]:
        """What is known of an input that has no partner, by what its side wrote before. counts: of which origins."""
        name = identity_of(record)
        causes = frozenset(filter(counts, self._of_side[side].get(name, NO_ORIGINS)))
        return causes, None if causes or name is None else self._noise_of_side[side].get(name)

    def _names(self, contents: Optional[_Contents]) -> list[_Contents]:
        """A difference and what it was before an operator without a partner copied one side of it."""
        if contents is None:
            return []
        names = [contents]
        for side, copies in enumerate(self._copies):
            source = copies.get(contents[side])
            if source is not None:
                names.append((source, contents[1]) if side == 0 else (contents[0], source))
        if len(names) == 3:
            names.append((names[1][0], names[2][1]))
        return names


def _memory_of(record: Record) -> Optional[_Memory]:
    address, nbytes = record.attrs.get("address"), record.attrs.get("storage_nbytes")
    return (address, nbytes) if address and nbytes else None


def _may_be_part_of(found: Difference, noise: InputNoise, dtype: str) -> bool:
    """Whether what differs may be elements of a tensor with known noise: none is further off than the worst of these,
    but for the rounding to another type."""
    if found.measure is None or found.bounds:
        return True
    kind = float_kind(dtype)
    rounding = 0.0 if kind is None else 2 * kind.unit * found.measure.rms * math.sqrt(found.measure.count)
    return found.measure.max_abs <= 2 * noise.measure.max_abs + rounding
