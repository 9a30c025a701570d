"""Operators that the two programs call with different arguments, and what follows from that besides their own output.

Such an operator is called with different arguments in the backward pass too: the bounds of a clamp are used again for
the mask of its gradient. And a number that a program reads from a tensor with `item()` may be passed as an argument,
which carries a difference on.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from typing import NamedTuple, Optional

from ascend_dump.analysis.explaining.results import ChangedCall, Pair
from ascend_dump.analysis.judging.input_noise import NO_ORIGINS, InputNoise, OriginNumber
from ascend_dump.analysis.operators.arguments import DifferingArgument, differing_arguments
from ascend_dump.analysis.operators.operator import Operator
from ascend_dump.analysis.operators.properties import operator_class
from ascend_dump.analysis.pairing.same_framework import Match
from ascend_dump.errors import AscendDumpError

__all__ = ["Calls"]

_Number = tuple[float, float]


class _Cause(NamedTuple):
    """Where a difference comes from, and which noise it is."""

    origins: frozenset[OriginNumber]
    noise: tuple[InputNoise, ...] = ()


_NOTHING = _Cause(NO_ORIGINS)


class Calls:
    """What is known of one rank, step after step."""

    def __init__(self) -> None:
        #: Of the step: by module and source line, the origins of operators that are called differently.
        self._forward: dict[tuple[str, str], frozenset[OriginNumber]] = {}
        #: Of the step: by module and source line, forward operators that give the same, however they are called.
        self._equal: dict[tuple[str, str], list[Match]] = {}
        #: Of the step: numbers read from tensors that differ, of actual and of the reference.
        self._numbers: dict[_Number, _Cause] = {}
        #: Names and arguments of operators that are origins, and those of operators that one side runs alone.
        self._origins: dict[tuple[str, tuple[str, ...]], OriginNumber] = {}
        self._alone: dict[tuple[int, str], OriginNumber] = {}
        #: Names and arguments of operators that `changed` lists already.
        self._told: set[tuple[str, tuple[str, ...]]] = set()
        self._changed: dict[tuple[str, tuple[str, ...]], list[Pair]] = {}

    def begin_step(self) -> None:
        self._forward.clear()
        self._equal.clear()
        self._numbers.clear()

    def read_number(self, match: Match, pair: Pair, origins: Collection[OriginNumber], noise: list[InputNoise]) -> None:
        """Note what `item()` read from a tensor that differs; pair: of this tensor."""
        a, b = pair.actual, pair.reference
        if a is None or b is None or operator_class(match.reference.op_type) != "_local_scalar_dense":
            return
        try:
            number = float(a.numpy().item()), float(b.numpy().item())
        except (AscendDumpError, TypeError, ValueError):  # of statistics there is nothing to read
            return
        self._numbers[number] = _Cause(frozenset(origins), tuple(noise))

    def add_origin(
        self, operator: Operator, arguments: Iterable[DifferingArgument], changed: bool, origin: OriginNumber
    ) -> None:
        """changed: another operator runs in its place."""
        texts = tuple(one.text for one in arguments)
        if texts:
            self._origins[operator.op_name, texts] = origin
        if texts or changed:
            self._add_forward(operator, origin)

    def origin_before(self, operator: Operator, arguments: Iterable[DifferingArgument]) -> Optional[OriginNumber]:
        """The origin from an earlier step at the operator of this name with the same differing arguments; else None."""
        return self._origins.get((operator.op_name, tuple(one.text for one in arguments)))

    def add_alone(self, side: int, operator: Operator, make: Callable[[], OriginNumber]) -> OriginNumber:
        """The origin at an operator that one side runs alone: that of an earlier step, that of the forward operator
        whose gradient it is made for, or else a new one. side: 0 of actual."""
        forward = self.of_forward(operator)
        known = min(forward) if forward else self._alone.get((side, operator.op_name))
        origin = known if known is not None else make()
        self._alone[side, operator.op_name] = origin
        self._add_forward(operator, origin)
        return origin

    def _add_forward(self, operator: Operator, *origins: OriginNumber) -> None:
        place = operator.module, operator.source
        self._forward[place] = self._forward.get(place, NO_ORIGINS) | set(origins)

    def add_equal(self, match: Match) -> None:
        """Note operators with equal outputs: the outputs of their backward pass may differ."""
        operator = match.reference
        if operator.phase != "backward" and (operator.module or operator.source):
            self._equal.setdefault((operator.module, operator.source), []).append(match)

    def equal_forward(self, operator: Operator) -> list[str]:
        """For an operator of the backward pass: which forward operators of its source line are called with different
        arguments, in words."""
        if operator.phase != "backward":
            return []
        matches = self._equal.get((operator.module, operator.source), ())
        every = ((one.reference.label, differing_arguments(one.actual, one.reference)) for one in matches)
        return [f"{name} of the forward pass: {one.text}" for name, differing in every for one in differing]

    def add_reshaped(self, operator: Operator, origins: Collection[OriginNumber]) -> None:
        """Note an operator whose input has another shape: sizes passed to its backward pass follow from that."""
        self._add_forward(operator, *origins)

    def of_forward(self, operator: Operator) -> frozenset[OriginNumber]:
        """The origins at the forward operator that this one of the backward pass belongs to."""
        if operator.phase != "backward" or not (operator.module or operator.source):
            return NO_ORIGINS
        return self._forward.get((operator.module, operator.source), NO_ORIGINS)

    def causes(self, match: Match, changed: bool) -> _Cause:
        """What explains that two operators are called with different arguments; nothing if they are not, or if no known
        difference explains it."""
        forward = self.of_forward(match.reference)
        if not forward and not self._numbers:
            return _NOTHING
        differing = differing_arguments(match.actual, match.reference)
        if forward and (changed or differing):
            return _Cause(forward)
        known = self._of_numbers(differing)
        if not known:
            return _NOTHING
        origins = NO_ORIGINS.union(*(one.origins for one in known))
        return _Cause(origins, tuple(noise for one in known for noise in one.noise))

    def add_changed(self, match: Match, pair: Pair, origins: Collection[OriginNumber], changed: bool) -> None:
        """Note an operator whose output differs as its inputs do, if it is called differently; pair: of this output.

        changed: another operator runs in its place.
        """
        operator = match.reference
        if changed:
            self._add_forward(operator, *origins)
        differing = differing_arguments(match.actual, operator)
        if not differing or self.of_forward(operator) or self._of_numbers(differing):
            return
        self._add_forward(operator, *origins)
        texts = tuple(one.text for one in differing)
        call = operator.op_name, texts
        if call not in self._origins and call not in self._told:
            self._told.add(call)
            self._changed.setdefault((operator_class(operator.op_type), texts), []).append(pair)

    @property
    def changed(self) -> list[ChangedCall]:
        """Operators called with different arguments whose difference an origin explains; similar ones are one entry."""
        return [ChangedCall(pairs[0], texts, len(pairs) - 1) for (_, texts), pairs in self._changed.items()]

    def _of_numbers(self, differing: Collection[DifferingArgument]) -> list[_Cause]:
        """Where the differing arguments come from, if all of them were read from tensors; else an empty list."""
        if not self._numbers:
            return []
        numbers = [one.numbers for one in differing]
        known = [self._numbers.get(one) for one in numbers if one is not None]
        found = [one for one in known if one is not None]
        return found if len(found) == len(differing) else []
