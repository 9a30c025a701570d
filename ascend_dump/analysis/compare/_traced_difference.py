"""Name the operator in which a difference begins, inside of a part that two programs compute by other operators."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Optional

from ascend_dump.analysis.alignment.token_parts import distance, token_part
from ascend_dump.analysis.alignment.tokens import TokenAlignment
from ascend_dump.analysis.compare._tokens import BEGINS_IN, differing_tokens
from ascend_dump.analysis.explaining.results import Origin, Pair
from ascend_dump.analysis.operators.operator import Operator
from ascend_dump.reading import Record

__all__ = ["with_traced_difference"]

#: Maximum number of tensors that differ by less than a relative distance, from which a difference is traced.
_MOST_ENDS, _SMALL = 8, 1e-4
#: Part of the reason of an origin at several operators that only one side runs.
_SEVERAL = " run in "
_AGREEING = ("equal", "noise")
_SIDES = ("actual", "the reference")


def with_traced_difference(origins: Sequence[Origin], pairs: Sequence[Pair], alignment: TokenAlignment) -> list[Origin]:
    """Return the origins; the first one is replaced if it is a whole part, and the part shows where it begins.

    pairs: those of all compared tensors, in execution order
    """
    if not origins or not _is_of_part(origins[0]):
        return [*origins]
    ends = [pair for pair in pairs if pair.verdict == "different" and token_part(pair.reference) is not None]
    agreeing = [_agreeing(pairs, side) for side in (0, 1)]
    for end in _first_ends(ends):
        numbers, sides = differing_tokens(end), (end.actual, end.reference)
        operators = [
            None if operator is None or _is_at(operator, record) else operator
            for operator, record in zip(alignment.begins_at(sides, numbers, agreeing) if numbers else (), sides)
        ]
        if any(operators) and _may_replace(origins[0], operators):
            return [_origin(origins[0], end, operators), *origins[1:]]
    return [*origins]


def _first_ends(ends: Sequence[Pair]) -> list[Pair]:
    """Return the first tensors from which a difference is traced, of which the last one is far off if any is.

    A norm leaves little of a factor that one side lacks, so that the first tensors that differ may show nothing.
    """
    far = next((number for number, pair in enumerate(ends) if not _is_small(pair)), None)
    return [*ends[: min(len(ends) if far is None else far, _MOST_ENDS)], *(() if far is None else ends[far : far + 1])]


def _is_small(end: Pair) -> bool:
    return end.actual is not None and end.reference is not None and distance(end.actual, end.reference) < _SMALL


def _is_of_part(origin: Origin) -> bool:
    """Return True for an origin at a part that both sides build differently, or whose inputs are not compared.

    The values of tokens come from the program itself, so operators before an input that reads them made the difference.
    """
    if origin.kind == "input":
        return origin.pair.record.io == "input" and token_part(origin.pair.reference) is not None
    if origin.kind != "structure":
        return origin.kind == "unknown"
    if None in (origin.pair.actual, origin.pair.reference):
        # An operator that one side runs alone is the cause itself; of several ones, the first may be right.
        return "only" not in origin.pair.reason or _SEVERAL in origin.pair.reason
    return origin.pair.how == "dataflow"


def _may_replace(origin: Origin, operators: Sequence[Optional[Operator]]) -> bool:
    """Return False for an origin at operators that only one side runs if the difference does not begin in this side."""
    if _SEVERAL not in origin.pair.reason or None not in (origin.pair.actual, origin.pair.reference):
        return True
    side = 0 if origin.pair.reference is None else 1
    return operators[side] is not None and operators[1 - side] is None


def _agreeing(pairs: Sequence[Pair], side: int) -> set[str]:
    """Return the names of operators of a side all of whose compared results agree."""
    agreeing: set[str] = set()
    apart: set[str] = set()
    for pair in pairs:
        record = pair.reference if side else pair.actual
        if record is not None and record.io == "output" and None not in (pair.actual, pair.reference):
            name = record.op_name.partition("[")[0]
            (agreeing if pair.verdict in _AGREEING else apart).add(name)
    return agreeing - apart


def _is_at(operator: Operator, record: Optional[Record]) -> bool:
    return record is not None and operator.op_name == record.op_name.partition("[")[0]


def _origin(origin: Origin, end: Pair, operators: Sequence[Optional[Operator]]) -> Origin:
    a, b = (None if operator is None else operator.outputs[0] for operator in operators)
    named = [f"{op.op_name} of {side}" for op, side in zip(operators, _SIDES) if op is not None]
    if len(named) > 1:
        text = f"{' and '.join(named)} compute different results from tensors that both have"
    else:
        lacking = _SIDES[operators[0] is not None]
        text = f"{named[0]} computes a result that {lacking} lacks, from tensors that both have"
    pair = replace(origin.pair, actual=a, reference=b, how="order", verdict="different", reason=text)
    # What else is known of the replaced origin is about another tensor, or is said already.
    said = (BEGINS_IN, end.record.label, f"its result differs, read as {end.record.label}")
    facts = (
        fact
        for fact in origin.evidence
        if fact.startswith("first ") or not (origin.kind == "input" or fact.startswith(said))
    )
    evidence = (text, f"found where {end.record.label} differs: {end.reason}", *facts)
    return replace(origin, kind="structure", pair=pair, evidence=evidence, first_seen=False, caller=None)
