"""Find the same operator in all calls of a model, and the operators and tensors that are not compared by tokens."""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Optional

from ascend_dump.analysis.alignment.model_calls import ModelCall
from ascend_dump.analysis.alignment.token_ways import TokenSide
from ascend_dump.analysis.numerics.float_types import float_kind
from ascend_dump.analysis.operators.names import is_source, moves_elements, operation
from ascend_dump.analysis.operators.operator import Operator, storage_of
from ascend_dump.analysis.operators.properties import PRODUCTS, SHAPED, operator_class
from ascend_dump.analysis.pairing.matches import Match
from ascend_dump.analysis.pairing.same_framework import align
from ascend_dump.errors import AscendDumpError
from ascend_dump.reading import Record

if TYPE_CHECKING:
    import numpy as np

__all__ = [
    "CHOOSING",
    "base_of",
    "changes_elements",
    "chosen_behind",
    "computes_floats",
    "computes_weights",
    "groups_of",
    "is_append",
    "is_made_number",
    "is_place_of_extreme",
    "last_results",
    "makes_other_kind",
    "orders_before",
    "orders_in",
    "records_of_calls",
    "replaced",
    "rounding_unit",
    "without_choices",
]

_MASK_MAKERS = frozenset({"where", "masked_fill", "scalar_tensor", "zeros", "full", "fill", "zero"})
#: Operators that choose tokens of logits, or begin a loss.
CHOOSING = frozenset(
    {
        *("_softmax", "softmax", "_log_softmax", "log_softmax", "logsumexp", "gather", "nll_loss", "nll_loss_forward"),
        *("cross_entropy_loss", "argmax", "topk", "sort", "multinomial"),
    }
)
_SELECTING = frozenset({"index", "index_select", "gather", "index_put", "index_add", "take"})


def rounding_unit(call: ModelCall) -> float:
    """Return the rounding unit of the type of a call's embeddings; 0 if it is unknown."""
    outputs = (operator.outputs[0] for operator in call.operators if call.ids_record in operator.inputs)
    kinds = (float_kind(record.dtype or "") for record in outputs)
    return next((kind.unit for kind in kinds if kind is not None), 0.0)


def base_of(calls: Sequence[ModelCall]) -> int:
    """Return the index of the base call: the call with most slots, of several the first."""
    return max(range(len(calls)), key=lambda index: (calls[index].ids.size, -index))


def groups_of(calls: Sequence[ModelCall], base: int) -> tuple[list[Operator], dict[int, dict[int, Operator]]]:
    """Return the operators of the base call, and for the position of each: the same operator in all calls.

    The operators of a position are given by index of the call. Calls without this operator are left out.
    """
    operators = _numbered(calls[base].operators)
    groups = {operator.position: {base: operator} for operator in operators}
    for index, call in enumerate(calls):
        if index != base:
            of_call = _numbered(call.operators)
            for match in align(of_call, operators, _moved_products(of_call, operators), parts=True):
                groups[match.reference.position][index] = match.actual
    return operators, groups


def _moved_products(operators: Sequence[Operator], base: Sequence[Operator]) -> dict[str, str]:
    """Return the names of products of modules whose weight an operator of another name has in the base call.

    A mixture of experts runs only the experts of its tokens, so that an expert has another number in each call.
    """
    names, of_base = (_by_weight(side) for side in (operators, base))
    return {name: of_base[key] for key, name in names.items() if of_base.get(key, name) != name}


def _by_weight(operators: Sequence[Operator]) -> dict[Hashable, str]:
    """Return the name of each product of a module by its module and weight; without those that have one of these."""
    found: dict[Hashable, list[str]] = {}
    made: set[object] = set()
    for operator in operators:
        made.update(record.attrs.get("storage") for record in operator.outputs if not moves_elements(operator.op_type))
        if operator.module and operator_class(operator.op_type) in PRODUCTS:
            for record in operator.inputs:
                is_weight = len(record.shape or ()) == 2 and record.attrs.get("storage") not in made
                if is_weight and record.content is not None:
                    found.setdefault((operator.module, record.index, record.content), []).append(operator.op_name)
    return {key: names[0] for key, names in found.items() if len(names) == 1}


def _numbered(operators: Sequence[Operator]) -> list[Operator]:
    return [replace(operator, position=position) for position, operator in enumerate(operators)]


def records_of_calls(operators: Mapping[int, Operator], io: str, like: Record) -> dict[int, Record]:
    """Return the record with the io and index of `like` in each call, by index of the call.

    io: which records of the operators to search, "inputs" or "outputs"
    """
    found = {}
    for index, operator in operators.items():
        records = operator.inputs if io == "inputs" else operator.outputs
        for record in records:
            if (record.io, record.index) == (like.io, like.index) and record.error is None:
                found[index] = record
    return found


