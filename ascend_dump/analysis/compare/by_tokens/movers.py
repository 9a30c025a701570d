"""Name the operators that move elements on one side only, between a tensor that agrees and a reader that differs.

Operators that only move elements are not compared by tokens, because two programs may move them differently and mean
the same. If the tensor before them agrees, and the tensor behind them differs, they are the cause.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Optional

from ascend_dump.analysis.alignment.token_parts import token_part
from ascend_dump.analysis.alignment.tokens import TokenAlignment
from ascend_dump.analysis.explaining.results import Origin
from ascend_dump.analysis.explaining.wiring import CHANGED
from ascend_dump.analysis.numerics.arrangement import are_rearranged
from ascend_dump.analysis.operators.names import moves_elements
from ascend_dump.analysis.operators.operator import Operator
from ascend_dump.analysis.operators.picking import may_pick, picks_elements
from ascend_dump.analysis.operators.properties import operator_class, writes
from ascend_dump.analysis.pairing.data_flow import OUTSIDE, DataFlow
from ascend_dump.errors import AscendDumpError
from ascend_dump.reading import Record

__all__ = ["reads_cache", "with_movers"]

#: Elements that are this near, relative to the largest one, are the same but for rounding.
_NEAR = 1e-4
_WROTE = "wrote the cache"
#: Operators that return all elements in the same order.
_KEEPING = frozenset({"view", "_unsafe_view", "reshape", "unsqueeze", "squeeze", "alias", "clone", "contiguous"})


def with_movers(origin: Origin, alignment: TokenAlignment, number: Optional[int] = None) -> Origin:
    """Return the origin of an input at the first operator that moves its elements on one side only, if there is one.

    number: the first token that differs. Its values are those of one call, which may run other operators than others
    """
    records = origin.pair.actual, origin.pair.reference
    if origin.pair.record.io != "input" or not any(fact.endswith(CHANGED) for fact in origin.evidence):
        return origin
    moved = [_movers_of(side, record, alignment, number) for side, record in enumerate(records)]
    movers = [_without_agreeing(of_side, origin) for of_side, _ in moved]
    first = [_first_unlike(movers[side], movers[1 - side]) for side in (0, 1)]
    picks = any(picks_elements(operator) for operator in (*movers[0], *movers[1]))
    if first == [None, None] or not (picks or _have_one_set(*records)):
        return origin
    here, there = (_listed(side) for side in movers)
    text = f"its elements are moved by {here} here, by {there} in the reference"
    a, b = (None if operator is None else operator.outputs[0] for operator in first)
    writers = [
        f"{writer.label} {_WROTE} {side}"
        for (_, writer), side in zip(moved, ("here", "in the reference"))
        if writer is not None
    ]
    movement = ", and ".join((*writers, text))
    evidence = tuple(
        movement if writers and fact.endswith(CHANGED) else fact.replace(CHANGED, text) for fact in origin.evidence
    )
    return replace(
        origin, kind="wiring", pair=replace(origin.pair, actual=a, reference=b, reason=text), evidence=evidence
    )


def reads_cache(origin: Origin) -> bool:
    """Return True for an origin of `with_movers` whose elements are read from a cache, which may be written wrongly."""
    return origin.kind == "wiring" and any(_WROTE in fact for fact in origin.evidence)


def _have_one_set(a: Optional[Record], b: Optional[Record]) -> bool:
    """Return True if two tensors have the same elements, in any order: else they are not only moved."""
    import numpy as np

    if a is None or b is None:
        return False
    try:
        x, y = (np.sort(record.numpy().astype(np.float64), axis=None) for record in (a, b))
    except (AscendDumpError, TypeError, ValueError):  # only statistics are recorded
        return are_rearranged(a, b)
    return x.shape == y.shape and bool(np.allclose(x, y, rtol=_NEAR, atol=_NEAR * float(np.abs(y).max(initial=0.0))))


def _first_unlike(movers: Sequence[Operator], others: Sequence[Operator]) -> Optional[Operator]:
    """Return the first operator that changes the order of elements, of a type that the other side lacks, or None."""
    types = _KEEPING.union(operator_class(operator.op_type) for operator in others)
    moving = (operator for operator in movers if picks_elements(operator) or not may_pick(operator))
    return next((operator for operator in moving if operator_class(operator.op_type) not in types), None)


def _listed(operators: Sequence[Operator]) -> str:
    return ", ".join(dict.fromkeys(operator.op_type for operator in operators)) or "no operator"


def _without_agreeing(movers: Sequence[Operator], origin: Origin) -> list[Operator]:
    """Return the operators behind the one that made the tensor, as the evidence says: its result agrees."""
    makers = [n for n, operator in enumerate(movers) if f"made by {operator.label}, and {CHANGED}" in origin.evidence]
    return [*movers[makers[-1] + 1 if makers else 0 :]]


def _movers_of(
    side: int, record: Optional[Record], alignment: TokenAlignment, number: Optional[int]
) -> tuple[list[Operator], Optional[Operator]]:
    """Return the operators that only move elements between the tensor that an input comes from and this input.

    The second value is the operator that wrote this tensor, if it is memory that the operator wrote to in place.
    """
    part = token_part(record)
    if part is None:
        return [], None
    call = None if number is None else part.call_of(number)
    operators = alignment.base_operators(side) if call is None else alignment.calls[side][call].operators
    read = {id(of_call) for of_call in part.records.values()}
    flow = DataFlow(operators)
    position = next((n for n, operator in enumerate(operators) if any(id(r) in read for r in operator.inputs)), OUTSIDE)
    sources = [source for source in flow.sources[position] if id(source.record) in read] if position != OUTSIDE else []
    movers: list[Operator] = []
    writer: Optional[Operator] = None
    while sources and (maker := sources[0].maker) is not None and maker.position != OUTSIDE:
        operator = operators[maker.position]
        if not moves_elements(operator.op_type) or not operator.outputs:
            writer = operator if writes(operator.op_type) else None
            break
        # The elements are those of the last input of their type: indices are no source.
        made_type = operator.outputs[0].dtype
        sources = [source for source in flow.sources[maker.position][::-1] if source.record.dtype == made_type]
        # What is appended to a cache keeps its order.
        if len({source.root for source in sources}) == 1:
            movers.append(operator)
    return movers[::-1], writer
