"""The operators of the fake MindSpore as functions: `mindspore.ops`, and what tensors' methods call.

Each function gives the kernel the inputs that MindSpore's kernels have, constants included: MatMul's two flags,
BiasAdd's and BatchNorm's data format, an axis. They show in a dump as inputs without a dimension.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Optional, Union

import numpy as np

from ascend_dump import NotSupported
from ascend_dump.fakes.mindspore._kernels import KERNELS, Changed
from ascend_dump.fakes.mindspore._process import current
from ascend_dump.fakes.mindspore._types import (
    BFLOAT16,
    DTYPES,
    OPERATORS,
    MindSporeDType,
    Parameter,
    Tensor,
    array_of,
    dtype_of,
)

if TYPE_CHECKING:
    from ascend_dump.fakes.mindspore._graph import Value

    _Array = np.ndarray[Any, Any]

__all__ = ["call", "execute", "expanded"]

_YES, _NO = np.asarray(True), np.asarray(False)
#: The data format NCHW as kernels take it.
_NCHW = np.asarray(0, np.int64)
#: Two operands of these get one type.
_BINARY = frozenset(
    (
        *("Add", "Sub", "Mul", "Div", "Pow", "Maximum", "Minimum"),
        *("Equal", "NotEqual", "Greater", "GreaterEqual", "Less", "LessEqual"),
    )
)
#: No kernel on a CPU for integers.
_FLOATS = frozenset(("Exp", "Log", "Tanh", "Sigmoid", "Erf", "GeLU", "Softmax", "LogSoftmax"))
_EQUAL_TYPES = frozenset(("MatMul", "BatchMatMul", "Conv2D", "SoftmaxCrossEntropyWithLogits"))
#: Optimizer operator -> which input the gradient is; the first one is the variable.
_GRADIENTS = {"ApplyMomentum": 3, "SGD": 1, "Adam": 9}


def execute(op_type: str, *inputs: Value, **attrs: Any) -> tuple[Tensor, ...]:
    """Run one operator. inputs: tensors, and arrays for constants."""
    if not isinstance(inputs[0], Tensor):
        raise TypeError(f"Failed calling {op_type} with {type(inputs[0])}: the valid calling is with a Tensor")
    process = current()
    process.initialize_device()
    before = [one.array if isinstance(one, Tensor) else one for one in inputs]
    _check(op_type, [array for array in before if array is not None])
    with np.errstate(all="ignore"):
        found = KERNELS[op_type](*(array for array in before if array is not None), **attrs)
    whole = found if isinstance(found, Changed) else Changed(found if isinstance(found, tuple) else (found,), {})
    outputs = tuple(Tensor.from_numpy(np.asarray(one)) for one in whole.outputs)
    for position, array in whole.inputs.items():
        target = inputs[position]
        if isinstance(target, Tensor):
            target.array = array
    if process.tape is not None:
        node = process.tape.note(op_type, inputs, before, outputs, attrs)
        node.marked = process.marked > 0
    return outputs


def _check(op_type: str, arrays: Sequence[_Array]) -> None:
    """Refuse what numpy would compute and MindSpore's kernels refuse."""
    first = arrays[0]
    if op_type in _FLOATS and first.dtype.kind in "iub":
        raise TypeError(f"Select CPU operator[{op_type}] fail! Unsupported data type {dtype_of(first)}!")
    if op_type in _EQUAL_TYPES and first.dtype != arrays[1].dtype:
        types = f"{dtype_of(first)} and {dtype_of(arrays[1])}"
        raise TypeError(f"For primitive[{op_type}], the input type must be same, but got {types}.")
    if op_type == "MatMul" and (first.ndim, arrays[1].ndim) != (2, 2):
        raise ValueError("MatMul inputs should have the same dimension size and equal to 2.")
    if op_type == "BiasAdd" and arrays[1].shape != first.shape[1:2]:
        raise ValueError(
            "For 'BiasAdd', bias[0] shape should be equal to input_x[1] shape when data_format is 0, "
            f"but got bias shape: {arrays[1].shape}, input_shape: {first.shape}."
        )
    if op_type in ("Assign", "AssignAdd") and first.shape != arrays[1].shape:
        raise ValueError(
            f"For '{op_type}', 'value' must have the same shape as 'variable'. "
            f"But got 'value' shape: {arrays[1].shape}, 'variable' shape: {first.shape}."
        )
    if op_type in ("Assign", "AssignAdd") and _promoted(first.dtype, arrays[1].dtype) != first.dtype:
        raise TypeError(
            "Data type conversion is not supported for a 'Parameter': "
            f"{dtype_of(arrays[1])} cannot be converted to {dtype_of(first)}."
        )
    gradient = _GRADIENTS.get(op_type)
    if gradient is not None and arrays[gradient].shape != first.shape:
        raise ValueError(
            f"For primitive[{op_type}], the gradient_shape must be equal to variable_shape which is {first.shape}, "
            f"but got {arrays[gradient].shape}."
        )


