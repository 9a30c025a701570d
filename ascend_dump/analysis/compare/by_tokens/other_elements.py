"""Name the operator that reads other elements than the reference: another part of a tensor, or another token.

Programs divide a tensor and pick tokens by other operators, so these are not compared. But if the elements that one
side reads are those that the other side has elsewhere, nothing was computed wrongly: the wrong ones were picked.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Optional

from ascend_dump.analysis.alignment.token_parts import TokenPart, token_part
from ascend_dump.analysis.alignment.tokens import TokenAlignment
from ascend_dump.analysis.compare.by_tokens.origins import differing_tokens
from ascend_dump.analysis.explaining.results import Origin, Pair
from ascend_dump.analysis.operators.names import is_view, moves_elements
from ascend_dump.analysis.operators.operator import Operator
from ascend_dump.analysis.pairing.data_flow import OUTSIDE, DataFlow
from ascend_dump.errors import AscendDumpError

__all__ = ["with_other_elements"]

#: Kinds of origins whose operators may be right, because they may have read the wrong elements.
_OPEN = ("structure", "unknown", "input")
#: Elements are the same up to this relative distance.
_NEAR = 1e-3
#: Fewer elements of a token agree by chance.
_LEAST_ELEMENTS = 8
#: Minimum number of rows that other tokens have, and maximum number of rows that are looked for.
_LEAST_ROWS, _MOST_ROWS = 4, 1024


def with_other_elements(origins: Sequence[Origin], pairs: Sequence[Pair], alignment: TokenAlignment) -> list[Origin]:
    """Return the origins; the first one is replaced if the first tensor that differs has elements of another place.

    pairs: those of all compared tensors, in execution order
    """
    differing = [pair for pair in pairs if pair.verdict == "different" and token_part(pair.reference) is not None]
    if not origins or not differing or origins[0].kind not in _OPEN:
        return [*origins]
    of_part = _with_other_part(origins[0], differing[0], alignment) or _with_other_order(
        origins[0], differing[0], alignment
    )
    named = of_part or _with_other_token(origins[0], differing, alignment)
    return [*origins] if named is None else [named, *origins[1:]]


def _with_other_part(origin: Origin, pair: Pair, alignment: TokenAlignment) -> Optional[Origin]:
    """Return the origin at a reader of the wrong part of a tensor, such as the other half of a wide product."""
    if pair.record.io != "input":
        return None
    reader = alignment.reader_of_other_part((pair.actual, pair.reference), _NEAR)
    if reader is None:
        return None
    text = f"it reads another part of a tensor than the reference: the part that {reader.op_name} reads here"
    return replace(origin, kind="wiring", pair=replace(pair, reason=text), evidence=(text, *origin.evidence))


def _with_other_order(origin: Origin, pair: Pair, alignment: TokenAlignment) -> Optional[Origin]:
    """Return the origin at the operator behind which tokens have the rows of other ones, such as sorted by experts."""
    operator = _mover_before(alignment.base_operators(0), pair) if _has_rows_in_other_order(pair) else None
    if operator is None:
        return None
    text = "it has the rows of the reference in another order: tokens read the results of other tokens"
    at_operator = replace(pair, actual=operator.outputs[0], reference=None, reason=text)
    found = f"found where {pair.record.label} differs: {pair.reason}"
    return replace(origin, kind="wiring", pair=at_operator, evidence=(text, found))


def _has_rows_in_other_order(pair: Pair) -> bool:
    """Return True if many rows of a tensor are rows of the reference, but of other tokens."""
    import numpy as np

    if pair.actual is None or pair.reference is None or pair.record.io != "input":
        return False
    try:
        x, y = (record.numpy().astype(np.float64) for record in (pair.actual, pair.reference))
    except (AscendDumpError, TypeError, ValueError):
        return False
    if x.shape != y.shape or x.ndim < 2 or x.shape[-1] < _LEAST_ELEMENTS or not np.isfinite([x, y]).all():
        return False
    x, y = (array.reshape(-1, array.shape[-1])[:_MOST_ROWS] for array in (x, y))
    near = _NEAR * max(float(np.abs(y).max(initial=0.0)), 1e-30)
    apart = np.flatnonzero(np.abs(x - y).max(axis=1) > near)
    found = sum(bool((np.abs(y - x[number]).max(axis=1) <= near).any()) for number in apart.tolist())
    # Others may be rows of padding, which is not compared.
    return found >= max(_LEAST_ROWS, len(x) // 4)


def _mover_before(operators: Sequence[Operator], pair: Pair) -> Optional[Operator]:
    """Return the last operator of actual that moves elements, and is no view, before an input."""
    flow = DataFlow(operators)
    name = pair.record.op_name.partition("[")[0]
    reader = next((operator for operator in operators if operator.op_name == name), None)
    sources = [] if reader is None else flow.sources[reader.position][pair.record.index : pair.record.index + 1]
    while sources:
        made = sources[0].maker or sources[0].root
        if made is None or made.position == OUTSIDE or not moves_elements(operators[made.position].op_type):
            return None
        if not is_view(operators[made.position].op_type):
            return operators[made.position]
        sources = flow.sources[made.position][:1]
    return None


def _with_other_token(origin: Origin, differing: Sequence[Pair], alignment: TokenAlignment) -> Optional[Origin]:
    """Return the origin at an operator of actual that picks the wrong token, such as for the logits.

    All tensors that differ have to be of the tokens that were picked: then the model is right up to this operator.
    """
    pair = next(filter(_is_picked, differing), None)
    part, of_reference = (None, None) if pair is None else (token_part(pair.actual), token_part(pair.reference))
    if pair is None or part is None or of_reference is None:
        return None
    numbers_of_pairs = [
        None if of_pair is None else of_pair.numbers.tolist() for of_pair in map(_actual_part, differing)
    ]
    if any(numbers != part.numbers.tolist() for numbers in numbers_of_pairs):
        return None
    numbers = differing_tokens(pair)
    picked = _token_with_values_of(part, pair, of_reference, numbers[0]) if numbers else None
    operator = None if picked is None else _picking_operator(alignment.base_operators(0), pair)
    if picked is None or operator is None:
        return None
    text = f"it picks the values of {alignment.tokens.text(picked)} instead of {alignment.tokens.text(numbers[0])}"
    at_operator = replace(pair, actual=operator.outputs[0], reference=None, reason=text)
    return replace(origin, kind="wiring", pair=at_operator, evidence=(text, *origin.evidence))


def _actual_part(pair: Pair) -> Optional[TokenPart]:
    return token_part(pair.actual)


def _is_picked(pair: Pair) -> bool:
    """Return True for a tensor with enough elements of the last token of each request."""
    part = _actual_part(pair)
    return part is not None and part.is_of_last and math.prod((pair.record.shape or ())[1:]) >= _LEAST_ELEMENTS


def _token_with_values_of(part: TokenPart, pair: Pair, of_reference: TokenPart, number: int) -> Optional[int]:
    """Return the number of another token that has, in the reference, the values of a token of actual; None if none."""
    import numpy as np

    assert pair.actual is not None, "it has a part"
    try:
        values = pair.actual.numpy().reshape(len(part.numbers), -1)[int(np.flatnonzero(part.numbers == number)[0])]
        candidates, is_recorded = of_reference.values_of_all()
    except (AscendDumpError, ValueError):
        return None
    candidates = candidates.reshape(len(candidates), -1)
    if candidates.shape[1] != values.size:
        return None
    distances = np.abs(candidates - values).max(axis=1)
    distances[~is_recorded] = np.inf
    nearest = int(distances.argmin())
    return nearest if nearest != number and distances[nearest] <= _NEAR * np.abs(values).max() else None


def _picking_operator(operators: Sequence[Operator], pair: Pair) -> Optional[Operator]:
    """Return the last operator before a tensor that returns a part of the elements of another one; None without one."""
    flow = DataFlow(operators)
    name = pair.record.op_name.partition("[")[0]
    waiting = [operator.position for operator in operators if operator.op_name == name]
    visited = set(waiting)
    while waiting:
        position = waiting.pop(0)
        operator = flow.operators[position]
        sizes = [math.prod(record.shape or ()) for record in (*operator.inputs[:1], *operator.outputs[:1])]
        if moves_elements(operator.op_type) and len(sizes) == 2 and sizes[1] < sizes[0]:
            return operator
        for source in flow.sources[position]:
            maker = source.maker or source.root
            if maker is not None and maker.position not in (OUTSIDE, *visited):
                visited.add(maker.position)
                waiting.append(maker.position)
    return None
