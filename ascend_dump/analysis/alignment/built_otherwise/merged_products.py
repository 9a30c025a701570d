"""Merge a product and the addition of its bias into one operator, where the other program has one operator for both.

PyTorch computes a linear layer as `addmm`, or as `mm` and `add` if its input is not contiguous. So the two calls of a
layer, or two programs, may differ although they compute the same.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple, Optional

from ascend_dump.analysis.alignment.model_calls import ModelCall
from ascend_dump.analysis.operators.names import is_view
from ascend_dump.analysis.operators.operator import Operator, storage_of
from ascend_dump.analysis.operators.properties import operator_class
from ascend_dump.reading import Record

__all__ = ["merge_products"]


class _BiasedProduct(NamedTuple):
    """A product, and the addition of its bias. product, addition: indices of the operators in their call"""

    product: int
    addition: int
    bias: Record


def merge_products(sides: Sequence[Sequence[ModelCall]]) -> None:
    """Merge products and their biases in the calls of both sides, unless both sides have two operators everywhere.

    A program may fuse several layers, so that the biases of one side are parts of those of the other side.
    """
    calls = [call for side in sides for call in side]
    if any(map(_adds_its_bias, (operator for call in calls for operator in call.operators))):
        for call in calls:
            call.operators[:] = _merged(call.operators)


def _adds_its_bias(operator: Operator) -> bool:
    """Return True for a product that adds its bias itself."""
    is_product = operator_class(operator.op_type) == "addmm" and bool(operator.inputs)
    return is_product and _vector_content(operator.inputs[0]) is not None


def _merged(operators: Sequence[Operator]) -> Iterator[Operator]:
    """Yield the operators; a product and its bias are one operator."""
    biased = {merged.addition: merged for merged in _biased_products(operators)}
    products = {merged.product for merged in biased.values()}
    storages = {storage[0] for index in products if (storage := storage_of(operators[index].outputs[0])) is not None}
    for index, operator in enumerate(operators):
        merged = biased.get(index)
        if merged is not None:
            yield _one_operator(operators[merged.product], operator, merged.bias)
        elif index not in products and not _reads_only(operator, storages):
            yield operator


def _biased_products(operators: Sequence[Operator]) -> Iterator[_BiasedProduct]:
    """Yield the products whose result is read by nothing but the next addition of a vector in the same module."""
    product_indices: dict[int, int] = {}  # by storage of the result
    for index, operator in enumerate(operators):
        name = operator_class(operator.op_type)
        if name == "mm" and len(operator.inputs) == 2 and operator.outputs:
            storage = storage_of(operator.outputs[0])
            if storage is not None:
                product_indices[storage[0]] = index
            continue
        if name != "add" or len(operator.inputs) != 2 or not operator.outputs:
            continue
        for summand, bias in (operator.inputs, operator.inputs[::-1]):
            storage = storage_of(summand)
            product = None if storage is None else product_indices.pop(storage[0], None)
            if product is None or operators[product].module != operator.module:
                continue
            width = (operators[product].outputs[0].shape or (0,))[-1]
            if _vector_content(bias) is not None and bias.shape == (width,) and (summand.shape or (0,))[-1] == width:
                yield _BiasedProduct(product, index, bias)
                break


def _reads_only(operator: Operator, storages: set[int]) -> bool:
    """Return True for a view of memory that only merged products write."""
    read = [storage_of(record) for record in operator.inputs]
    return is_view(operator.op_type) and all(storage is not None and storage[0] in storages for storage in read)


def _vector_content(record: Record) -> Optional[object]:
    return record.content if len(record.shape or ()) == 1 else None


def _one_operator(product: Operator, addition: Operator, bias: Record) -> Operator:
    """Return the product with its bias, with the inputs and the output that `addmm` has."""
    op_type = product.op_type.replace("mm", "addmm")
    inputs = [record.as_argument(op_type, index, b"") for index, record in enumerate((bias, *product.inputs))]
    outputs = [record.as_argument(op_type, 0, b"") for record in addition.outputs]
    return replace(product, position=addition.position, op_type=op_type, inputs=inputs, outputs=outputs)
