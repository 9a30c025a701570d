"""Find the tensors at which two programs agree, and the operators whose effect ends at these tensors.

Two programs may compute the same in other ways: with other operators, or with values that are never used, such as those
of padding. Then operators may be paired that are not the same. If everything that is computed from such operators
agrees, they are no cause of anything, and are not compared.
"""

from __future__ import annotations

import math
from collections.abc import Container, Iterator, Mapping, Sequence
from typing import NamedTuple, Optional

from ascend_dump.analysis.alignment.built_otherwise.products import is_product
from ascend_dump.analysis.alignment.token_groups import computes_floats
from ascend_dump.analysis.alignment.token_parts import distance
from ascend_dump.analysis.operators.operator import Operator
from ascend_dump.analysis.pairing.data_flow import DataFlow
from ascend_dump.analysis.pairing.same_framework import Match, RecordPair
from ascend_dump.reading import Record

__all__ = ["Borders", "RecordKey"]

#: Side (0 for actual), name of the operator, "input" or "output", and index.
RecordKey = tuple[int, str, str, int]
#: Tensors with a larger relative distance do not agree: in rounding units, but at least _LEAST_APART.
_UNITS_APART, _LEAST_APART = 64.0, 1e-4
#: A difference may only be ignored if it is this many times larger than what is left of it in all results.
_TIMES_LESS = 10.0


class _Side(NamedTuple):
    """One program. flow: the readers of its operators; matches: by position; parts: positions of divided operators"""

    flow: DataFlow
    matches: Mapping[int, Match]
    parts: Mapping[int, Sequence[int]]
    original: Mapping[int, int]


class Borders:
    """Tells which operators lead to nothing but tensors that agree on both sides."""

    def __init__(
        self,
        flows: Sequence[DataFlow],
        positions: Sequence[Sequence[int]],
        matches: Sequence[Match],
        parts: dict[int, Optional[Record]],
        unit: float,
    ) -> None:
        """Keep what both programs consist of.

        flows      the data flow of the base call of each side
        positions  for each side and operator: its position in the data flow, which a divided operator shares
        matches    the paired operators
        parts      by `id` of a record: the record that is compared; None if it is not compared
        unit       the rounding unit
        """
        self._parts, self._matches = parts, matches
        self._limit = max(_UNITS_APART * unit, _LEAST_APART)
        self._distances: dict[tuple[int, str], Optional[float]] = {}
        self._sides: list[_Side] = []
        for side, (flow, original) in enumerate(zip(flows, positions)):
            of_position: dict[int, list[int]] = {}
            for position, number in enumerate(original):
                of_position.setdefault(number, []).append(position)
            by_position = {(match.reference if side else match.actual).position: match for match in matches}
            self._sides.append(_Side(flow, by_position, of_position, dict(enumerate(original))))

    def believed(self, differing: Container[RecordKey]) -> list[Match]:
        """Return the matches without those whose results differ, although everything computed from them agrees.

        Inputs that differ, although the results agree, are left out of the compared records.

        differing: the key of each record that differs
        """
        kept = []
        for match in self._matches:
            if self._differs(match.outputs, differing):
                if not self._is_harmless(match):
                    kept.append(match)
            elif not self._differs(match.inputs, differing):
                kept.append(match)
            elif self._agrees(match):
                kept.append(match)
                self._leave_out_inputs(match)
            elif not self._is_harmless(match):
                kept.append(match)
        return kept

    def _differs(self, pairs: Sequence[RecordPair], differing: Container[RecordKey]) -> bool:
        return any(
            (side, record.op_name, record.io, record.index) in differing
            for pair in pairs
            for side, record in enumerate(pair)
            if record is not None
        )

    def _agrees(self, match: Match) -> bool:
        apart = self._distance(match, "outputs")
        return apart is not None and apart <= self._limit

    def _leave_out_inputs(self, match: Match) -> None:
        """Leave out inputs that differ, if the results of the match agree clearly better."""
        apart = self._distance(match, "outputs")
        if not computes_floats(match.reference) or apart is None:
            return
        for pair in match.inputs:
            [of_input] = self._of_pairs([pair])
            if of_input is not None and of_input > max(self._limit, _TIMES_LESS * apart):
                self._parts.update({id(record): None for record in pair if record is not None})

    def is_inside(self, operator: Operator, side: int) -> bool:
        """Return True if everything that is computed from an operator without a partner agrees. side: 0 for actual"""
        return self._remaining(side, operator) <= self._limit

    def _is_harmless(self, match: Match) -> bool:
        if match.how == "mapping" or (is_product(match.reference) and is_product(match.actual)):
            return False
        distances = [apart for apart in self._of_pairs([*match.inputs, *match.outputs]) if apart is not None]
        apart = max(distances, default=math.inf)
        limit = min(self._limit, apart / _TIMES_LESS)
        return all(self._remaining(side, operator) <= limit for side, operator in enumerate(match[:2]))

    def _remaining(self, side: int, operator: Operator) -> float:
        """Return the largest distance of the nearest results that are computed from an operator; infinite without any.

        The search passes operators without a partner, and paired operators whose results differ, if they are doubtful.
        """
        of_side = self._sides[side]
        waiting = [of_side.original[operator.position]]
        seen = set(waiting)
        largest: Optional[float] = None
        while waiting:
            for reader in of_side.flow.readers[waiting.pop()]:
                if reader in seen:
                    continue
                seen.add(reader)
                ends = [self._end(of_side.matches.get(position)) for position in of_side.parts.get(reader, ())]
                if any(end is None for end in ends) or not ends:
                    waiting.append(reader)
                largest = max(
                    [end for end in ends if end is not None] + ([] if largest is None else [largest]), default=largest
                )
                if largest is not None and largest > self._limit:
                    return largest
        return math.inf if largest is None else largest

    def _end(self, match: Optional[Match]) -> Optional[float]:
        """Return the distance of the tensors of a match if the search ends there; else None."""
        if match is None or not computes_floats(match.reference):
            return None
        inputs = self._distance(match, "inputs") if is_product(match.reference) else None
        outputs = self._distance(match, "outputs")
        distances = [apart for apart in (inputs, outputs) if apart is not None]
        if not distances:
            return None
        nearest = min(distances)
        is_sure = match.how == "mapping" or (is_product(match.reference) and is_product(match.actual))
        return nearest if is_sure or nearest <= self._limit else None

    def _distance(self, match: Match, io: str) -> Optional[float]:
        """Return the largest distance of two inputs or outputs of a match; None if not all of them are compared."""
        key = id(match.reference), io
        if key not in self._distances:
            pairs = match.inputs if io == "inputs" else match.outputs
            distances = list(self._of_pairs(pairs))
            self._distances[key] = (
                None if None in distances or not distances else max(filter(None, distances), default=0.0)
            )
        return self._distances[key]

    def _of_pairs(self, pairs: Sequence[RecordPair]) -> Iterator[Optional[float]]:
        for a, b in pairs:
            part_a, part_b = (None if record is None else self._parts.get(id(record)) for record in (a, b))
            yield None if part_a is None or part_b is None else distance(part_a, part_b)
