"""Find pairs of operators that only move elements, and move differences that begin before them.

Such a pair may be wrong, as programs move elements for reasons of their own. It tells nothing: the next operator that
computes shows the difference. But a pair is kept if the difference begins at its input. Either the input has all
elements of a result that agrees, and something between changed them or their order. Or one side reads an input
of the program, such as positions.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence, Set
from typing import Optional

from ascend_dump.analysis.alignment.built_otherwise.borders import RecordKey
from ascend_dump.analysis.numerics.float_types import float_kind
from ascend_dump.analysis.operators.names import moves_elements
from ascend_dump.analysis.pairing.data_flow import OUTSIDE, DataFlow, InputSource, Made
from ascend_dump.analysis.pairing.matches import Match, RecordPair
from ascend_dump.reading import Record

__all__ = ["moved_differences"]


def moved_differences(
    flows: Sequence[DataFlow],
    positions: Sequence[Sequence[int]],
    matches: Sequence[Match],
    parts: Mapping[int, Optional[Record]],
    differing: Set[RecordKey],
) -> set[int]:
    """Return the `id` of the reference operator of each match that only moves differences.

    flows      the data flow of the base call of each side
    positions  for each side and operator: its position in the data flow, which a divided operator shares
    parts      by `id` of a record: the record that is compared; None if it is not compared
    differing  the key of each record that differs between the two sides
    """
    agreeing = {
        (positions[0][match.actual.position], positions[1][match.reference.position])
        for match in matches
        if not moves_elements(match.reference.op_type) and _agrees(match.outputs, parts, differing)
    }
    moved = set()
    for match in matches:
        if match.how == "mapping" or not moves_elements(match.reference.op_type):
            continue
        inputs = [(a, b) for a, b in match.inputs if b is not None and parts.get(id(b)) is not None]
        differing_pairs = [pair for pair in inputs or match.outputs if _differs(pair[1], differing)]
        if differing_pairs and not any(
            (ends := _ends(flows, positions, match, pair)) in agreeing or OUTSIDE in ends
            for pair in differing_pairs
            if pair in inputs
        ):
            moved.add(id(match.reference))
    return moved


def _agrees(pairs: Sequence[RecordPair], parts: Mapping[int, Optional[Record]], differing: Set[RecordKey]) -> bool:
    """Return True if all pairs are compared, and none differs."""
    return all(b is not None and parts.get(id(b)) is not None and not _differs(b, differing) for _, b in pairs)


def _differs(record: Optional[Record], differing: Set[RecordKey]) -> bool:
    return record is not None and (1, record.op_name, record.io, record.index) in differing


def _ends(
    flows: Sequence[DataFlow], positions: Sequence[Sequence[int]], match: Match, pair: RecordPair
) -> tuple[Optional[int], Optional[int]]:
    """Return for each side the position of the operator that computed all elements of an input; None if unknown."""
    actual, reference = (
        _computed_at(flow, flow.sources[originals[operator.position]], record)
        for flow, originals, operator, record in zip(flows, positions, (match.actual, match.reference), pair)
    )
    return actual, reference


def _computed_at(flow: DataFlow, sources: Sequence[InputSource], record: Optional[Record]) -> Optional[int]:
    """Return the position of the operator whose result has the elements of an input, maybe in another order.

    None if the input has only some of these elements, or if it has those of several results. OUTSIDE for integers that
    no operator made; floats from outside may be a cache, of which programs read other parts.
    """
    source = next((source for source in sources if source.record is record), None)
    while source is not None and record is not None:
        made = _made(source)
        if made is None:
            return OUTSIDE if float_kind(record.dtype or "") is None else None
        operator = flow.operators[made.position]
        if not moves_elements(operator.op_type):
            return made.position if operator.outputs and _size(operator.outputs[0]) == _size(record) else None
        moved = [source for source in flow.sources[made.position] if source.record.dtype == record.dtype]
        source = moved[0] if len(moved) == 1 else None
    return None


def _made(source: InputSource) -> Optional[Made]:
    """Return the output that an input is, or is a view or copy of; None if it is from outside."""
    return next((made for made in (source.root, source.maker) if made is not None and made.position != OUTSIDE), None)


def _size(record: Record) -> int:
    return math.prod(record.shape or ())
