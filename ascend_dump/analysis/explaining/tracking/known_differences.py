"""Remember known differences, and the origins that they come from.

A difference is identified by its contents: the pair (content of actual, content of reference). A tensor that only one
side has is looked up by the content of that side.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping
from typing import Any, Optional

from ascend_dump.analysis.explaining.tracking.partly_written import PartlyWritten
from ascend_dump.analysis.judging.input_noise import NO_ORIGINS, InputNoise, OriginNumber, flips_in
from ascend_dump.analysis.numerics.arrangement import are_rearranged
from ascend_dump.analysis.numerics.float_types import float_kind
from ascend_dump.analysis.numerics.measure import Measure
from ascend_dump.analysis.numerics.tensor_pair import Difference, identity_of, type_of
from ascend_dump.analysis.operators.operator import storage_of
from ascend_dump.reading import Record
from ascend_dump.statistics import COMPUTED

__all__ = ["KnownDifferences", "statistics_settle"]

#: The error of a tensor is assumed to be at least this many roundings, and this many times as large as its statistics
#: show.
_MANY_ROUNDINGS, _TIMES_SEEN = 64.0, 16.0
#: Statistics of fewer elements may agree by chance.
_FEW_ELEMENTS = 8
#: A tensor with negative elements whose root mean square is this many times an extreme may have a mask.
_MASKED = 100.0
_Contents = tuple[Any, Any]
#: The address and size of a storage. Unlike its number they stay the same over steps.
_Memory = tuple[int, int]


class KnownDifferences:
    """The known differences of one rank, over all steps."""

    def __init__(self) -> None:
        self._causes: dict[_Contents, frozenset[OriginNumber]] = {}
        #: Differences within rounding, with the origins whose small consequences they may be.
        self._noise: dict[_Contents, InputNoise] = {}
        #: For each side, by the contents of a copy that an operator without a partner made: the original contents.
        self._copies: tuple[dict[Any, Any], dict[Any, Any]] = ({}, {})
        #: By the storages of both sides in the current step: the origins of the difference that was written there.
        self._written: dict[Any, frozenset[OriginNumber]] = {}
        self._memory = PartlyWritten()
        #: For each side, by the content of a tensor that differs: the origins of the difference.
        self._one_sided: tuple[dict[Any, frozenset[OriginNumber]], dict[Any, frozenset[OriginNumber]]] = ({}, {})
        self._one_sided_noise: tuple[dict[Any, InputNoise], dict[Any, InputNoise]] = ({}, {})
        #: The largest noise that follows from no origin.
        self.largest: Optional[InputNoise] = None
        #: By side and memory: the origin at the operator without a partner that wrote there last.
        self._one_sided_writes: dict[tuple[int, _Memory], OriginNumber] = {}

    def begin_step(self, views: Optional[tuple[Mapping[Any, Any], Mapping[Any, Any]]]) -> None:
        """Begin a step. Storages are numbered anew in each step, so earlier writes to them are forgotten.

        views: for each side, by the contents of a view: the contents of the viewed tensor
        """
        self._written.clear()
        self._memory.begin_step()
        for copies, viewed in zip(self._copies, views or ()):
            copies.update(viewed)

    def __bool__(self) -> bool:
        """True if a difference with an origin is known."""
        return bool(self._causes)

    def add(self, contents: Optional[_Contents], causes: frozenset[OriginNumber]) -> None:
        """Note a difference of an input that no paired operator wrote."""
        if contents is not None:
            self._causes[contents] = causes

    def add_written(self, a: Record, b: Record, contents: Optional[_Contents], causes: frozenset[OriginNumber]) -> None:
        """Note a difference that an operator wrote."""
        if contents is not None:
            self._causes[contents] = causes
            for side, content in zip(self._one_sided, contents):
                side[content] = causes
        if storage_of(a) is not None:
            self._written[storage_of(a), storage_of(b)] = causes

    def add_copy(self, side: int, source: Any, content: Any) -> None:
        """Note that an operator without a partner copied a tensor of one side (0: actual)."""
        if source is not None and content is not None and source != content:
            copies = self._copies[side]
            copies[content] = copies.get(source, source)

    def add_one_sided_write(self, side: int, output: Record, origin: OriginNumber) -> None:
        """Note that an operator of one side (0: actual) wrote to the memory of an input, maybe to a part of it."""
        memory = _memory_of(output)
        if memory is not None:
            self._one_sided_writes[side, memory] = origin

    def forget_one_sided_writes(self, a: Optional[Record], b: Optional[Record]) -> None:
        """Forget earlier writes of one side to this memory, because paired operators have written to it since."""
        if self._one_sided_writes:
            for side, record in enumerate((a, b)):
                memory = None if record is None else _memory_of(record)
                if memory is not None:
                    self._one_sided_writes.pop((side, memory), None)

    def one_sided_writers(self, a: Record, b: Record) -> frozenset[OriginNumber]:
        """Return the origins at operators without a partner that were the last to write to the memory of two inputs.

        They are needed because an operator may write to a part of a tensor. Then none of its records has the new
        content of the whole tensor.
        """
        memories = [(side, _memory_of(record) or (0, 0)) for side, record in enumerate((a, b))]
        return frozenset(self._one_sided_writes[memory] for memory in memories if memory in self._one_sided_writes)

    def add_noise(
        self,
        difference: Difference,
        dtype: str,
        causes: frozenset[OriginNumber],
        input_noise: Collection[InputNoise] = (),
        size: int = 0,
    ) -> InputNoise:
        """Note a difference within rounding, and return it as noise of later inputs.

        size: the number of elements, if nothing could be measured because flips (roundings that change an index or
        flag) changed even the shape
        """
        kind, measure = float_kind(dtype), difference.measure or Measure(count=size, unequal=size, rel_l2=1.0)
        unit = max([kind.unit if kind is not None else 0.0, *(noise.unit for noise in input_noise)])
        error = measure.rel_l2
        flips = flips_in(input_noise)
        if kind is None:
            # Of integers in another type, the bytes differ although the values may be the same.
            flips = max(flips, measure.unequal, 0 if difference.cast else 1)
        elif error <= math.sqrt(unit) and not difference.bounds and not _has_whole_steps(measure):
            flips = 0  # the flips changed the values no more than rounding does
        if difference.bounds:
            # The error is not known: assume the largest one that counts as noise, unless it is probably smaller.
            largest = math.sqrt(unit)
            error = max(error, largest if flips or causes else min(largest, _probable_error(measure, unit)))
        noise = InputNoise(measure, error, unit, causes, difference.bounds, flips)
        if not (difference.bounds or flips or causes) and (self.largest is None or error > self.largest.error):
            self.largest = noise
        if difference.contents is not None:
            self._noise[difference.contents] = noise
            for side, content in zip(self._one_sided_noise, difference.contents):
                side[content] = noise
        return noise

    def forget(self, contents: Optional[_Contents]) -> None:
        """Forget the difference of tensors that are equal again."""
        if contents is not None:
            self._causes.pop(contents, None)

    def drop_causes(self, ended: Collection[OriginNumber]) -> None:
        """Remove origins that reached no result from every known difference that another origin explains too."""
        if not ended:
            return
        for causes_of in (self._causes, *self._one_sided):
            for contents, causes in causes_of.items():
                remaining = causes.difference(ended)
                if remaining and len(remaining) < len(causes):
                    causes_of[contents] = remaining

    def disregard(self, ended: Collection[OriginNumber]) -> None:
        """Note that the differences of inputs change no result. From now on they have no origins."""
        for contents, causes in self._causes.items() if ended else ():
            if causes and causes <= set(ended):
                self._causes[contents] = NO_ORIGINS

    def is_noise(self, contents: Optional[_Contents]) -> bool:
        return contents in self._noise

    def causes_of(self, contents: Optional[_Contents]) -> frozenset[OriginNumber]:
        """Return the origins of a difference with exactly these contents."""
        return NO_ORIGINS if contents is None else self._causes.get(contents, NO_ORIGINS)

    def add_output(self, a: Record, b: Record, *, is_written: bool) -> None:
        """Note an output that was judged. is_written: the operator wrote to memory of an input"""
        contents = identity_of(a), identity_of(b)
        self._memory.add(a, b, (self._causes.get(contents), self._noise.get(contents)), is_written=is_written)

    def add_without_value(self, a: Record, b: Record, causes: frozenset[OriginNumber]) -> None:
        """Note memory without a value, with the origin of whatever is computed from it."""
        self._memory.add(a, b, (causes, None))

    def look_up(
        self, a: Record, b: Record, difference: Difference
    ) -> tuple[Optional[frozenset[OriginNumber]], Optional[InputNoise]]:
        """Return the origins of the difference of an input, and its noise; None for each if it is not known."""
        causes: Optional[frozenset[OriginNumber]] = None
        noise: Optional[InputNoise] = None
        for contents in self._before_copies(difference.contents):
            causes = causes if causes is not None else self._causes.get(contents)
            if noise is None:
                noise = self._noise.get(contents)
                if noise is not None and not _may_be_part_of(difference, noise, type_of(a, b)):
                    noise = None
        if causes is None and noise is None and storage_of(a) is not None:
            causes = self._written.get((storage_of(a), storage_of(b)))
        if causes is None and noise is None:
            causes, noise = self._memory.look_up(a, b)
            noise = noise if noise is not None and _may_be_part_of(difference, noise, type_of(a, b)) else None
        return causes, noise

    def of_side(self, side: int, content: Any) -> tuple[frozenset[OriginNumber], Optional[InputNoise]]:
        """Return the origins of the difference, and the noise, of a tensor of one side (0: actual)."""
        return self._one_sided[side].get(content, NO_ORIGINS), self._one_sided_noise[side].get(content)

    def look_up_unpaired(
        self, side: int, record: Record, counts: Callable[[OriginNumber], bool]
    ) -> tuple[frozenset[OriginNumber], Optional[InputNoise]]:
        """Return the origins of the difference of an input without a partner, or else its noise.

        side    0 for actual
        counts  returns True for the origins to return
        """
        content = identity_of(record)
        causes = frozenset(filter(counts, self._one_sided[side].get(content, NO_ORIGINS)))
        return causes, None if causes or content is None else self._one_sided_noise[side].get(content)

    def _before_copies(self, contents: Optional[_Contents]) -> list[_Contents]:
        """Return the contents, and the contents from which operators without a partner copied one or both sides."""
        if contents is None:
            return []
        candidates = [contents]
        for side, copies in enumerate(self._copies):
            source = copies.get(contents[side])
            if source is not None:
                candidates.append((source, contents[1]) if side == 0 else (contents[0], source))
        if len(candidates) == 3:
            candidates.append((candidates[1][0], candidates[2][1]))
        return candidates


def _has_whole_steps(measure: Measure) -> bool:
    """Return True if elements differ by a whole number, as indices and counts do that a program casts to floats."""
    return measure.max_abs >= 1 and float(measure.max_abs).is_integer()


def _probable_error(measure: Measure, unit: float) -> float:
    """Return an error that rounding probably does not exceed, given lower bounds from statistics.

    The largest element is one of all elements, and random errors change the norm by their size over the root of their
    number. A tensor with its elements in another order has larger errors.
    """
    if not measure.rms:
        return math.inf
    of_norm = measure.rel_l2 * math.sqrt(measure.count)
    return max(_MANY_ROUNDINGS * unit, _TIMES_SEEN * max(measure.max_abs / measure.rms, of_norm))


def statistics_settle(difference: Difference, a: Record, b: Record) -> bool:
    """Return True if statistics agree so closely that a difference of the inputs has ended.

    Extremes, mean and norm agree within some roundings. The rounding of what the inputs are computed from is not known:
    it may be the same in many elements, and then it changes a norm as much as an element. Elements that differ do not
    agree so by chance, except the same elements in another order. Coarse statistics prove nothing, nor do those of a
    mask, which is negative and much larger than the other elements.
    """
    measure, kind = difference.measure, float_kind(type_of(a, b))
    if measure is None or kind is None or not difference.bounds or measure.nonfinite or are_rearranged(a, b):
        return False
    if measure.count < _FEW_ELEMENTS or not a.precision == b.precision == COMPUTED:
        return False
    statistics = b.statistics()
    lowest, largest = (float(value or 0.0) for value in (statistics.min, statistics.max))
    if lowest < 0 and measure.rms > _MASKED * min(-lowest, abs(largest) or -lowest):
        return False
    return max(measure.max_rel, measure.rel_l2) <= _MANY_ROUNDINGS * kind.unit


def _memory_of(record: Record) -> Optional[_Memory]:
    address, nbytes = record.attrs.get("address"), record.attrs.get("storage_nbytes")
    return (address, nbytes) if address and nbytes else None


def _may_be_part_of(difference: Difference, noise: InputNoise, dtype: str) -> bool:
    """Return True if the difference may belong to a part of a tensor with known noise.

    Then no error is larger than the largest error of that tensor, except by rounding to another type.
    """
    measure = difference.measure
    if measure is None or difference.bounds:
        return True
    kind = float_kind(dtype)
    rounding = 0.0 if kind is None else 2 * kind.unit * measure.rms * math.sqrt(measure.count)
    return measure.max_abs <= 2 * noise.measure.max_abs + rounding
