"""Find the slot of each row of a tensor, if the program picked the rows by indices.

A mixture of experts picks for each expert the rows of the tokens that a router sent to it. Their
number and order are different in each call. The recorded indices tell it, and operators that keep the rows pass it on.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import TYPE_CHECKING, Optional

from ascend_dump.analysis.alignment.model_calls import INTEGERS, ModelCall
from ascend_dump.analysis.numerics.float_types import float_kind
from ascend_dump.analysis.operators.operator import Operator, storage_of
from ascend_dump.analysis.operators.properties import operator_class, writes
from ascend_dump.errors import AscendDumpError
from ascend_dump.reading import Record

if TYPE_CHECKING:
    import numpy as np

__all__ = ["slots_of_rows"]

_PICKING = frozenset({"index", "index_select"})
_SPLITTING = frozenset({"split", "split_with_sizes", "chunk", "unsafe_split", "unsafe_split_with_sizes"})
#: Operators that put rows elsewhere, or add them to other rows.
_PLACING = frozenset({"index_put", "index_add", "index_copy", "scatter", "scatter_add", "sort", "argsort", "topk"})


def slots_of_rows(call: ModelCall) -> dict[int, np.ndarray]:
    """Return by `id` of a record: the number of the slot of each of its rows, counted over all rows of the batch.

    Records without rows that were picked are left out.
    """
    slots: dict[int, np.ndarray] = {}
    #: By storage and content of a tensor with picked rows: their slots.
    by_content: dict[Hashable, np.ndarray] = {}
    computed: set[int] = set()
    for operator in call.operators:
        of_inputs = {record.index: by_content[key] for record in operator.inputs if (key := _key(record)) in by_content}
        for record in operator.inputs:
            if record.index in of_inputs and _rows(record) == len(of_inputs[record.index]):
                slots[id(record)] = of_inputs[record.index]
        for record, rows in zip(operator.outputs, _of_outputs(call, operator, of_inputs, computed)):
            key = _key(record)
            if rows is not None and key is not None and len(rows) == _rows(record):
                slots[id(record)] = by_content[key] = rows
        if not writes(operator.op_type):
            computed.update(storage[0] for record in operator.outputs if (storage := storage_of(record)) is not None)
    return slots


def _of_outputs(
    call: ModelCall, operator: Operator, of_inputs: dict[int, np.ndarray], computed: set[int]
) -> Sequence[Optional[np.ndarray]]:
    """Return the slots of the rows of each output; None for an output without picked rows."""
    import numpy as np

    name = operator_class(operator.op_type)
    if name in _PICKING:
        return [_picked(call, operator, of_inputs, computed)]
    if not of_inputs or name in _PLACING:
        return []
    first = of_inputs[min(of_inputs)]
    if name in _SPLITTING:
        ends = np.cumsum([_rows(record) for record in operator.outputs]).tolist()
        # Parts along another axis have all rows.
        is_of_rows = bool(ends) and ends[-1] == len(first)
        return [
            first[end - _rows(output) : end] if is_of_rows else first for end, output in zip(ends, operator.outputs)
        ]
    if name == "cat" and len(of_inputs) == len(operator.inputs):
        joined = np.concatenate([of_inputs[record.index] for record in operator.inputs])
        return [joined if _rows(record) == len(joined) else first for record in operator.outputs]
    is_one = all(np.array_equal(rows, first) for rows in of_inputs.values())
    return [first if is_one else None for _ in operator.outputs]


def _picked(
    call: ModelCall, operator: Operator, of_inputs: dict[int, np.ndarray], computed: set[int]
) -> Optional[np.ndarray]:
    """Return the slots of the rows that an operator picks from a tensor with a row of each slot, or known rows.

    None for known rows in the order of the slots again, with one row of each slot.
    """
    import numpy as np

    if len(operator.inputs) not in (2, 3) or not operator.outputs:
        return None
    table, ids, *second_ids = operator.inputs
    shape, count = table.shape or (), ids.shape or ()
    row_shape = shape[2:] if second_ids else shape[1:]
    if len(count) != 1 or ids.dtype not in INTEGERS or any(record.shape != count for record in second_ids):
        return None
    if (
        operator.outputs[0].shape not in ((*count, *row_shape), (*count, 1, *row_shape))
        or float_kind(table.dtype or "") is None
    ):
        return None
    rows = of_inputs.get(table.index)
    are_known = rows is not None
    storage = storage_of(table)
    if rows is None:
        # A table that the call did not make, such as one of positions or a cache, has no row for each slot.
        if len(shape) != 2 or shape[0] != call.ids.size or storage is None or storage[0] not in computed:
            return None
        rows = np.arange(call.ids.size)
    try:
        numbers = ids.numpy().astype(np.int64)
    except AscendDumpError:
        return None
    if not numbers.size or numbers.min() < 0 or numbers.max() >= len(rows):
        return None
    picked: np.ndarray = rows[numbers]
    return None if are_known and np.array_equal(picked, np.arange(call.ids.size)) else picked


def _rows(record: Record) -> int:
    return record.shape[0] if record.shape else 0


def _key(record: Record) -> Optional[Hashable]:
    storage = storage_of(record)
    return None if storage is None or record.content is None else (storage[0], record.content)
