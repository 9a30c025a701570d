"""Follow an operand of an attention back to its computation, over operators that move it and a cache in between."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple, Optional

from ascend_dump.analysis.alignment.attention_parts import AttentionPart
from ascend_dump.analysis.numerics.float_types import float_kind
from ascend_dump.analysis.operators.memory_writes import elements_in_memory
from ascend_dump.analysis.operators.names import is_source, is_view, moves_elements
from ascend_dump.analysis.operators.operator import Operator, storage_of
from ascend_dump.analysis.operators.properties import COPIES, SHAPED, operator_class, writes
from ascend_dump.analysis.pairing.data_flow import OUTSIDE, DataFlow, InputSource, Made
from ascend_dump.reading import Record

if TYPE_CHECKING:
    import numpy as np

__all__ = [
    "OperandPath",
    "earlier_path",
    "line_of",
    "maker_of_added",
    "maker_of_mask",
    "overwrites",
    "parts_of_mask",
    "path_of",
    "scaling_of",
    "vectors_of",
]

_SCALING = frozenset({"mul", "div"})
#: Operators that write elements to memory as they are.
_WRITING = frozenset({"copy", "index_put", "_index_put_impl", "index_copy", "scatter", "scatter_update"})
#: Operators that replace some elements of numbers by a mask.
_MASKING = frozenset({"masked_fill", "where"})
#: Operators that turn one mask into another one, or into numbers.
_PASSED = COPIES | _SCALING | {"bitwise_not", "logical_not", "masked_fill", "rsub", "neg", "where", "repeat", "gather"}


class OperandPath(NamedTuple):
    """The operators between the computation of an operand and its reader, in execution order.

    moving   those that move or copy elements, views among them; casts and factors too
    writer   the last operator that wrote to the cache of the operand; None without a cache
    indices  the operator that computes the indices at which the writer writes; None if they are from outside
    outside  the tensor from outside of the call in which the path ends, such as keys of earlier calls; else None
    """

    moving: list[Operator]
    writer: Optional[Operator]
    indices: Optional[Operator]
    outside: Optional[Record] = None


def path_of(operators: Sequence[Operator], reader: Operator, record: Record) -> OperandPath:
    """Return the path of an input of an operator of a call. record: the input"""
    flow = DataFlow(operators)
    return _path_of(flow, _sources(flow, reader, record), record)


def earlier_path(calls: Sequence[Sequence[Operator]], record: Record) -> Optional[OperandPath]:
    """Return the path of a tensor from outside of a call that an earlier call made; None if its content is unknown.

    calls: the operators of each earlier call
    """
    for operators in reversed(calls):
        for position in range(len(operators) - 1, -1, -1):
            outputs = operators[position].outputs
            made = next((out for out in outputs if out.content and out.content == record.content), None)
            if made is not None:
                source = InputSource(made, Made(position, made.index), None, None)
                return _path_of(DataFlow(operators), [source], made)
    return None


def _path_of(flow: DataFlow, sources: list[InputSource], record: Record) -> OperandPath:
    """Return the path of a tensor. sources: its own"""
    operators = flow.operators
    moving: list[Operator] = []
    outside: Optional[Record] = None
    read: list[Record] = []
    while sources:
        position = _position(sources[0])
        if position == OUTSIDE:
            outside = sources[0].record
            break
        read.append(sources[0].record)
        if _is_write(operators[position]):
            position = _writer_of(operators, position, read)
            return OperandPath(moving[::-1], operators[position], _indices(flow, position))
        operator = operators[position]
        if not (moves_elements(operator.op_type) or operator_class(operator.op_type) in COPIES | _SCALING):
            break
        moving.append(operator)
        # Indices are no source of elements.
        of_type = [source for source in flow.sources[position] if source.record.dtype == record.dtype]
        sources = of_type or flow.sources[position][:1]
    return OperandPath(moving[::-1], None, None, outside)


def _is_write(operator: Operator) -> bool:
    return writes(operator.op_type) and operator_class(operator.op_type) in _WRITING


def _writer_of(operators: Sequence[Operator], last: int, read: Sequence[Record]) -> int:
    """Return the position of the operator that wrote elements that are read: not always the last one of the memory.

    Keys and values may be two parts of one cache.

    last: the position of the last operator that wrote to the memory
    read: the records on the way to it, from the reader on
    """
    memory = storage_of(operators[last].outputs[0])
    views = [view for view in read if memory is not None and (of_view := storage_of(view)) and of_view[0] == memory[0]]
    if memory is None or not views:
        return last
    begin, end = elements_in_memory(views[0])
    for position in range(last, -1, -1):
        operator = operators[position]
        written = storage_of(operator.outputs[0]) if operator.outputs and _is_write(operator) else None
        if written is not None and written[0] == memory[0]:
            first, behind = elements_in_memory(operator.outputs[0])
            if first < end and begin < behind:
                return position
    return last


def maker_of_mask(operators: Sequence[Operator], part: AttentionPart, masking: Operator) -> Optional[Operator]:
    """Return the operator that makes the mask of another operator; None if it is from outside.

    The mask is complete there: later operators only turn it into numbers, or into another shape.
    """
    flow = DataFlow(operators)
    sources = flow.sources[_index(operators, masking)]
    if masking is part.scores:
        # Queries, keys and values are read before the mask, or the other operands behind what is added to the products.
        waiting = [s for s in sources if (s.record.index >= 3 if part.is_fused else s.record.index == 0)]
    else:
        of_scores = _behind(flow, part.scores)
        waiting = [source for source in sources if _position(source) not in of_scores]
    maker: Optional[Operator] = None
    while len(of_mask := [position for source in waiting if (position := _maker_of(flow, source)) is not None]) == 1:
        maker = operators[of_mask[0]]
        name = operator_class(maker.op_type)
        if not (is_view(maker.op_type) or name in _PASSED):
            break
        waiting = flow.sources[of_mask[0]]
    return maker


def maker_of_added(operators: Sequence[Operator], part: AttentionPart, adding: Operator) -> Optional[Operator]:
    """Return the operator that makes the numbers which are added to scores, such as distances, before they are masked.

    adding: the operator that adds them
    """
    flow = DataFlow(operators)
    maker = maker_of_mask(operators, part, adding)
    while maker is not None and operator_class(maker.op_type) in _MASKING:
        sources = flow.sources[_index(operators, maker)]
        numbers = [source for source in sources if float_kind(source.record.dtype or "") is not None]
        positions = [position for source in numbers if (position := _maker_of(flow, source)) is not None]
        if len(positions) != 1:
            break
        maker = operators[positions[0]]
    return maker


def parts_of_mask(operators: Sequence[Operator], maker: Operator) -> list[Operator]:
    """Return the operators that make the masks which another one combines; none if it combines only one."""
    flow = DataFlow(operators)
    parts: list[Operator] = []
    for source in flow.sources[_index(operators, maker)]:
        position = _maker_of(flow, source)
        while position is not None and is_view(operators[position].op_type):
            position = _maker_of(flow, flow.sources[position][0])
        if position is not None and (operators[position].outputs[0].dtype or "") == "bool":
            parts.append(operators[position])
    return parts if len(parts) > 1 else []


def _maker_of(flow: DataFlow, source: InputSource) -> Optional[int]:
    """Return the position of the operator that made an input; None if it is from outside, or a tensor of one value."""
    position = _position(source)
    is_other = position == OUTSIDE or math.prod(source.record.shape or ()) == 1
    return None if is_other or is_source(flow.operators[position].op_type) else position


def scaling_of(operators: Sequence[Operator], part: AttentionPart) -> Optional[Operator]:
    """Return the operator that multiplies the queries or keys of a call with a factor, before their product."""
    if part.is_fused:
        return None
    for record in part.scores.inputs[-2:]:
        moving = path_of(operators, part.scores, record).moving
        scaling = [op for op in moving if operator_class(op.op_type) in _SCALING and _has_one(op)]
        if scaling:
            return scaling[-1]
    return None


def _has_one(operator: Operator) -> bool:
    """Return True for an operator with a single number besides its first operand, not with one for each element."""
    return all(math.prod(record.shape or ()) == 1 for record in operator.inputs[1:])


def vectors_of(record: Record, size: int) -> np.ndarray:
    """Return the vectors of a cache, [vectors, size], each with its elements sorted; none for another size of vectors.

    size: the number of elements of a vector
    """
    import numpy as np

    array = record.numpy().astype("float32")
    return np.sort(array.reshape(-1, size) if size and array.size % size == 0 else array[:0].reshape(0, size), axis=-1)


def overwrites(calls: Sequence[Sequence[Operator]], writer: Operator, needed: np.ndarray, near: float) -> bool:
    """Return True if a write to the cache replaces one of some vectors in any of these calls.

    calls   the operators of each call
    writer  an operator of one of them that writes to the cache
    needed  [vectors, elements], each with its elements sorted
    near    distance of equal elements, relative to the largest one
    """
    import numpy as np

    memory = storage_of(writer.outputs[0])
    for operator in (operator for operators in calls for operator in operators):
        if operator_class(operator.op_type) not in _WRITING or not len(needed) or not operator.inputs:
            continue
        of_output = storage_of(operator.outputs[0])
        if memory is None or of_output is None or of_output[0] != memory[0]:
            continue
        before, after = (vectors_of(record, needed.shape[1]) for record in (operator.inputs[0], operator.outputs[0]))
        if before.shape == after.shape:
            replaced = before[(before != after).any(axis=1)]
            distances = np.abs(needed[:, None] - replaced[None]).max(axis=-1)
            if (distances <= near * np.abs(needed).max()).any():
                return True
    return False


def line_of(operator: Operator) -> str:
    """Return the name of an operator with its file and line, such as "mul_0 (model.py:12)"."""
    return f"{operator.op_name} ({operator.source.rpartition('/')[2]})" if operator.source else operator.op_name


def _index(operators: Sequence[Operator], operator: Operator) -> int:
    return next(number for number, candidate in enumerate(operators) if candidate is operator)


def _sources(flow: DataFlow, reader: Operator, record: Record) -> list[InputSource]:
    return [source for source in flow.sources[_index(flow.operators, reader)] if source.record is record]


def _position(source: InputSource) -> int:
    """Return the position of the operator that made an input: of its view, or of a later write to its memory."""
    return max((made.position for made in (source.maker, source.root) if made is not None), default=OUTSIDE)


def _indices(flow: DataFlow, position: int) -> Optional[Operator]:
    """Return the operator of the call that computes the indices of a write to a cache, or None."""
    integers = [source for source in flow.sources[position][1:] if float_kind(source.record.dtype or "") is None]
    while integers:
        operator_position = _position(integers[-1])
        if operator_position == OUTSIDE:
            return None
        if not moves_elements(flow.operators[operator_position].op_type):
            return flow.operators[operator_position]
        integers = flow.sources[operator_position]
    return None


def _behind(flow: DataFlow, scores: Operator) -> set[int]:
    """Return the positions of a product and of the operators that compute from it, not only from its shape."""
    positions = {_index(flow.operators, scores)}
    waiting = [*positions]
    while waiting:
        for reader in flow.readers[waiting.pop()] - positions:
            if operator_class(flow.operators[reader].op_type) not in SHAPED:
                positions.add(reader)
                waiting.append(reader)
    return positions
