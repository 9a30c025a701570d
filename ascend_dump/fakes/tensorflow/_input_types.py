"""The types that operations of the stand-in for TensorFlow accept and mix when the graph is built."""

from __future__ import annotations

from collections.abc import Sequence

from ascend_dump.fakes.tensorflow._graph import Tensor

__all__ = ["check_types"]

_ARITHMETIC = frozenset(("Add", "AddV2", "Sub", "Mul", "RealDiv", "Pow", "Maximum", "Minimum", "FloorMod"))
_PRODUCTS = frozenset(("MatMul", "BatchMatMulV2", "BiasAdd"))
#: Operations on floating point numbers only.
_FLOATS = frozenset(("Sqrt", "Exp", "Log", "Tanh", "Sigmoid", "Softmax", "IsFinite", "SoftmaxCrossEntropyWithLogits"))
#: Operations on numbers, but not on truth values.
_NUMBERS = frozenset(
    (
        *(*_ARITHMETIC, *_PRODUCTS, "Greater", "Less", "Neg", "Abs", "Square", "Sign", "Relu"),
        *("Mean", "Sum", "Max", "Min", "Prod"),
    )
)
_BOOLS = frozenset(("LogicalAnd", "LogicalNot"))
#: Operations with inputs of one type.
_SAME = frozenset((*_ARITHMETIC, *_PRODUCTS, "Equal", "Greater", "Less", "SoftmaxCrossEntropyWithLogits"))


def check_types(op_type: str, inputs: Sequence[Tensor]) -> None:
    """Check the inputs' types. Raises TypeError, as TensorFlow does when the graph is built."""
    kinds = [tensor.dtype.base_dtype for tensor in inputs]
    if op_type in _SAME or op_type == "ConcatV2":
        alike = kinds[:-1] if op_type == "ConcatV2" else kinds
        if len(set(alike)) > 1:
            raise TypeError(f"Inputs of {op_type} have types {[kind.name for kind in alike]} that do not all match.")
    if not kinds:
        return
    first = kinds[0]
    is_refused = (
        (op_type in _BOOLS and any(kind.name != "bool" for kind in kinds))
        or (op_type in _FLOATS and not first.is_floating)
        or (op_type in _NUMBERS and first.name == "bool")
    )
    if is_refused:
        raise TypeError(f"Value passed to {op_type} has DataType {first.name} not in list of allowed values.")
