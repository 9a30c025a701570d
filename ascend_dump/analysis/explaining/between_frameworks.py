"""Find the cause of a differing output in what two operators of two frameworks read."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import replace
from typing import NamedTuple, Optional

from ascend_dump.analysis.explaining.results import Pair
from ascend_dump.analysis.explaining.tracking.moved_axes import MovedAxes
from ascend_dump.analysis.operators.names import continues, operation
from ascend_dump.analysis.operators.properties import operator_class
from ascend_dump.analysis.pairing.matches import Match
from ascend_dump.reading import Record

__all__ = ["CauseBetweenFrameworks", "cause_between_frameworks", "read_by_others"]


class CauseBetweenFrameworks(NamedTuple):
    """The kind, the pair and the evidence of an origin.

    joined           key of origins that are reported as one; None for none
    is_proven        True if the inputs of the operator prove it
    is_other_source  True if the operators read outputs of operators that are no pair
    """

    kind: str
    pair: Pair
    evidence: list[str]
    joined: Optional[Hashable] = None
    is_proven: bool = True
    is_other_source: bool = False


def cause_between_frameworks(
    match: Match, inputs: Sequence[Pair], pair: Pair, moved_axes: MovedAxes
) -> Optional[CauseBetweenFrameworks]:
    """Return the cause of a differing output; None if the inputs prove none.

    pair: that of the output
    """
    result = f"{pair.record.label}: {pair.reason}"
    source = match.other_source
    if source is not None:
        reason = f"reads {source.names[0]} here, {source.names[1]} in the reference"
        read = replace(pair, actual=source.inputs[0], reference=source.inputs[1], verdict="different", reason=reason)
        evidence = [f"{source.inputs[0].op_name} {reason}", result]
        return CauseBetweenFrameworks("wiring", read, evidence, ("wiring", *source.names), is_other_source=True)
    first = moved_axes.cause(match, inputs)
    if first is not None:
        reason = f"its axes are in another order than in the reference: {first.transformation}"
        evidence = [f"{first.record.label}: {reason}", f"so the result of an operator that reads it differs: {result}"]
        return CauseBetweenFrameworks("wiring", replace(first, verdict="different", reason=reason), evidence)
    added = _added_before(match)
    if added is None:
        return None
    is_of_actual, record = added
    reason = f"{record.op_type} runs in {'actual' if is_of_actual else 'the reference'} only"
    evidence = [reason, f"its result differs, read as {result}"]
    if match.one_sided is not None:
        evidence.insert(1, f"nothing reads {match.one_sided.read.label} there on the other side")
    sides = (record, None) if is_of_actual else (None, record)
    of_one_side = replace(pair, actual=sides[0], reference=sides[1], reason=reason)
    return CauseBetweenFrameworks("structure", of_one_side, evidence, is_proven=match.one_sided is not None)


def _added_before(match: Match) -> Optional[tuple[bool, Record]]:
    """Return the input of an operator that only one side runs before this operator; True if that side is actual.

    None if no side or both sides run such operators. Between frameworks, results of operators without a partner have no
    partner either. So the match of the next operator has the inputs of these operators as its inputs.
    """
    if match.one_sided is not None:
        return match.one_sided.of_actual, match.one_sided.output
    if match.tensors is None or operation(match.actual.op_type) != operation(match.reference.op_type):
        return None
    before = read_by_others(match)
    if bool(before[0]) == bool(before[1]):
        return None
    return bool(before[0]), next(iter((*before[0], *before[1])))


def read_by_others(match: Match) -> tuple[list[Record], list[Record]]:
    """Return, on each side, the inputs of a match between frameworks that an earlier operator reads in its place."""
    if match.tensors is None:
        return [], []
    sides = ((match.actual, (a for a, _ in match.inputs)), (match.reference, (b for _, b in match.inputs)))
    found = [
        [
            record
            for record in records
            if record is not None
            and not any(record is own for own in operator.records)
            and operator_class(record.op_type) not in continues(operator.op_type)
        ]
        for operator, records in sides
    ]
    return found[0], found[1]
