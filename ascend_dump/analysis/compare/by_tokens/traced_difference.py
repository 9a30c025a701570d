"""Name the first operator that differs inside of a part that two programs compute by other operators."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Optional

from ascend_dump.analysis.alignment.built_otherwise.traced_differences import Beginning
from ascend_dump.analysis.alignment.token_parts import distance, token_part
from ascend_dump.analysis.alignment.tokens import TokenAlignment
from ascend_dump.analysis.compare.by_tokens.attention import differing_operand
from ascend_dump.analysis.compare.by_tokens.operand_paths import line_of
from ascend_dump.analysis.compare.by_tokens.origins import differing_tokens, run_alone
from ascend_dump.analysis.explaining.results import Origin, Pair
from ascend_dump.analysis.numerics.float_types import float_kind
from ascend_dump.analysis.operators.operator import Operator
from ascend_dump.errors import AscendDumpError
from ascend_dump.reading import Record

__all__ = ["with_traced_difference", "with_traced_operand"]

#: Maximum number of tensors that differ by less than a relative distance, from which a difference is traced.
_MOST_ENDS, _SMALL = 8, 1e-4
#: Maximum number of operators that pick an input, in a sentence: the last ones.
_MOST_PICKING = 2
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
        begins = [
            None if begin is None or _is_at(begin.operator, record) else begin
            for begin, record in zip(alignment.begins_at(sides, numbers, agreeing) if numbers else (), sides)
        ]
        if any(begins) and _may_replace(origins[0], begins):
            where = f"found where {end.record.label} differs: {end.reason}"
            return [_origin(origins[0], where, _at_token(begins, numbers[0], alignment)), *origins[1:]]
    return [*origins]


def with_traced_operand(origins: Sequence[Origin], pairs: Sequence[Pair], alignment: TokenAlignment) -> list[Origin]:
    """Return the origins; the first one is replaced if it lies in an attention whose queries or keys differ already.

    pairs: those of all compared tensors, in execution order
    """
    operand = differing_operand(origins[0], alignment) if origins else None
    if operand is None:
        return [*origins]
    begins = alignment.begins_at(operand.records, operand.numbers, [_agreeing(pairs, side) for side in (0, 1)])
    if not any(begins):
        return [*origins]
    label = origins[0].pair.record.label
    where = f"the {operand.name} of the attention differ, in which {label} differs: {origins[0].pair.reason}"
    return [_origin(origins[0], where, _at_token(begins, operand.numbers[0], alignment)), *origins[1:]]


def _at_token(
    begins: Sequence[Optional[Beginning]], number: int, alignment: TokenAlignment
) -> list[Optional[Beginning]]:
    """Return the beginning of each side with its operator as it runs in the call with a token."""
    return [
        None if begin is None else begin._replace(operator=alignment.at_token(side, begin.operator, number))
        for side, begin in enumerate(begins)
    ]


def _first_ends(ends: Sequence[Pair]) -> list[Pair]:
    """Return the first tensors from which a difference is traced. The last one is far off if any is.

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
    if origin.kind in ("input", "wiring"):
        return origin.pair.record.io == "input" and token_part(origin.pair.reference) is not None
    if origin.kind != "structure":
        return origin.kind == "unknown"
    if None in (origin.pair.actual, origin.pair.reference):
        # An operator that one side runs alone is the cause itself; of several ones, the first may be right.
        return "only" not in origin.pair.reason or run_alone(origin)
    return origin.pair.how == "dataflow"


def _may_replace(origin: Origin, begins: Sequence[Optional[Beginning]]) -> bool:
    """Return False for an origin at operators that only one side runs if the difference does not begin in this side."""
    if not run_alone(origin) or any(begin is not None and begin.picks_otherwise for begin in begins):
        return True
    side = 0 if origin.pair.reference is None else 1
    return begins[side] is not None and begins[1 - side] is None


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


def _origin(origin: Origin, where: str, begins: Sequence[Optional[Beginning]]) -> Origin:
    """Return an origin at the operators in which a difference begins. where: the fact on the tensor that shows it"""
    a, b = (None if begin is None else begin.operator.outputs[0] for begin in begins)
    named = [f"{begin.operator.op_name} of {side}" for begin, side in zip(begins, _SIDES) if begin is not None]
    picked = [begin for begin in begins if begin is not None and begin.picks_otherwise]
    if picked:
        first, chosen = picked[0].operator, [line_of(operator) for operator in picked[0].picking]
        whose = "picks elements" if first in picked[0].picking else f"arranges elements for {', '.join(chosen)}"
        text = f"{first.op_name} of {_SIDES[begins.index(picked[0])]} {whose} that the other program does not pick"
    elif len(named) > 1:
        text = f"{' and '.join(named)} compute different results from results that both have"
    else:
        lacking = _SIDES[begins[0] is not None]
        text = f"{named[0]} computes a result that {lacking} lacks, from results that both have"
    pair = replace(origin.pair, actual=a, reference=b, how="order", verdict="different", reason=text)
    # What else is known of the replaced origin is about another tensor.
    facts = (fact for fact in origin.evidence if fact.startswith("first "))
    reads = [fact for begin in begins if begin is not None for fact in _picking(begin)]
    instead = [
        f"{_SIDES[1 - side]} goes on with {line_of(begin.instead)}"
        for side, begin in enumerate(begins)
        if begin is not None and begin.instead is not None
    ]
    evidence = (text, *_weight_facts(begins), *instead, *reads, where, *facts)
    return replace(origin, kind="structure", pair=pair, evidence=evidence, first_seen=False, caller=None)


def _weight_facts(begins: Sequence[Optional[Beginning]]) -> Iterator[str]:
    """Yield a sentence on tensors of other values that operators of both sides read, and that no token changes."""
    import numpy as np

    if len(begins) < 2 or begins[0] is None or begins[1] is None:
        return
    sides = [[record for record in begin.operator.inputs if _is_vector(record)] for begin in begins if begin]
    for a in sides[0]:
        same_size = [b for b in sides[1] if math.prod(a.shape or ()) == math.prod(b.shape or ())]
        # A weight and a bias have one size, and are in the same places of one operator.
        partners = same_size if len(same_size) == 1 else [b for b in same_size if b.index == a.index]
        if not partners:
            continue
        try:
            x, y = (record.numpy().astype(np.float64).reshape(-1) for record in (a, partners[0]))
        except AscendDumpError:
            continue
        if np.abs(x - y).max(initial=0.0) > _SMALL * np.abs(y).max(initial=0.0):
            name = f" ({partners[0].parameter})" if partners[0].parameter else ""
            yield f"{a.label} has other values than {partners[0].label}{name}"


def _is_vector(record: Record) -> bool:
    """Return True for floats along a single axis, such as the weight of a norm, or frequencies."""
    shape = record.shape or ()
    return float_kind(record.dtype or "") is not None and 1 < math.prod(shape) == max(shape, default=0)


def _picking(begin: Beginning) -> Iterator[str]:
    """Yield a sentence with the operators of other lines that pick the inputs of an operator."""
    others = [line_of(op) for op in begin.picking if op.source != begin.operator.source]
    if others and not begin.picks_otherwise:
        yield f"{begin.operator.op_name} reads what {', '.join(others[-_MOST_PICKING:])} picks"
