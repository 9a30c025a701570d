"""The functions of the fake `mindspore.ops`, and those that methods of tensors call.

Kernels of MindSpore have inputs that are constants: the two flags of MatMul, the data format of BiasAdd and BatchNorm,
an axis. The functions pass them as arrays, because a dump contains them as inputs too, mostly with shape ().
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
#: The constant with which kernels get the data format NCHW.
_NCHW = np.asarray(0, np.int64)
#: Operators whose two operands are converted to a common type.
_BINARY = frozenset(
    (
        *("Add", "Sub", "Mul", "Div", "Pow", "Maximum", "Minimum"),
        *("Equal", "NotEqual", "Greater", "GreaterEqual", "Less", "LessEqual"),
    )
)
#: Operators that have no kernel for integers on a CPU.
_FLOATS = frozenset(("Exp", "Log", "Tanh", "Sigmoid", "Erf", "GeLU", "Softmax", "LogSoftmax"))
#: Operators whose first two inputs must have the same type.
_EQUAL_TYPES = frozenset(("MatMul", "BatchMatMul", "Conv2D", "SoftmaxCrossEntropyWithLogits"))
#: Optimizer operator -> index of the gradient among its inputs. The first input is the variable.
_GRADIENTS = {"ApplyMomentum": 3, "SGD": 1, "Adam": 9}


def execute(op_type: str, *inputs: Value, **attrs: Any) -> tuple[Tensor, ...]:
    """Run an operator, record it on the tape if there is one, and return its outputs.

    inputs: tensors, arrays for constants, and None for an optional input that is not given.
    """
    if not isinstance(inputs[0], Tensor):
        raise TypeError(f"Failed calling {op_type} with {type(inputs[0])}: the valid calling is with a Tensor")
    process = current()
    process.initialize_device()
    before = [value.array if isinstance(value, Tensor) else value for value in inputs]
    _check(op_type, [array for array in before if array is not None])
    with np.errstate(all="ignore"):
        result = KERNELS[op_type](*(array for array in before if array is not None), **attrs)
    change = result if isinstance(result, Changed) else Changed(result if isinstance(result, tuple) else (result,), {})
    outputs = tuple(Tensor.from_numpy(np.asarray(value)) for value in change.outputs)
    for position, array in change.inputs.items():
        target = inputs[position]
        if isinstance(target, Tensor):
            target.array = array
    if process.tape is not None:
        node = process.tape.note(op_type, inputs, before, outputs, attrs)
        node.marked = process.marked > 0
    return outputs


def _check(op_type: str, arrays: Sequence[_Array]) -> None:
    """Raise the errors that MindSpore's kernels raise for inputs that numpy would accept."""
    array = arrays[0]
    if op_type in _FLOATS and array.dtype.kind in "iub":
        raise TypeError(f"Select CPU operator[{op_type}] fail! Unsupported data type {dtype_of(array)}!")
    if op_type in _EQUAL_TYPES and array.dtype != arrays[1].dtype:
        types = f"{dtype_of(array)} and {dtype_of(arrays[1])}"
        raise TypeError(f"For primitive[{op_type}], the input type must be same, but got {types}.")
    if op_type == "MatMul" and (array.ndim, arrays[1].ndim) != (2, 2):
        raise ValueError("MatMul inputs should have the same dimension size and equal to 2.")
    if op_type == "BiasAdd" and arrays[1].shape != array.shape[1:2]:
        raise ValueError(
            "For 'BiasAdd', bias[0] shape should be equal to input_x[1] shape when data_format is 0, "
            f"but got bias shape: {arrays[1].shape}, input_shape: {array.shape}."
        )
    if op_type in ("Assign", "AssignAdd") and array.shape != arrays[1].shape:
        raise ValueError(
            f"For '{op_type}', 'value' must have the same shape as 'variable'. "
            f"But got 'value' shape: {arrays[1].shape}, 'variable' shape: {array.shape}."
        )
    if op_type in ("Assign", "AssignAdd") and _promoted(array.dtype, arrays[1].dtype) != array.dtype:
        raise TypeError(
            "Data type conversion is not supported for a 'Parameter': "
            f"{dtype_of(arrays[1])} cannot be converted to {dtype_of(array)}."
        )
    gradient = _GRADIENTS.get(op_type)
    if gradient is not None and arrays[gradient].shape != array.shape:
        raise ValueError(
            f"For primitive[{op_type}], the gradient_shape must be equal to variable_shape which is {array.shape}, "
            f"but got {arrays[gradient].shape}."
        )


