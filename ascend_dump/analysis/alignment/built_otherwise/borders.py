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
from ascend_dump.analysis.alignment.token_groups import computes_floats, computes_weights
from ascend_dump.analysis.alignment.token_parts import Rounding, distance, token_part
from ascend_dump.analysis.operators.operator import Operator, module_of
from ascend_dump.analysis.pairing.data_flow import OUTSIDE, DataFlow
from ascend_dump.analysis.pairing.matches import Match, RecordPair
from ascend_dump.reading import Record

__all__ = ["Borders", "RecordKey"]

#: Side (0 for actual), name of the operator, "input" or "output", and index.
RecordKey = tuple[int, str, str, int]
#: Tensors with a larger relative distance do not agree: in rounding units, but at least _LEAST_APART.
_UNITS_APART, _LEAST_APART = 16.0, 1e-4
#: A difference may only be ignored if it is this many times larger than what is left of it in all results.
_TIMES_LESS = 10.0
#: Maximum number of operators that are searched for the rounding before a tensor.
_MOST_BEFORE = 256


class _ProgramSide(NamedTuple):
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
        self._unit = unit
        self._limit = max(_UNITS_APART * unit, _LEAST_APART)
        self._distances: dict[tuple[int, str], Optional[float]] = {}
        #: By `id` of two compared records.
        self._of_parts: dict[tuple[int, int], float] = {}
        self._sides: list[_ProgramSide] = []
        for side, (flow, original) in enumerate(zip(flows, positions)):
            of_position: dict[int, list[int]] = {}
            for position, number in enumerate(original):
                of_position.setdefault(number, []).append(position)
            by_position = {(match.reference if side else match.actual).position: match for match in matches}
            self._sides.append(_ProgramSide(flow, by_position, of_position, dict(enumerate(original))))

    def believed(self, differing: Container[RecordKey]) -> list[Match]:
        """Return the matches without those whose results differ, although everything computed from them agrees.

        Inputs that differ, although the results agree, are left out of the compared records.

        differing: the key of each record that differs
        """
        compared = []
        for match in self._matches:
            if self._differs(match.outputs, differing):
                if not self._is_harmless(match):
                    compared.append(match)
            elif not self._differs(match.inputs, differing):
                compared.append(match)
            elif self._agrees(match):
                compared.append(match)
                self._leave_out_inputs(match)
            elif not self._is_harmless(match):
                compared.append(match)
        return compared

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

    def note_rounding(self, matches: Sequence[Match]) -> bool:
        """Note in the compared inputs how much rounding precedes them, if operators before them are left out.

        Return True if that is more than what was noted before.

        matches: those that are compared
        """
        has_more = False
        for number, of_side in enumerate(self._sides):
            compared = {
                (match.reference if number else match.actual).position: match
                for match in matches
                if any(b is not None and self._parts.get(id(b)) is not None for _, b in match.outputs)
            }
            for match in matches:
                operator = match.reference if number else match.actual
                sources = of_side.flow.sources[of_side.original[operator.position]]
                for record, source in zip(operator.inputs, sources):
                    pair = next((pair for pair in match.inputs if pair[number] is record), (None, None))
                    part = None if pair[0] is None else token_part(self._parts.get(id(pair[0])))
                    made = source.maker or source.root
                    if part is None or made is None or made.position == OUTSIDE:
                        continue
                    if not any(position in compared for position in of_side.parts.get(made.position, ())):
                        rounding = self._rounding(of_side, made.position, compared)
                        if rounding[:3] > part.rounding[:3]:
                            part.rounding, has_more = rounding, True
        return has_more

    def _rounding(self, of_side: _ProgramSide, maker: int, compared: Mapping[int, Match]) -> Rounding:
        """Return the rounding in a tensor. maker: its operator; compared: the compared operators, by position"""
        waiting, visited = [maker], {maker}
        error, count = 0.0, 0
        attending: list[Operator] = []
        while waiting and len(visited) < _MOST_BEFORE:
            position = waiting.pop()
            distances = [
                self._distance(compared[part], "outputs")
                for part in of_side.parts.get(position, ())
                if part in compared
            ]
            measured = [apart for apart in distances if apart is not None]
            if measured:
                error = max(error, *measured)
                continue
            operator = of_side.flow.operators[position]
            count += computes_floats(operator)
            attending += [operator] if computes_weights(operator) else []
            for source in of_side.flow.sources[position]:
                made = source.maker or source.root
                if made is not None and made.position not in (OUTSIDE, *visited):
                    visited.add(made.position)
                    waiting.append(made.position)
        return Rounding(min(error, self._limit), count, self._unit, tuple(attending))

    def is_inside(self, operator: Operator, side: int) -> bool:
        """Return True if everything that is computed from an operator without a partner agrees, or a product does.

        If one of the products that read its result agrees, such as that of an earlier layer, the result is right.

        side: 0 for actual
        """
        return self._remaining(side, operator) <= self._limit or self._leads_to_agreement(side, operator)

    def reads_difference(
        self, operator: Operator, side: int, differing: Container[RecordKey], alone: Container[int]
    ) -> bool:
        """Return True if a result that differs leads to an operator, directly or by operators without a partner.

        So does the result of an operator that only one side runs, unless everything computed from it agrees.

        side       0 for actual
        differing  the key of each record that differs
        alone      the `id` of each operator that only one side runs, and that may be wrong
        """
        of_side = self._sides[side]
        waiting = [of_side.original[operator.position]]
        visited = {OUTSIDE, *waiting}
        while waiting:
            for source in of_side.flow.sources[waiting.pop()]:
                made = source.maker or source.root
                if made is None or made.position in visited:
                    continue
                visited.add(made.position)
                parts = of_side.parts.get(made.position, ())
                matches = [match for part in parts if (match := of_side.matches.get(part)) is not None]
                is_alone = not matches and id(of_side.flow.operators[made.position]) in alone
                if is_alone or any(self._differs(match.outputs, differing) for match in matches):
                    return True
                waiting += [] if matches else [made.position]
        return False

    def _leads_to_agreement(self, side: int, operator: Operator) -> bool:
        """Return True if operators without a partner lead from an operator to a product or a result that agrees."""
        of_side = self._sides[side]
        waiting = [of_side.original[operator.position]]
        visited = set(waiting)
        while waiting:
            maker = waiting.pop()
            for reader in of_side.flow.readers[maker] - visited:
                visited.add(reader)
                matches = [
                    match for part in of_side.parts.get(reader, ()) if (match := of_side.matches.get(part)) is not None
                ]
                certain = (match for match in matches if match.how == "value" or is_product(match.reference))
                if any(self._is_agreeing_end(side, maker, match) for match in certain):
                    return True
                # The search passes operators that are not compared.
                if not any(computes_floats(m.reference) and self._distance(m, "outputs") is not None for m in matches):
                    waiting.append(reader)
        return False

    def _is_agreeing_end(self, side: int, maker: int, match: Match) -> bool:
        apart = self._end(side, maker, match)
        return apart is not None and apart <= self._limit

    def _is_harmless(self, match: Match) -> bool:
        """Return True if a match can be left out: what is left of its difference in all results is much smaller.

        If the two results only have different types, and agree, the results behind them need not agree better.
        """
        apart = max(
            (apart for apart in self._of_pairs([*match.inputs, *match.outputs]) if apart is not None), default=math.inf
        )
        if _has_other_type(match) and not is_product(match.reference) and apart <= self._limit:
            limit = self._limit
        elif _is_sure(match):
            return False
        else:
            limit = min(self._limit, apart / _TIMES_LESS)
        return all(self._remaining(side, operator) <= limit for side, operator in enumerate(match[:2]))

    def _remaining(self, side: int, operator: Operator) -> float:
        """Return the largest distance of the nearest results that are computed from an operator; infinite without any.

        The search passes operators without a partner, and paired operators whose results differ, if they are doubtful.
        """
        of_side = self._sides[side]
        waiting = [of_side.original[operator.position]]
        visited = set(waiting)
        largest: Optional[float] = None
        while waiting:
            maker = waiting.pop()
            for reader in of_side.flow.readers[maker]:
                if reader in visited:
                    continue
                visited.add(reader)
                ends = [self._end(side, maker, of_side.matches.get(part)) for part in of_side.parts.get(reader, ())]
                measured = [end for end in ends if end is not None]
                if len(measured) < len(ends) or not ends:
                    waiting.append(reader)
                if measured:
                    largest = max([*measured, largest or 0.0])
                    if largest > self._limit:
                        return largest
        return math.inf if largest is None else largest

    def _end(self, side: int, maker: int, match: Optional[Match]) -> Optional[float]:
        """Return the distance of the tensors of a match if the search ends there; else None.

        maker: the operator whose result the match reads
        """
        if match is None or not computes_floats(match.reference):
            return None
        distances = [self._distance(match, "outputs"), self._of_read(side, maker, match)]
        measured = [apart for apart in distances if apart is not None]
        if not measured:
            return None
        nearest = min(measured)
        return nearest if _is_sure(match) or nearest <= self._limit else None

    def _of_read(self, side: int, maker: int, match: Match) -> Optional[float]:
        """Return the largest distance of the inputs of a match that an operator made; None if it is unknown."""
        of_side, operator = self._sides[side], match.reference if side else match.actual
        sources = of_side.flow.sources[of_side.original[operator.position]]
        read = {
            id(record)
            for record, source in zip(operator.inputs, sources)
            if any(made is not None and made.position == maker for made in (source.maker, source.root))
        }
        pairs = [pair for pair in match.inputs if id(pair[side]) in read]
        distances = list(self._of_pairs(pairs))
        return None if None in distances or not distances else max(filter(None, distances), default=0.0)

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
            if part_a is None or part_b is None:
                yield None
                continue
            key = id(part_a), id(part_b)
            if key not in self._of_parts:
                self._of_parts[key] = distance(part_a, part_b)
            yield self._of_parts[key]


def _is_sure(match: Match) -> bool:
    if match.how == "mapping":
        return True
    return is_product(match.reference) and is_product(match.actual) and not _is_of_part(match)


def _is_of_part(match: Match) -> bool:
    """Return True if one operator runs in a module inside of the other one's, such as the layer in an adapter.

    Then the module adds something to its result, so that this is not the result of the other operator.
    """
    shorter, longer = sorted((module_of(operator.module or "") for operator in match[:2]), key=len)
    return bool(shorter) and f".{shorter}." in f".{longer}."[:-1]


def _has_other_type(match: Match) -> bool:
    return any(a is not None and b is not None and a.dtype != b.dtype for a, b in match.outputs)
