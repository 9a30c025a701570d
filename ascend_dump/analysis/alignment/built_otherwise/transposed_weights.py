"""Turn matrices that one program stores transposed to the order of axes that the other program has.

For example, a linear layer has its weight as [out, in] and reads it transposed, and the Conv1D of GPT-2 has it as
[in, out]. Then the gradient, the states of the optimizer and the updates are transposed too, and the product of the
gradient has its factors in the opposite order.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Optional

from ascend_dump.analysis.numerics.arrangement import are_rearranged
from ascend_dump.analysis.numerics.permutations import IDENTITY, find_layout
from ascend_dump.analysis.operators.names import is_view
from ascend_dump.analysis.operators.operator import Operator, is_read_for, module_of, parameter_name, storage_of
from ascend_dump.analysis.operators.properties import operator_class
from ascend_dump.errors import AscendDumpError, NotSupported
from ascend_dump.reading import Record

if TYPE_CHECKING:
    import numpy as np

    from ascend_dump.statistics import Precision, Statistics

__all__ = ["TransposedWeights"]

_Sides = tuple[list[Operator], list[Operator]]
_PRODUCT = "mm"
_PRODUCTS = frozenset({"mm", "addmm", "bmm", "baddbmm", "matmul", "linear"})
_TRANSPOSING = frozenset({"t", "transpose", "permute"})
#: A storage, with shape and stride: memory that is read in another order is another matrix.
_Matrix = tuple[int, tuple[int, ...], tuple[int, ...]]


class TransposedWeights:
    """The matrices of a model that one program stores transposed, known from the steps so far."""

    def __init__(self) -> None:
        self._names: tuple[set[str], set[str]] = (set(), set())

    def turned(self, actual: list[Operator], reference: list[Operator]) -> _Sides:
        """Return the operators of a step, so that both programs have these matrices in one order of axes.

        The side is changed that transposes a matrix before it computes with it.
        """
        first = _first_reads(actual), _first_reads(reference)
        known = self._names[0] | self._names[1]
        for name in (first[0].keys() & first[1].keys()) - known:
            (reader, a), (other_reader, b) = first[0][name], first[1][name]
            is_reference = _transposes(other_reader) and not _transposes(reader)
            # A square matrix that both sides use alike is wrong on one side.
            is_used_otherwise = a.shape != b.shape or _transposes(reader) != _transposes(other_reader)
            if is_used_otherwise and _are_transposed(a, b):
                self._names[int(is_reference)].add(name)
        sides = actual, reference
        turned = [_turned(side, names) if names else side for side, names in zip(sides, self._names)]
        return turned[0], turned[1]


def _first_reads(operators: Iterable[Operator]) -> dict[str, tuple[Operator, Record]]:
    """Return, by name, the first operator that reads a matrix of the model, and the record of the matrix."""
    reads: dict[str, tuple[Operator, Record]] = {}
    for operator in operators:
        for record in operator.inputs:
            name = record.parameter
            if name and len(record.shape or ()) == 2 and parameter_name(record) == name:
                reads.setdefault(module_of(name), (operator, record))
    return reads


def _transposes(operator: Operator) -> bool:
    return operator_class(operator.op_type) in _TRANSPOSING and is_view(operator.op_type)


def _are_transposed(a: Record, b: Record) -> bool:
    """Return True if one matrix is the other one transposed. The shapes of square matrices do not show it."""
    if a.shape is None or b.shape is None or a.shape != b.shape[::-1] or 1 in a.shape:
        return False
    if a.shape != b.shape:
        return True
    if a.content is not None and a.content == b.content:
        return False
    try:
        layout = find_layout(a.numpy(), b.numpy())
    except NotSupported:
        return are_rearranged(a, b)
    except AscendDumpError:
        return False
    return layout is not None and layout.name != IDENTITY


def _turned(operators: Sequence[Operator], names: set[str]) -> list[Operator]:
    """Return the operators with the named matrices, and what is computed from them by element, transposed."""
    family = _family(operators, names)
    products = {id(operator) for operator in operators if _is_product_in(operator, family)}
    operands = {_matrix(record) for operator in operators if id(operator) in products for record in operator.inputs}
    operands -= {
        _matrix(record) for operator in operators if id(operator) not in products for record in operator.inputs
    }
    gradients = {
        matrix[0]
        for operator in operators
        if id(operator) in products
        for record in operator.outputs
        if (matrix := _matrix(record)) is not None
    }
    result: list[Operator] = []
    for operator in operators:
        inputs, outputs = operator.inputs, operator.outputs
        if id(operator) in products:
            inputs = [_transposed(record, 1 - record.index) for record in inputs[::-1]]
            outputs = [_transposed(record) for record in outputs]
        elif _transposes(operator):
            # A product that is turned reads its factors as they were, and returns what it returned after a view.
            made = {_matrix(record) for record in outputs}
            if made <= operands or any(matrix is not None and matrix[0] in gradients for matrix in made):
                continue
            inputs = _members_transposed(inputs, family)
        elif operator_class(operator.op_type) not in _PRODUCTS:
            inputs, outputs = _members_transposed(inputs, family), _members_transposed(outputs, family)
        result.append(replace(operator, position=len(result), inputs=inputs, outputs=outputs))
    return result


def _family(operators: Sequence[Operator], names: set[str]) -> set[Optional[_Matrix]]:
    """Return the named matrices, their gradients and states, and matrices that elementwise operators join with them."""
    family: set[Optional[_Matrix]] = set()
    groups: list[set[_Matrix]] = []
    for operator in operators:
        for record in operator.records:
            if module_of(parameter_name(record) or "") in names:
                family.add(_matrix(record))
        if not _transposes(operator) and operator_class(operator.op_type) not in _PRODUCTS:
            for output in operator.outputs:
                joined = [record for record in operator.inputs if is_read_for(operator, record.index, output.index)]
                matrices = {_matrix(record) for record in (output, *joined) if record.shape == output.shape}
                groups.append({matrix for matrix in matrices if matrix is not None})
    family.discard(None)
    size = 0
    while size < len(family):
        size = len(family)
        for group in groups:
            if not group.isdisjoint(family):
                family |= group
    return family


def _is_product_in(operator: Operator, family: set[Optional[_Matrix]]) -> bool:
    is_product = operator_class(operator.op_type) == _PRODUCT and len(operator.inputs) == 2
    return is_product and bool(operator.outputs) and all(_matrix(record) in family for record in operator.outputs)


def _matrix(record: Record) -> Optional[_Matrix]:
    storage, shape, stride = storage_of(record), record.shape or (), record.attrs.get("stride")
    return None if storage is None or len(shape) != 2 or not stride else (storage[0], shape, tuple(stride))


def _members_transposed(records: Iterable[Record], family: set[Optional[_Matrix]]) -> list[Record]:
    return [_transposed(record) if _matrix(record) in family else record for record in records]


def _transposed(record: Record, index: Optional[int] = None) -> Record:
    return record.as_transposed(_Transposed(record), record.index if index is None else index)


class _Transposed:
    """Reads a matrix, and returns it transposed."""

    def __init__(self, record: Record) -> None:
        self._record = record

    def tensor(self, record: Record, format: Optional[str]) -> np.ndarray:
        array: np.ndarray = self._record.numpy(format=format).T
        return array

    def statistics(self, record: Record) -> Optional[Statistics]:
        return self._record.recorded_statistics()

    def precision(self, record: Record) -> Precision:
        return self._record.precision
