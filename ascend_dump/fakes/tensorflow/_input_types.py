"""Check the types of the inputs of an operation when it is added to a graph of the fake TensorFlow."""

from __future__ import annotations

from collections.abc import Sequence

from ascend_dump.fakes.tensorflow._graph import Tensor

__all__ = ["check_types"]

_ARITHMETIC = frozenset(("Add", "AddV2", "Sub", "Mul", "RealDiv", "Pow", "Maximum", "Minimum", "FloorMod"))
_PRODUCTS = frozenset(("MatMul", "BatchMatMulV2", "BiasAdd"))
#: Operations that accept only floating-point numbers.
_FLOATS = frozenset(("Sqrt", "Exp", "Log", "Tanh", "Sigmoid", "Softmax", "IsFinite", "SoftmaxCrossEntropyWithLogits"))
#: Operations that accept numbers, but no booleans.
_NUMBERS = frozenset(
    (
        *(*_ARITHMETIC, *_PRODUCTS, "Greater", "Less", "Neg", "Abs", "Square", "Sign", "Relu"),
        *("Mean", "Sum", "Max", "Min", "Prod"),
    )
)
_BOOLS = frozenset(("LogicalAnd", "LogicalNot"))
#: Operations whose inputs must have equal types.
_SAME = frozenset((*_ARITHMETIC, *_PRODUCTS, "Equal", "Greater", "Less", "SoftmaxCrossEntropyWithLogits"))


def check_types(op_type: str, inputs: Sequence[Tensor]) -> None:
    """Raise TypeError if an operation does not accept the types of its inputs, as TensorFlow does."""
    dtypes = [tensor.dtype.base_dtype for tensor in inputs]
    if op_type in _SAME or op_type == "ConcatV2":
        checked = dtypes[:-1] if op_type == "ConcatV2" else dtypes
        if len(set(checked)) > 1:
            raise TypeError(
                f"Inputs of {op_type} have types {[dtype.name for dtype in checked]} that do not all match."
            )
    if not dtypes:
        return
    first = dtypes[0]
    is_refused = (
        (op_type in _BOOLS and any(dtype.name != "bool" for dtype in dtypes))
        or (op_type in _FLOATS and not first.is_floating)
        or (op_type in _NUMBERS and first.name == "bool")
    )
    if is_refused:
        raise TypeError(f"Value passed to {op_type} has DataType {first.name} not in list of allowed values.")