def replaced(operators: Sequence[Operator], parts: Mapping[int, Optional[Record]]) -> dict[int, Operator]:
    """Return the operators with the records that are compared, by their old positions.

    Operators that have no record left are left out.

    parts: by `id` of a record, the record that replaces it; None if the tensor is not compared
    """
    result: dict[int, Operator] = {}
    for operator in operators:
        inputs, outputs = (
            [part for record in records if (part := parts.get(id(record), record)) is not None]
            for records in (operator.inputs, operator.outputs)
        )
        if moves_elements(operator.op_type):
            # Sizes and ends of slices follow from the numbers of tokens.
            inputs, outputs = (
                [record.as_argument(record.op_type, record.index, b"") for record in records]
                for records in (inputs, outputs)
            )
        if inputs or outputs or operator.broken:
            result[operator.position] = replace(operator, position=len(result), inputs=inputs, outputs=outputs)
    return result


def is_append(side: TokenSide, operators: Mapping[int, Operator]) -> bool:
    """Return True for an operator that appends the keys or values of new tokens to a cache. operators: by call"""
    has_cache = False
    for index, operator in operators.items():
        if (
            operator_class(operator.op_type) not in ("cat", "Concat", "ConcatD", "aclnnCat")
            or len(operator.inputs) != 2
        ):
            return False
        old, new = (record.shape or () for record in operator.inputs)
        out = (operator.outputs[0].shape or ()) if operator.outputs else ()
        if math.prod(old) == 0:
            has_cache = True
            continue
        axes = [axis for axis, (x, y) in enumerate(zip(new, out)) if x != y]
        width = side.calls[index].width
        if len(new) != len(out) or len(axes) != 1 or new[axes[0]] != width or out[axes[0]] <= width:
            return False
        has_cache |= side.keys[index].shape[1] > width
    return has_cache


def computes_floats(operator: Operator) -> bool:
    """Return True for an operator that computes floating-point values from others: no move, no source, no mask."""
    if moves_elements(operator.op_type) or is_source(operator.op_type):
        return False
    if operator_class(operator.op_type) in _MASK_MAKERS | SHAPED | {"set"}:
        return False
    outputs = [record for record in operator.outputs if _is_float(record)]
    return bool(outputs) and any(map(_is_float, operator.inputs))


def computes_weights(operator: Operator) -> bool:
    """Return True for an attention, or a softmax: it computes weights from scores."""
    name = operator_class(operator.op_type)
    return name in ("_softmax", "softmax") or "attention" in name.lower()


def changes_elements(operator: Operator) -> bool:
    """Return True for an operator that computes each element from the element at this index of its only input."""
    shapes = [record.shape for record in (*operator.inputs, *operator.outputs)]
    is_unary = len(operator.inputs) == len(operator.outputs) == 1 and shapes[0] == shapes[1]
    return is_unary and operator.inputs[0].content != operator.outputs[0].content


def orders_in(call: ModelCall) -> list[tuple[int, np.ndarray]]:
    """Return (position, order) of the operators of a call that sort elements. An order is a permutation of indices.

    A sort of an order returns the inverse of this order. Elements in the old order are read with it.
    """
    import numpy as np

    orders: list[tuple[int, np.ndarray]] = []
    made: set[Optional[Hashable]] = set()
    for position, operator in enumerate(call.operators):
        if operator_class(operator.op_type) not in ("sort", "argsort"):
            continue
        if made & {record.content for record in operator.inputs} - {None}:
            continue
        for record in operator.outputs:
            shape = record.shape or ()
            if record.dtype in ("int32", "int64") and len(shape) == 1:
                try:
                    order = record.numpy().astype(np.int64)
                except AscendDumpError:
                    continue
                if np.array_equal(np.sort(order), np.arange(len(order))):
                    orders.append((position, order))
                    made.add(record.content)
    return orders


def orders_before(
    orders: Sequence[Sequence[tuple[int, np.ndarray]]], operators: Mapping[int, Operator], record: Record
) -> dict[int, np.ndarray]:
    """Return for each call the last order that was made before this operator; for outputs, its own order counts too."""
    found = {}
    for index, operator in operators.items():
        before = [order for position, order in orders[index] if position < operator.position + (record.io == "output")]
        if before:
            found[index] = before[-1]
    return found


def _is_float(record: Record) -> bool:
    return float_kind(record.dtype or "") is not None


def _selects(operator: Operator) -> bool:
    """Return True for an operator that selects elements by integers or masks."""
    return operator_class(operator.op_type) in (*_MASK_MAKERS, *_SELECTING)


