"""Name the operators that made a tensor, where the walk of the tokens has left them out.

Masks, casts and operators that move elements are not compared by tokens. The walk does not have them, so their
results look as if they were from outside.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Optional

from ascend_dump.analysis.alignment.token_parts import token_part
from ascend_dump.analysis.alignment.tokens import TokenAlignment
from ascend_dump.analysis.explaining.results import Origin
from ascend_dump.analysis.explaining.wiring import FROM_OUTSIDE, NOT_WRITTEN
from ascend_dump.analysis.operators.names import is_view
from ascend_dump.analysis.operators.operator import Operator
from ascend_dump.analysis.pairing.data_flow import OUTSIDE, DataFlow
from ascend_dump.reading import Record

__all__ = ["with_makers"]


def with_makers(origin: Origin, alignment: TokenAlignment) -> Origin:
    """Return the origin with the recorded operators that made tensors which its evidence calls from outside."""
    facts = f"reads {FROM_OUTSIDE} here", f", {FROM_OUTSIDE} in the reference"
    is_open = origin.kind in ("input", "wiring", "unknown")
    if not is_open or not any(part in fact for fact in origin.evidence for part in (NOT_WRITTEN, *facts)):
        return origin
    makers = [
        _maker_of(side, record, alignment) for side, record in enumerate((origin.pair.actual, origin.pair.reference))
    ]
    if makers == [None, None]:
        return origin
    evidence = []
    for fact in origin.evidence:
        if fact == NOT_WRITTEN:
            names = [name and f"{name}{where}" for name, where in zip(makers, (" here", " in the reference"))]
            are_both = None not in makers
            fact = f"made by {', by '.join(filter(None, names))}, which {'are' if are_both else 'is'} not compared"
        for maker, text in zip(makers, facts):
            fact = fact if maker is None else fact.replace(text, text.replace(FROM_OUTSIDE, maker))
        evidence.append(fact)
    return replace(origin, evidence=tuple(evidence))


def _maker_of(side: int, record: Optional[Record], alignment: TokenAlignment) -> Optional[str]:
    """Return the name of the operator of the same call that made an input; None if none did."""
    part = token_part(record)
    for call, read in () if part is None else part.records.items():
        flow = DataFlow(alignment.calls[side][call].operators)
        sources = [source for of_operator in flow.sources for source in of_operator if source.record is read]
        operator = None
        while sources and (made := sources[0].maker or sources[0].root) and made.position != OUTSIDE:
            operator, sources = flow.operators[made.position], flow.sources[made.position]
            if not is_view(operator.op_type) or _changes_type(operator):
                break
        if operator is not None:
            return operator.label
    return None


def _changes_type(operator: Operator) -> bool:
    return bool(operator.inputs and operator.outputs) and operator.inputs[0].dtype != operator.outputs[0].dtype