def call(op_type: str, *inputs: Any, **attrs: Any) -> Tensor:
    """Run one operator on tensors and Python numbers, and return its first output."""
    values = _same_type(inputs) if op_type in _BINARY else inputs
    return execute(op_type, *values, **attrs)[0]


def expanded(name: str) -> Any:
    """The scope of operators that MindSpore's compiler puts in the place of another one."""
    tape = current().tape
    return contextlib.nullcontext() if tape is None else tape.within(f"Expand/_{name}")


def _promoted(one: np.dtype[Any], other: np.dtype[Any]) -> np.dtype[Any]:
    """The type that two tensors meet in: of a float and an integer, the float."""
    if one == other:
        return one
    whole, broken = sorted((one, other), key=lambda kind: kind.kind not in "iub")
    if whole.kind in "iub" and broken.kind not in "iub":
        return broken
    if BFLOAT16 in (one, other):
        return np.promote_types(np.float32, other if one == BFLOAT16 else one)
    if {one.kind, other.kind} == {"i", "u"} and (one if one.kind == "u" else other).itemsize > 1:
        raise TypeError(f"Type implicit conversion between {one} and {other} is not supported.")
    return np.promote_types(one, other)


def _tensor(value: Any) -> Tensor:
    return value if isinstance(value, Tensor) else Tensor(value)


def _same_type(values: Sequence[Any]) -> list[Tensor]:
    strange = next((one for one in values if isinstance(one, (np.ndarray, str)) or one is None), _YES)
    if strange is not _YES:
        raise TypeError(f"the operands must be <Number, Tensor>, but got {type(strange)}")
    tensors = [one for one in values if isinstance(one, Tensor)]
    if not tensors:
        return [_tensor(one) for one in values]
    kind = functools.reduce(_promoted, (one.array.dtype for one in tensors))
    numbers = [one for one in values if not isinstance(one, Tensor)]
    if kind.kind in "iub" and any(isinstance(one, (float, np.floating)) for one in numbers):
        kind = np.dtype(np.float32)
    elif kind.kind == "b" and any(not isinstance(one, (bool, np.bool_)) for one in numbers):
        kind = np.dtype(np.int64)
    made = []
    for one in values:
        if not isinstance(one, Tensor):
            made.append(Tensor(array_of(one).astype(kind)))
        elif one.array.dtype != kind:
            made.append(cast(one, dtype_of(np.empty(0, kind))))
        else:
            made.append(one)
    return made


def add(x: Any, y: Any) -> Tensor:
    return call("Add", x, y)


def sub(x: Any, y: Any) -> Tensor:
    return call("Sub", x, y)


def mul(x: Any, y: Any) -> Tensor:
    if isinstance(x, Tensor) and isinstance(y, Tensor):
        return call("Mul", x, y)
    with expanded("Muls"):
        return call("Mul", *((x, y) if isinstance(x, Tensor) else (y, x)))


def div(x: Any, y: Any) -> Tensor:
    return call("Div", x, y)


def power(x: Any, y: Any) -> Tensor:
    return call("Pow", x, y)


def exp(x: Any) -> Tensor:
    return call("Exp", x)


def log(x: Any) -> Tensor:
    return call("Log", x)


def sqrt(x: Any) -> Tensor:
    return call("Sqrt", x)


