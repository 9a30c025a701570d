"""The kernels of the fake TensorFlow, written in numpy. Types, inputs and attributes are those of TensorFlow.

Operations with a state (variables, iterators, random numbers) and with functions are in `_session`. Static shapes are
inferred by running a kernel on zeros.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Callable, Optional

import numpy as np

from ascend_dump import NotSupported
from ascend_dump.fakes.tensorflow._graph import DType, Tensor, TensorShape, as_dtype
from ascend_dump.fakes.tensorflow._input_types import check_types

if TYPE_CHECKING:
    _Array = np.ndarray[Any, Any]

__all__ = ["KERNELS", "compute", "infer"]

_Kernel = Callable[[Sequence[Any], Mapping[str, Any]], Any]

#: Type of an operation -> its kernel: a function of inputs and attributes that returns an array or a tuple of arrays.
KERNELS: dict[str, _Kernel] = {}

#: Sizes that are tried for an unknown size. If a size of the result differs between them, it is unknown too.
_PROBES = (2, 3)
#: Maximum number of combinations of sizes that are tried for the unknown dimensions of all inputs.
_MOST_GUESSES = 2000


def compute(op_type: str, inputs: Sequence[Any], attrs: Mapping[str, Any]) -> tuple[_Array, ...]:
    """Return the outputs of an operation. Raises NotSupported for an unknown type, ValueError for wrong inputs."""
    kernel = KERNELS.get(op_type)
    if kernel is None:
        raise NotSupported(
            f"the stand-in for tensorflow has no operation {op_type}",
            hint=f"it has {', '.join(sorted(KERNELS))}; install a real tensorflow for others",
        )
    with np.errstate(all="ignore"):
        result = kernel(inputs, attrs)
    return tuple(map(np.asarray, result if isinstance(result, tuple) else (result,)))


def infer(op_type: str, inputs: Sequence[Tensor], attrs: Mapping[str, Any]) -> list[tuple[DType, TensorShape]]:
    """Return types and static shapes of the outputs, found by running the kernel on zeros.

    Raises TypeError for types that the operation refuses, ValueError for inputs that do not fit together, and
    NotSupported if there is no kernel, or if an input has no static rank.
    """
    check_types(op_type, inputs)
    if op_type == "Reshape":
        return [(inputs[0].dtype.base_dtype, _reshaped(inputs[0].shape, inputs[1]))]
    try:
        runs = [compute(op_type, [_probe(tensor, size, op_type) for tensor in inputs], attrs) for size in _PROBES]
    except (ValueError, IndexError) as error:
        runs = list(_guess(op_type, inputs, attrs))
        if not runs:
            raise ValueError(str(error)) from None
    specs = []
    for arrays in zip(*runs):
        same = len({array.ndim for array in arrays}) == 1
        dims = [a[0] if len(set(a)) == 1 else None for a in zip(*(array.shape for array in arrays))] if same else None
        specs.append((as_dtype(arrays[0].dtype), TensorShape(dims)))
    return specs


def _guess(op_type: str, inputs: Sequence[Tensor], attrs: Mapping[str, Any]) -> Iterator[tuple[_Array, ...]]:
    """Yield the outputs for zeros, for each combination of sizes of the unknown dimensions that the kernel accepts."""
    samples = [_probe(tensor, 1, op_type) for tensor in inputs]
    dims = ((number, axis, dim) for number, tensor in enumerate(inputs) for axis, dim in enumerate(tensor.shape))
    axes = [(number, axis) for number, axis, dim in dims if dim is None]
    sizes = sorted({1, *_PROBES, *(dim for tensor in inputs for dim in tensor.shape if dim is not None)})
    if not axes or len(sizes) ** len(axes) > _MOST_GUESSES:
        return
    for chosen in itertools.product(sizes, repeat=len(axes)):
        shapes = [list(sample.shape) for sample in samples]
        for (number, axis), size in zip(axes, chosen):
            shapes[number][axis] = size
        filled = [
            np.zeros(shape, sample.dtype) if any(number == position for position, _ in axes) else sample
            for number, (shape, sample) in enumerate(zip(shapes, samples))
        ]
        try:
            yield compute(op_type, filled, attrs)
        except (ValueError, IndexError):
            continue


def _reshaped(shape: TensorShape, shape_tensor: Tensor) -> TensorShape:
    """Return the static shape of the result of a Reshape.

    shape: that of the input. shape_tensor: the requested shape. Raises ValueError if the numbers of elements differ.
    """
    if shape_tensor.op.type == "Shape":
        return shape_tensor.op.inputs[0].shape
    if shape_tensor.op.type != "Const":
        rank = shape_tensor.shape[0] if shape_tensor.shape.is_fully_defined() else None
        return TensorShape(None if rank is None else [None] * rank)
    dims: list[Optional[int]] = [int(dim) for dim in shape_tensor.op.attrs["value"].reshape(-1)]
    if dims.count(-1) > 1:
        raise ValueError(f"Cannot reshape to {dims}: can only specify one unknown dimension")
    product = math.prod(dim for dim in dims if dim is not None and dim != -1)
    if not shape.is_fully_defined():
        return TensorShape([None if dim == -1 else dim for dim in dims])
    size = math.prod(dim or 0 for dim in shape)
    if (size % product if product else size) if -1 in dims else size != product:
        raise ValueError(f"Cannot reshape a tensor with {size} elements to shape {dims}")
    return TensorShape([(size // product if product else 0) if dim == -1 else dim for dim in dims])


def _probe(tensor: Tensor, size: int, op_type: str) -> _Array:
    """Return an array to try in place of a tensor: the value of a constant, else zeros. size: for unknown sizes."""
    value = tensor.op.attrs.get("value")
    # Wrong labels are an error only when the operation runs, so their values are not used here.
    if value is not None and tensor.op.type == "Const" and op_type != "SparseSoftmaxCrossEntropyWithLogits":
        return np.asarray(value)
    if tensor.op.type == "Shape":
        return np.array(_probe(tensor.op.inputs[0], size, op_type).shape, np.int32)
    if tensor.shape.ndims is None:
        raise NotSupported(
            f"{tensor.name} has no static rank, which the stand-in for tensorflow needs",
            hint="set its shape, such as by `shape=` of tf.placeholder",
        )
    dims = [size if dim is None else dim for dim in tensor.shape]
    return np.zeros(dims, tensor.dtype.as_numpy_dtype)


def _kernel(*types: str) -> Callable[[_Kernel], _Kernel]:
    def register(function: _Kernel) -> _Kernel:
        KERNELS.update(dict.fromkeys(types, function))
        return function

    return register


def _of_numpy(name: str) -> _Kernel:
    def call(inputs: Sequence[Any], attrs: Mapping[str, Any]) -> Any:
        return getattr(np, name)(*inputs)

    return call


for _type, _name in {
    "Add": "add",
    "AddV2": "add",
    "Sub": "subtract",
    "Mul": "multiply",
    "Pow": "power",
    "Neg": "negative",
    "Abs": "abs",
    "Square": "square",
    "Sqrt": "sqrt",
    "Exp": "exp",
    "Log": "log",
    "Tanh": "tanh",
    "Sign": "sign",
    "Maximum": "maximum",
    "Minimum": "minimum",
    "Equal": "equal",
    "Greater": "greater",
    "Less": "less",
    "LogicalAnd": "logical_and",
    "LogicalNot": "logical_not",
    "RealDiv": "true_divide",
    "FloorMod": "mod",
    "IsFinite": "isfinite",
    "BroadcastTo": "broadcast_to",
}.items():
    KERNELS[_type] = _of_numpy(_name)


@_kernel("Identity", "StopGradient")
def _identity(inputs: Sequence[Any], attrs: Mapping[str, Any]) -> Any:
    return inputs[0]


@_kernel("BroadcastGradientArgs")
def _broadcast(inputs: Sequence[Any], attrs: Mapping[str, Any]) -> Any:
    """Return for each of two shapes the axes along which it is repeated to get their common shape."""
    rank = max(len(shape) for shape in inputs)
    first, second = (np.concatenate([np.ones(rank - len(shape), np.int32), shape]) for shape in inputs)

    def repeated_axes(shape: Any, other_shape: Any, added: int) -> Any:
        axes = (axis for axis in range(rank) if shape[axis] == 1 and (other_shape[axis] != 1 or axis < added))
        return np.array(list(axes), np.int32)

    return repeated_axes(first, second, rank - len(inputs[0])), repeated_axes(second, first, rank - len(inputs[1]))


@_kernel("MatMul", "BatchMatMulV2")
def _matmul(inputs: Sequence[Any], attrs: Mapping[str, Any]) -> Any:
    first, second = inputs
    if first.ndim < 2 or second.ndim < 2:
        raise ValueError(f"Shape must be rank 2 but is rank {min(first.ndim, second.ndim)} for a factor of MatMul")
    first = first.swapaxes(-1, -2) if attrs.get("transpose_a") else first
    second = second.swapaxes(-1, -2) if attrs.get("transpose_b") else second
    return first @ second


@_kernel("BiasAdd")
def _bias_add(inputs: Sequence[Any], attrs: Mapping[str, Any]) -> Any:
    if inputs[1].shape != inputs[0].shape[-1:]:
        raise ValueError(f"A bias of shape {inputs[1].shape} does not fit to {inputs[0].shape}")
    return inputs[0] + inputs[1]


@_kernel("Softmax")
def _softmax(inputs: Sequence[Any], attrs: Mapping[str, Any]) -> Any:
    if inputs[0].ndim == 0:
        raise ValueError("Shape must be at least rank 1 but is rank 0 for Softmax")
    powers = np.exp(inputs[0] - inputs[0].max(axis=-1, keepdims=True))
    return powers / powers.sum(axis=-1, keepdims=True)


@_kernel("SparseSoftmaxCrossEntropyWithLogits")
def _sparse_cross_entropy(inputs: Sequence[Any], attrs: Mapping[str, Any]) -> Any:
    logits, labels = inputs
    if labels.shape != logits.shape[:-1]:
        raise ValueError(f"Labels of shape {labels.shape} do not fit to logits of shape {logits.shape}")
    if labels.size and not 0 <= labels.min() <= labels.max() < logits.shape[-1]:
        raise ValueError(f"Received a label value outside the valid range of [0, {logits.shape[-1]})")
    one_hot = np.eye(logits.shape[-1], dtype=logits.dtype)[labels]
    return _cross_entropy([logits, one_hot], attrs)


@_kernel("SoftmaxCrossEntropyWithLogits")
def _cross_entropy(inputs: Sequence[Any], attrs: Mapping[str, Any]) -> Any:
    """Return the loss of each row, and the gradient of the loss with respect to the logits."""
    logits, labels = inputs
    probabilities = _softmax([logits], attrs)
    shifted = logits - logits.max(axis=-1, keepdims=True)
    logs = shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))
    return -(labels * logs).sum(axis=-1), probabilities - labels


def _extreme_of_nothing(array: _Array, method: str, axes: tuple[int, ...], keep: bool) -> _Array:
    """Return the maximum or minimum of an array without elements: the lowest or the highest value of the type."""
    low, high = (-np.inf, np.inf) if array.dtype.kind == "f" else (np.iinfo(array.dtype).min, np.iinfo(array.dtype).max)
    extreme: _Array = getattr(array, method)(axis=axes, keepdims=keep, initial=low if method == "max" else high)
    return extreme


def _reduction(method: str) -> _Kernel:
    def call(inputs: Sequence[Any], attrs: Mapping[str, Any]) -> Any:
        axes = tuple(int(axis) for axis in inputs[1].reshape(-1))
        if method in ("max", "min") and not inputs[0].size:
            return _extreme_of_nothing(inputs[0], method, axes, bool(attrs.get("keep_dims")))
        result = getattr(inputs[0], method)(axis=axes, keepdims=bool(attrs.get("keep_dims")))
        return result.astype(inputs[0].dtype)

    return call


for _type, _name in {"Mean": "mean", "Sum": "sum", "Max": "max", "Min": "min", "Prod": "prod"}.items():
    KERNELS[_type] = _reduction(_name)


@_kernel("Reshape")
def _reshape(inputs: Sequence[Any], attrs: Mapping[str, Any]) -> Any:
    shape = [int(dim) for dim in inputs[1].reshape(-1)]
    return inputs[0].reshape(shape)


@_kernel("Squeeze")
def _squeeze(inputs: Sequence[Any], attrs: Mapping[str, Any]) -> Any:
    axes = attrs.get("squeeze_dims")
    return inputs[0].squeeze(axis=tuple(axes) if axes else None)


# Kernels that are one expression.
KERNELS.update(
    {
        "Const": lambda inputs, attrs: attrs["value"],
        "NoOp": lambda inputs, attrs: (),
        "BiasAddGrad": lambda inputs, attrs: inputs[0].sum(axis=tuple(range(inputs[0].ndim - 1))),
        "Relu": lambda inputs, attrs: np.maximum(inputs[0], inputs[0].dtype.type(0)),
        "ReluGrad": lambda inputs, attrs: inputs[0] * (inputs[1] > 0),
        "Sigmoid": lambda inputs, attrs: (1 / (1 + np.exp(-inputs[0]))).astype(inputs[0].dtype),
        "ArgMax": lambda inputs, attrs: inputs[0].argmax(axis=int(inputs[1])).astype(attrs["output_type"]),
        "Cast": lambda inputs, attrs: inputs[0].astype(attrs["DstT"]),
        "ExpandDims": lambda inputs, attrs: np.expand_dims(inputs[0], int(inputs[1])),
        "Transpose": lambda inputs, attrs: inputs[0].transpose([int(axis) for axis in inputs[1]]),
        "ConcatV2": lambda inputs, attrs: np.concatenate(inputs[:-1], axis=int(inputs[-1])),
        "Shape": lambda inputs, attrs: np.array(inputs[0].shape, np.int32),
        "Fill": lambda inputs, attrs: np.full([int(dim) for dim in inputs[0]], inputs[1], inputs[1].dtype),
    }
)
