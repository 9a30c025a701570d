"""Two operators that do the same in both programs, and the pairs of their tensors."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from typing import NamedTuple, Optional

from ascend_dump.analysis.operators.next_request import is_of_module
from ascend_dump.analysis.operators.operator import Operator
from ascend_dump.analysis.pairing.sequences import longest_increasing
from ascend_dump.reading import Record

__all__ = ["Match", "OneSided", "OtherSource", "RecordPair", "crossings", "in_places"]

#: Matches of at least this confidence have more evidence than their order.
_STRONG = 0.9

RecordPair = tuple[Optional[Record], Optional[Record]]


class OneSided(NamedTuple):
    """An operator that only one side runs: its output, and the input that only this side reads."""

    of_actual: bool
    output: Record
    read: Record


class OtherSource(NamedTuple):
    """Inputs of one size that read outputs of operators which are no pair, and the names of these operators."""

    inputs: tuple[Record, Record]
    names: tuple[str, str]


class Match(NamedTuple):
    """Two operators that do the same in both programs.

    how              the evidence: "mapping", "content", "dataflow", "place", "order", "name" or "parameter"; between
                     frameworks and for fused graphs also "provenance", "value" and "inputs"
    confidence       1.0 certain … 0.5 by position only
    tensors          pairs of inputs and pairs of outputs; None if tensors of equal index are paired
    unpaired_inputs  further inputs of each side, if `tensors` is set
    is_crossed       True if a commutative operator has its two inputs in one order in actual, and in the opposite order
                     in the reference
    one_sided        between frameworks: an output of an operator before this one that reads a tensor which the other
                     side does not read; None if there is none
    other_source     between frameworks: the only input of each side without a partner; None if these are not one each
    """

    actual: Operator
    reference: Operator
    how: str
    confidence: float
    tensors: Optional[tuple[Sequence[RecordPair], Sequence[RecordPair]]] = None
    unpaired_inputs: tuple[Sequence[Record], Sequence[Record]] = ((), ())
    is_crossed: bool = False
    one_sided: Optional[OneSided] = None
    other_source: Optional[OtherSource] = None

    @property
    def inputs(self) -> Sequence[RecordPair]:
        """Return the pairs of inputs."""
        if self.tensors is not None:
            return self.tensors[0]
        if self.is_crossed:
            return list(zip(self.actual.inputs[::-1], self.reference.inputs))
        return in_places(self.actual.inputs, self.reference.inputs)

    @property
    def outputs(self) -> Sequence[RecordPair]:
        """Return the pairs of outputs."""
        return in_places(self.actual.outputs, self.reference.outputs) if self.tensors is None else self.tensors[1]


def crossings(matches: Iterable[Match]) -> list[Match]:
    """Return the matches of weak evidence (confidence below 0.9) that cross stronger ones, in reference order.

    Two matches cross if their operators run in one order in actual, and in the opposite order in the reference.
    """
    ordered = sorted(matches, key=lambda match: match.reference.position)
    strong = [match for match in ordered if match.confidence >= _STRONG]
    row = [strong[index] for index in longest_increasing([match.actual.position for match in strong])]
    crossing = []
    passed = 0
    for match in ordered:
        while passed < len(row) and row[passed].reference.position <= match.reference.position:
            passed += 1
        if match.confidence < _STRONG:
            before = row[passed - 1].actual.position if passed else -1
            after = row[passed].actual.position if passed < len(row) else match.actual.position + 1
            if not before < match.actual.position < after:
                crossing.append(match)
    return crossing


def in_places(a: Sequence[Record], b: Sequence[Record]) -> list[RecordPair]:
    """Return the pairs of records of two operators that have equal indices; None for a missing record.

    Names of arguments replace the indices if a name has another index on the other side: if one program passes a mask
    to a module and the other one does not, all later arguments are moved.
    """
    by_name = _are_moved(a, b)
    records_a, records_b = ({_place(record, by_name): record for record in side} for side in (a, b))
    ordered = sorted({*records_a, *records_b}, key=lambda place: (records_b.get(place) or records_a[place]).index)
    return [(records_a.get(place), records_b.get(place)) for place in ordered]


def _place(record: Record, by_name: bool) -> Hashable:
    return record.io, (record.argument or record.index) if by_name else record.index


def _are_moved(a: Iterable[Record], b: Iterable[Record]) -> bool:
    """Return True if an argument of one name has two indices in calls of a module."""
    indices = {_place(record, True): record.index for record in b if is_of_module(record)}
    return bool(indices) and any(indices.get(_place(record, True), record.index) != record.index for record in a)