def square(x: Any) -> Tensor:
    return call("Square", x)


def neg(x: Any) -> Tensor:
    return call("Neg", x)


def absolute(x: Any) -> Tensor:
    return call("Abs", x)


def tanh(x: Any) -> Tensor:
    return call("Tanh", x)


def sigmoid(x: Any) -> Tensor:
    return call("Sigmoid", x)


def relu(x: Any) -> Tensor:
    return call("ReLU", x)


def gelu(input: Any, approximate: str = "none") -> Tensor:
    if approximate == "tanh":
        return call("GeLU", input)
    if approximate != "none":
        raise ValueError(f"approximate={approximate!r}, expected 'none' or 'tanh'")
    x = _tensor(input)
    two, one, half = (Tensor(np.asarray(number, x.array.dtype)) for number in (2, 1, 0.5))
    return call("Mul", call("Mul", x, call("Add", call("Erf", call("Div", x, call("Sqrt", two))), one)), half)


def maximum(x: Any, y: Any) -> Tensor:
    return call("Maximum", x, y)


def minimum(x: Any, y: Any) -> Tensor:
    return call("Minimum", x, y)


def equal(x: Any, y: Any) -> Tensor:
    return call("Equal", x, y)


def softmax(x: Any, axis: int = -1) -> Tensor:
    return execute("Softmax", _tensor(x), np.asarray([axis], np.int64))[0]


def log_softmax(x: Any, axis: int = -1) -> Tensor:
    return execute("LogSoftmax", _tensor(x), np.asarray(axis, np.int64))[0]


def matmul_kernel(
    x: Value, y: Value, transpose_x: bool = False, transpose_y: bool = False, *, kernel: str = "MatMul"
) -> Tensor:
    """The kernel MatMul or BatchMatMul, with its two flags."""
    return execute(kernel, x, y, _YES if transpose_x else _NO, _YES if transpose_y else _NO)[0]


def matmul(x: Any, y: Any) -> Tensor:
    """`ops.matmul`, which the compiler expands into the kernel."""
    left, right = _tensor(x), _tensor(y)
    with expanded("MatMulExt"):
        return matmul_kernel(left, right, kernel="MatMul" if left.ndim == right.ndim == 2 else "BatchMatMul")


def bias_add(x: Any, bias: Any) -> Tensor:
    return execute("BiasAdd", _tensor(x), _tensor(bias), _NCHW)[0]


def reshape(x: Any, shape: Sequence[int]) -> Tensor:
    value = _tensor(x)
    return execute("Reshape", value, shape=tuple(np.empty(value.shape, np.bool_).reshape(tuple(shape)).shape))[0]


def flatten(x: Any, order: str = "C", *, start_dim: int = 1, end_dim: int = -1) -> Tensor:
    if order == "C" and _tensor(x).ndim == 1:
        return _tensor(x)
    if order != "C" or start_dim != 1 or end_dim != -1:
        raise NotSupported(
            "the fake MindSpore flattens everything but the first dimension, in C order", hint="use ops.reshape"
        )
    return execute("Flatten", _tensor(x))[0]


def transpose(x: Any, input_perm: Sequence[int]) -> Tensor:
    value = _tensor(x)
    return execute(
        "Transpose", value, perm=tuple(axis % value.ndim for axis in input_perm or reversed(range(value.ndim)))
    )[0]


def cast(x: Any, dtype: Any) -> Tensor:
    kind = dtype if isinstance(dtype, MindSporeDType) else Tensor(np.empty(0), dtype).dtype
    return execute("Cast", _tensor(x), dtype=kind.numpy)[0]


def getitem(x: Tensor, key: Any) -> Tensor:
    plain = key.asnumpy() if isinstance(key, Tensor) else key
    return execute("StridedSlice", x, key=plain)[0]


def concat(tensors: Sequence[Any], axis: int = 0) -> Tensor:
    if len({_tensor(one).array.dtype for one in tensors}) > 1:
        raise RuntimeError("KernelMod Init Failed: Concat: the inputs must have one type")
    return execute("Concat", *(_tensor(one) for one in tensors), axis=axis)[0]


cat = concat