def call(op_type: str, *inputs: Any, **attrs: Any) -> Tensor:
    """Run an operator on tensors and numbers, and return its first output."""
    values = _same_type(inputs) if op_type in _BINARY else inputs
    return execute(op_type, *values, **attrs)[0]


def expanded(name: str) -> Any:
    """Return a context manager that sets the scope `Expand/_{name}`.

    MindSpore's compiler expands some functions into operators, and gives them this scope.
    """
    tape = current().tape
    return contextlib.nullcontext() if tape is None else tape.within(f"Expand/_{name}")


def _promoted(first: np.dtype[Any], second: np.dtype[Any]) -> np.dtype[Any]:
    """Return the type to which two tensors are converted. For a float and an integer it is the float's type.

    Raises TypeError for types that MindSpore does not convert.
    """
    if first == second:
        return first
    integer_type, float_type = sorted((first, second), key=lambda dtype: dtype.kind not in "iub")
    if integer_type.kind in "iub" and float_type.kind not in "iub":
        return float_type
    if BFLOAT16 in (first, second):
        return np.promote_types(np.float32, second if first == BFLOAT16 else first)
    if {first.kind, second.kind} == {"i", "u"} and (first if first.kind == "u" else second).itemsize > 1:
        raise TypeError(f"Type implicit conversion between {first} and {second} is not supported.")
    return np.promote_types(first, second)


def _tensor(value: Any) -> Tensor:
    return value if isinstance(value, Tensor) else Tensor(value)


def _same_type(values: Sequence[Any]) -> list[Tensor]:
    """Return operands, tensors or numbers, as tensors of their common type. Raises TypeError for other objects."""
    invalid = next((value for value in values if isinstance(value, (np.ndarray, str)) or value is None), _YES)
    if invalid is not _YES:
        raise TypeError(f"the operands must be <Number, Tensor>, but got {type(invalid)}")
    operands = [value for value in values if isinstance(value, Tensor)]
    if not operands:
        return [_tensor(value) for value in values]
    kind = functools.reduce(_promoted, (value.array.dtype for value in operands))
    numbers = [value for value in values if not isinstance(value, Tensor)]
    if kind.kind in "iub" and any(isinstance(value, (float, np.floating)) for value in numbers):
        kind = np.dtype(np.float32)
    elif kind.kind == "b" and any(not isinstance(value, (bool, np.bool_)) for value in numbers):
        kind = np.dtype(np.int64)
    converted = []
    for value in values:
        if not isinstance(value, Tensor):
            converted.append(Tensor(array_of(value).astype(kind)))
        elif value.array.dtype != kind:
            converted.append(cast(value, dtype_of(np.empty(0, kind))))
        else:
            converted.append(value)
    return converted


# Functions that run one operator on their arguments.
add = functools.partial(call, "Add")
sub = functools.partial(call, "Sub")
div = functools.partial(call, "Div")
power = functools.partial(call, "Pow")
exp = functools.partial(call, "Exp")
log = functools.partial(call, "Log")
sqrt = functools.partial(call, "Sqrt")
square = functools.partial(call, "Square")
neg = functools.partial(call, "Neg")
absolute = functools.partial(call, "Abs")
tanh = functools.partial(call, "Tanh")
sigmoid = functools.partial(call, "Sigmoid")
relu = functools.partial(call, "ReLU")
maximum = functools.partial(call, "Maximum")
minimum = functools.partial(call, "Minimum")
equal = functools.partial(call, "Equal")


def mul(x: Any, y: Any) -> Tensor:
    if isinstance(x, Tensor) and isinstance(y, Tensor):
        return call("Mul", x, y)
    with expanded("Muls"):
        return call("Mul", *((x, y) if isinstance(x, Tensor) else (y, x)))