def chosen_behind(operators: Sequence[Operator], paired: set[int]) -> set[int]:
    """Return the `id` of each operator from the first one that chooses tokens after the last product with a partner.

    Other operators may have partners behind it: one side counts the tokens of a loss, the other those of a request.

    paired: the `id` of each operator that has a partner
    """
    behind, first = _behind_products(operators, paired)
    chosen = {id(operator) for operator in behind[first:]}
    # What only these operators read belongs to the choice as well, such as a division by the temperature.
    for n in range(first - 1, -1, -1):
        readers = _readers(behind[n], behind[n + 1 :])
        if readers and all(id(reader) in chosen for reader in readers):
            chosen.add(id(behind[n]))
    return chosen


def _behind_products(operators: Sequence[Operator], paired: set[int]) -> tuple[Sequence[Operator], int]:
    """Return the operators behind the last product with a partner, and the index of the first that chooses tokens."""
    partners = [(n, operator) for n, operator in enumerate(operators) if id(operator) in paired]
    products = [n for n, operator in partners if operator_class(operator.op_type) in PRODUCTS]
    last = max(products or [n for n, operator in partners if computes_floats(operator)], default=len(operators))
    behind = operators[last + 1 :]
    return behind, next((n for n, op in enumerate(behind) if operator_class(op.op_type) in CHOOSING), len(behind))


def without_choices(sides: Sequence[Sequence[Operator]], matches: Sequence[Match]) -> list[Match]:
    """Return the matches without those of an operator of a loss, or of a choice of tokens, and one of the model."""
    paired = {id(operator) for match in matches for operator in (match.actual, match.reference)}
    chosen: set[int] = set()
    for side in sides:
        behind, first = _behind_products(side, paired)
        chosen.update(map(id, behind[first:]))
    return [
        match
        for match in matches
        if match.how == "mapping" or (id(match.actual) in chosen) == (id(match.reference) in chosen)
    ]


def last_results(actual: Sequence[Operator], reference: Sequence[Operator], matches: Sequence[Match]) -> list[Match]:
    """Return the matches of the last results of both sides, if another operator makes them: a product or a quotient.

    Behind the last operator with a partner, each side has to have exactly one operator that computes floats, apart from
    operators that choose tokens. Or both sides have the same operators, such as those of a cap.
    """
    paired = {id(operator) for match in matches for operator in (match.actual, match.reference)}
    last = []
    count = 1
    for side in (actual, reference):
        computing = [operator for operator in side if computes_floats(operator)]
        begin = 1 + max((n for n, operator in enumerate(computing) if id(operator) in paired), default=-1)
        if not 0 < begin < len(computing):
            return []
        chosen = chosen_behind(side, paired)
        last.append(computing[begin:])
        count = max(count, 1 + sum(id(operator) not in chosen for operator in computing[begin + 1 :]))
    types = [[operation(operator.function) for operator in side[:count]] for side in last]
    if count > 1 and types[0] != types[1]:
        return []
    return [Match(a, b, "order", 0.5) for a, b in zip(last[0][:count], last[1][:count])]


def _readers(operator: Operator, later: Sequence[Operator]) -> list[Operator]:
    """Return the later operators that read memory to which an operator writes."""
    storages = {storage[0] for record in operator.outputs if (storage := storage_of(record)) is not None}
    return [
        op
        for op in later
        if any((read := storage_of(record)) is not None and read[0] in storages for record in op.inputs)
    ]


def makes_other_kind(match: Match) -> bool:
    """Return True if one operator of a match makes a mask and the other makes numbers, so that the match is wrong.

    Or one makes complex numbers, as some rotary embeddings do, and the other real ones.
    """
    return any(
        a is not None and b is not None and _kind(a.dtype or "") != _kind(b.dtype or "") for a, b in match.outputs[:1]
    )


def _kind(dtype: str) -> str:
    return "bool" if dtype == "bool" else "complex" if dtype.startswith("complex") else "real"


def is_place_of_extreme(operator: Operator, record: Record) -> bool:
    """Return True for the output of max or min that is an index. An index of keys depends on padding and caches."""
    return operator_class(operator.op_type) in ("max", "min") and record.io == "output" and not _is_float(record)


def is_made_number(match: Match, pair: tuple[Record, Record]) -> bool:
    """Return True for integers that differ, if the operator computes no floating-point values with these integers.

    Such integers number slots or elements, which may differ between programs. So do positions that a program counts as
    floating-point numbers.
    """
    a, b = pair
    is_count = operator_class(match.reference.op_type) == "arange"
    if (_is_float(a) and not is_count) or (
        any(map(_is_float, match.reference.inputs)) and not _selects(match.reference)
    ):
        return False
    outputs = match.reference.outputs
    makes_floats = any(map(_is_float, outputs)) and not _selects(match.reference)
    if a.io == "input" and makes_floats:
        return False
    try:
        return a.numpy().tobytes() != b.numpy().tobytes()
    except AscendDumpError:
        return False
