"""Name the operator in which a difference begins, inside of a part that two programs compute by other operators."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Optional

from ascend_dump.analysis.alignment.token_parts import token_part
from ascend_dump.analysis.alignment.tokens import TokenAlignment
from ascend_dump.analysis.compare._tokens import differing_tokens
from ascend_dump.analysis.explaining.results import Origin, Pair
from ascend_dump.analysis.operators.operator import Operator
from ascend_dump.reading import Record

__all__ = ["with_traced_difference"]

_AGREEING = ("equal", "noise")
_SIDES = ("actual", "the reference")


def with_traced_difference(origins: Sequence[Origin], pairs: Sequence[Pair], alignment: TokenAlignment) -> list[Origin]:
    """Return the origins; the first one is replaced if it is a whole part, and the part shows where it begins.

    pairs: those of all compared tensors, in execution order
    """
    if not origins or not _is_of_part(origins[0]):
        return [*origins]
    end = next((pair for pair in pairs if pair.verdict == "different" and token_part(pair.reference) is not None), None)
    if end is None:
        return [*origins]
    numbers, agreeing = differing_tokens(end), [_agreeing(pairs, side) for side in (0, 1)]
    if not numbers:
        return [*origins]
    operators = [
        None if operator is None or _is_at(operator, record) else operator
        for operator, record in zip(
            alignment.begins_at((end.actual, end.reference), numbers, agreeing), (end.actual, end.reference)
        )
    ]
    if operators == [None, None]:
        return [*origins]
    return [_origin(origins[0], end, operators), *origins[1:]]


def _is_of_part(origin: Origin) -> bool:
    """Return True for an origin at a part that both sides build differently, or whose inputs are not compared.

    The values of tokens come from the program itself, so operators before an input that reads them made the difference.
    """
    if origin.kind == "input":
        return origin.pair.record.io == "input" and token_part(origin.pair.reference) is not None
    if origin.kind != "structure":
        return origin.kind == "unknown"
    if None in (origin.pair.actual, origin.pair.reference):
        return "only" not in origin.pair.reason  # an operator that one side runs alone is the cause itself
    return origin.pair.how == "dataflow"


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
    text = "; ".join(
        f"{operator.op_name} of {side} computes a result that {other} lacks, from tensors that both have"
        for operator, side, other in zip(operators, _SIDES, _SIDES[::-1])
        if operator is not None
    )
    pair = replace(origin.pair, actual=a, reference=b, how="order", verdict="different", reason=text)
    evidence = (text, f"found where {end.record.label} differs: {end.reason}", *origin.evidence)
    return replace(origin, kind="structure", pair=pair, evidence=evidence, first_seen=False, caller=None)