def _reduce(op_type: str, x: Any, axis: Any, keep_dims: bool) -> Tensor:
    value = _tensor(x)
    axes = (axis,) if isinstance(axis, int) else tuple(axis or range(value.ndim))
    given = None if axis is None else np.asarray(axes, np.int64)
    constants = (given, np.asarray(keep_dims), *((_NO,) if op_type == "ReduceSum" else ()))
    return execute(op_type, value, *constants, axis=axes, keep_dims=keep_dims)[0]


def total(x: Any, dim: Any = None, keepdim: bool = False) -> Tensor:
    with expanded("SumExt"):
        value = _tensor(x)
        # Integers are summed as int64.
        return _reduce("ReduceSum", cast(value, DTYPES["int64"]) if _is_short(value) else value, dim, keepdim)


def _is_short(value: Tensor) -> bool:
    return value.array.dtype.kind in "iub" and value.array.dtype != np.int64


def reduce_sum(x: Any, axis: Any = None, keep_dims: bool = False) -> Tensor:
    return _reduce("ReduceSum", x, axis, keep_dims)


def mean(x: Any, axis: Any = None, keep_dims: bool = False) -> Tensor:
    return _reduce("ReduceMean", x, axis, keep_dims)


def amax(x: Any, axis: Any = None, keepdims: bool = False) -> Tensor:
    return _reduce("ReduceMax", x, axis, keepdims)


def amin(x: Any, axis: Any = None, keepdims: bool = False) -> Tensor:
    return _reduce("ReduceMin", x, axis, keepdims)


def argmax(x: Any, dim: Optional[int] = None, keepdim: bool = False) -> Tensor:
    if keepdim:
        raise NotSupported("the fake MindSpore has no keepdim for argmax", hint="reshape its result")
    return execute("ArgMaxExt", _tensor(x), axis=dim)[0]


def assign(variable: Parameter, value: Any) -> Tensor:
    return execute("Assign", variable, _tensor(value))[0]


def assign_add(variable: Parameter, value: Any) -> Tensor:
    return execute("AssignAdd", variable, _tensor(value))[0]


def depend(value: Any, expr: Any) -> Any:
    """`ops.depend`: an order of operators, which here is that of the program."""
    return value


def stop_gradient(value: Tensor) -> Tensor:
    return Tensor(value.array)


def zeros(size: Union[int, Sequence[int]], dtype: Any = None) -> Tensor:
    return Tensor(np.zeros(size, np.float32), dtype or DTYPES["float32"])


def ones(shape: Union[int, Sequence[int]], dtype: Any = None) -> Tensor:
    return Tensor(np.ones(shape, np.float32), dtype or DTYPES["float32"])


def zeros_like(input: Any) -> Tensor:
    return Tensor(np.zeros_like(array_of(input)))


def ones_like(input: Any) -> Tensor:
    return Tensor(np.ones_like(array_of(input)))


def arange(*arguments: Any, dtype: Any = None) -> Tensor:
    found = np.arange(*arguments)
    return Tensor(found.astype(np.float32) if dtype is None and found.dtype == np.float64 else found, dtype)


def cross_entropy(input: Any, target: Any) -> Tensor:
    """`ops.cross_entropy` of class indices with the reduction mean."""
    logits, labels = _tensor(input), _tensor(target)
    if logits.ndim != 2 or labels.array.dtype.kind == "f":
        raise NotSupported(
            "the fake MindSpore has the cross entropy of logits (N, C) and class indices only",
            hint="reshape to (N, C); for probabilities use nn.SoftmaxCrossEntropyWithLogits(reduction='mean')",
        )
    if (labels.array == -100).any():
        raise NotSupported("the fake MindSpore ignores no labels (ignore_index)", hint="leave those rows out")
    return execute("SparseSoftmaxCrossEntropyWithLogits", logits, labels, is_grad=False, exact=True)[0]


def shape(x: Tensor) -> tuple[int, ...]:
    return x.shape


def size(x: Tensor) -> int:
    return x.size


OPERATORS.update(
    {one.__name__: one for one in (argmax, call, cast, getitem, matmul, mean, mul, reshape, total, transpose)}
)
