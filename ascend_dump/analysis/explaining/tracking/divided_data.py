"""Find data that one program reads in parts, one part a call, and the other program in one call."""

from __future__ import annotations

from collections.abc import Sequence

from ascend_dump.analysis.alignment.step_boundaries import is_part, parts_of
from ascend_dump.analysis.explaining.results import Pair
from ascend_dump.analysis.operators.operator import Operator
from ascend_dump.analysis.pairing.matches import Match

__all__ = ["number_of_parts"]


def number_of_parts(match: Match, pair: Pair, sides: tuple[Sequence[Operator], Sequence[Operator]]) -> int:
    """Return the number of calls in which one side reads the rows that the other reads in one; 0 if they do not.

    pair: inputs of the operators of the match, of other sizes. sides: the operators of actual and of the reference
    """
    if pair.actual is None or pair.reference is None:
        return 0
    wholes = pair.reference, pair.actual
    for operator, operators, whole in zip((match.actual, match.reference), sides, wholes):
        site = _call_site(operator)
        calls = (call for call in operators if _call_site(call) == site)
        inputs = (record for call in calls for record in call.inputs if record.index == whole.index)
        parts = parts_of((record for record in inputs if is_part(record, whole)), whole)
        if parts:
            return len(parts)
    return 0


def _call_site(operator: Operator) -> tuple[str, str, str, str]:
    """Return the same key for all calls of one line of a program in one pass."""
    return operator.op_type, operator.module, operator.source, operator.phase