def gelu(input: Any, approximate: str = "none") -> Tensor:
    if approximate == "tanh":
        return call("GeLU", input)
    if approximate != "none":
        raise ValueError(f"approximate={approximate!r}, expected 'none' or 'tanh'")
    x = _tensor(input)
    two, unit, half = (Tensor(np.asarray(number, x.array.dtype)) for number in (2, 1, 0.5))
    return call("Mul", call("Mul", x, call("Add", call("Erf", call("Div", x, call("Sqrt", two))), unit)), half)


def softmax(x: Any, axis: int = -1) -> Tensor:
    return execute("Softmax", _tensor(x), np.asarray([axis], np.int64))[0]


def log_softmax(x: Any, axis: int = -1) -> Tensor:
    return execute("LogSoftmax", _tensor(x), np.asarray(axis, np.int64))[0]


def matmul_kernel(
    x: Value, y: Value, transpose_x: bool = False, transpose_y: bool = False, *, kernel: str = "MatMul"
) -> Tensor:
    """Run the kernel MatMul or BatchMatMul. transpose_x, transpose_y: True to transpose this operand."""
    return execute(kernel, x, y, _YES if transpose_x else _NO, _YES if transpose_y else _NO)[0]


def matmul(x: Any, y: Any) -> Tensor:
    """`ops.matmul`, which MindSpore's compiler expands to MatMul or BatchMatMul."""
    first, second = _tensor(x), _tensor(y)
    with expanded("MatMulExt"):
        return matmul_kernel(first, second, kernel="MatMul" if first.ndim == second.ndim == 2 else "BatchMatMul")


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
    if len({_tensor(tensor).array.dtype for tensor in tensors}) > 1:
        raise RuntimeError("KernelMod Init Failed: Concat: the inputs must have one type")
    return execute("Concat", *(_tensor(tensor) for tensor in tensors), axis=axis)[0]


cat = concat


def _reduce(op_type: str, x: Any, axis: Any, keep_dims: bool) -> Tensor:
    value = _tensor(x)
    axes = (axis,) if isinstance(axis, int) else tuple(axis or range(value.ndim))
    axes_input = None if axis is None else np.asarray(axes, np.int64)
    constants = (axes_input, np.asarray(keep_dims), *((_NO,) if op_type == "ReduceSum" else ()))
    return execute(op_type, value, *constants, axis=axes, keep_dims=keep_dims)[0]


def total(x: Any, dim: Any = None, keepdim: bool = False) -> Tensor:
    with expanded("SumExt"):
        value = _tensor(x)
        # As in MindSpore, sums of integers are int64.
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
    """`ops.depend`: return `value`. In MindSpore it fixes an order of operators; here they run in program order."""
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
    values = np.arange(*arguments)
    return Tensor(values.astype(np.float32) if dtype is None and values.dtype == np.float64 else values, dtype)


def cross_entropy(input: Any, target: Any) -> Tensor:
    """`ops.cross_entropy` for class indices as target, with the reduction "mean"."""
    logits, labels = _tensor(input), _tensor(target)
    if logits.ndim != 2 or labels.array.dtype.kind == "f":
        raise NotSupported(
            "the fake MindSpore computes the cross entropy only of logits (N, C) and class indices",
            hint="reshape to (N, C); for probabilities use nn.SoftmaxCrossEntropyWithLogits(reduction='mean')",
        )
    if (labels.array == -100).any():
        raise NotSupported(
            "the fake MindSpore does not ignore labels of -100 (ignore_index)", hint="remove the rows with these labels"
        )
    return execute("SparseSoftmaxCrossEntropyWithLogits", logits, labels, is_grad=False, exact=True)[0]


def shape(x: Tensor) -> tuple[int, ...]:
    return x.shape


def size(x: Tensor) -> int:
    return x.size


OPERATORS.update(
    {
        function.__name__: function
        for function in (argmax, call, cast, getitem, matmul, mean, mul, reshape, total, transpose)
    }
)
