"""Name the positions of tokens, where one side counts some tokens of a request otherwise than the others.

Both sides may begin to count anywhere, as with padding on the left: rotary embeddings depend on distances only. But the
distance between two tokens of a request is the same on both sides.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Optional

from ascend_dump.analysis.alignment.model_calls import INTEGERS, ModelCall
from ascend_dump.analysis.alignment.token_parts import token_part
from ascend_dump.analysis.alignment.tokens import TokenAlignment
from ascend_dump.analysis.compare.by_tokens.results import TokenResults
from ascend_dump.analysis.explaining.results import Origin
from ascend_dump.analysis.numerics.float_types import float_kind
from ascend_dump.analysis.operators.names import is_view
from ascend_dump.analysis.operators.operator import Operator
from ascend_dump.analysis.operators.properties import operator_class
from ascend_dump.errors import AscendDumpError
from ascend_dump.reading import Record

if TYPE_CHECKING:
    import numpy as np

__all__ = ["with_wrong_positions"]

#: Operators that read positions as indices of a table, such as of angles, and those that make angles of them.
_LOOKUPS = frozenset({"index", "index_select", "gather", "embedding", "_unsafe_index"})
_CONVERTING = frozenset({"mul", "_to_copy", "outer", "einsum", "add", "div"})
#: Positions of a request are counted in at most this many ways: before a wrong token, and from there on.
_MOST_OFFSETS = 2
#: Results before a wrong position differ by less than this share of those from it on: by rounding.
_MUCH_LESS = 0.25


def with_wrong_positions(
    origins: Sequence[Origin], results: Optional[TokenResults], alignment: TokenAlignment
) -> list[Origin]:
    """Return the origins; the first one is replaced by the positions if results differ from a wrong position on."""
    if not origins or results is None or origins[0].kind == "parameter":
        return [*origins]
    try:
        positions = [_positions(calls, alignment.slots(side)) for side, calls in enumerate(alignment.calls)]
        wrong = _wrong_tokens(positions, alignment)
        if not wrong or not _differ_from(wrong[0], results):
            return [*origins]
    except AscendDumpError:  # a tensor that cannot be read
        return [*origins]
    first = wrong[0]
    index_of = alignment.tokens.index_of.tolist()
    begin = next(
        n
        for n, token in enumerate(index_of)
        if token[0] == index_of[first][0] and all(n in of_side for of_side in positions)
    )
    # The side with the wrong positions does not count on from the first token of the request.
    counted = [of_side[first] - of_side[begin] == index_of[first][1] - index_of[begin][1] for of_side in positions]
    if counted[0] == counted[1]:
        return [*origins]
    side = counted.index(False)
    record = _made(alignment.calls[side], alignment.slots(side), first)
    if record is None:
        return [*origins]
    text = (
        f"first {alignment.tokens.text(first)}; its position is {positions[0][first]} here, {positions[1][first]} in "
        f"the reference: {len(wrong)} of {len(positions[0])} tokens have such a position"
    )
    pair = replace(origins[0].pair, actual=None if side else record, reference=record if side else None, reason=text)
    evidence = (text, f"found where {origins[0].pair.record.label} differs: {origins[0].pair.reason}")
    return [Origin("input", pair, evidence, origins[0].explains), *origins[1:]]


def _differ_from(first: int, results: TokenResults) -> bool:
    """Return True if the results of the tokens before a token differ much less than those from it on."""
    import numpy as np

    part = token_part(results.pair[0])
    if part is None:
        return False
    a, b = (record.numpy().astype(np.float64).reshape(len(part.numbers), -1) for record in results.pair)
    with np.errstate(invalid="ignore"):  # infinite logits of both sides
        distances = np.nan_to_num(np.abs(a - b)).max(axis=1)
    before = distances[part.numbers < first].max(initial=0.0)
    return bool(before < _MUCH_LESS * distances[part.numbers >= first].max(initial=0.0))


def _positions(calls: Sequence[ModelCall], slots: Sequence[np.ndarray]) -> dict[int, int]:
    """Return the recorded position of each token. slots: for each call the number of the token in each slot"""
    import numpy as np

    positions: dict[int, int] = {}
    for call, numbers in zip(calls, slots):
        record = _record_of(call)
        if record is not None:
            rows = np.broadcast_to(call.in_rows(record.numpy()).reshape(-1, call.width), numbers.shape)
            positions.update(zip(numbers.reshape(-1).tolist(), rows.reshape(-1).tolist()))
    positions.pop(-1, None)  # padding
    return positions


def _record_of(call: ModelCall) -> Optional[Record]:
    """Return the first integers of all slots that are an index in a table of numbers, or become numbers themselves.

    Other integers count up as well, such as lengths of caches and slots.
    """
    counts = (call.width, call.ids.size)
    for operator in call.operators:
        function = operator_class(operator.op_type)
        reads_floats = any(float_kind(record.dtype or "") is not None for record in operator.inputs)
        makes_floats = bool(operator.outputs) and float_kind(operator.outputs[0].dtype or "") is not None
        if not makes_floats or not (function in _CONVERTING or (function in _LOOKUPS and reads_floats)):
            continue
        integers = (record for record in operator.inputs if record.dtype in INTEGERS)
        fitting = (record for record in integers if math.prod(record.shape or ()) in counts)
        others = (record for record in fitting if not _is_same(record, call.ids_record))
        positions = next((record for record in others if _counts_on(call, record)), None)
        if positions is not None:
            return positions
    return None


def _counts_on(call: ModelCall, record: Record) -> bool:
    """Return True if most numbers of slots are one more than those before them, unlike numbers of frequencies."""
    import numpy as np

    steps = np.diff(call.in_rows(record.numpy()).reshape(-1, call.width), axis=1)
    return not steps.size or 2 * int((steps == 1).sum()) > steps.size


def _wrong_tokens(positions: Sequence[Mapping[int, int]], alignment: TokenAlignment) -> list[int]:
    """Return the tokens that are farther from the first token of their request on one side than on the other one."""
    offsets: dict[int, dict[int, int]] = {}
    for number in sorted(positions[0].keys() & positions[1].keys()):
        request = int(alignment.tokens.index_of[number, 0])
        offsets.setdefault(request, {})[number] = positions[0][number] - positions[1][number]
    if any(len({*of_request.values()}) > _MOST_OFFSETS for of_request in offsets.values()):
        return []  # the integers are no positions
    firsts = {request: next(iter(of_request.values())) for request, of_request in offsets.items()}
    return sorted(
        number
        for request, of_request in offsets.items()
        for number, offset in of_request.items()
        if offset != firsts[request]
    )


def _made(calls: Sequence[ModelCall], slots: Sequence[np.ndarray], number: int) -> Optional[Record]:
    """Return the positions of a token as the operator that made them returns them, or as they are first read.

    A program may make them before it calls the model, where the call before this one ends.
    """
    before: Sequence[Operator] = ()
    for call, numbers in zip(calls, slots):
        record = _record_of(call) if (numbers == number).any() else None
        if record is not None:
            reader = next(n for n, operator in enumerate(call.operators) if record in operator.inputs)
            earlier = (op for op in reversed((*before, *call.operators[:reader])) if not is_view(op.op_type))
            return next((output for op in earlier for output in op.outputs if _is_same(output, record)), record)
        before = call.operators
    return None


def _is_same(output: Record, record: Record) -> bool:
    """Return True for the same elements in the same memory, in any shape."""
    if output.content is None or record.content is None or output.content[0] != record.content[0]:
        return False
    return output.attrs.get("storage") == record.attrs.get("storage")
