"""What the operations of the stand-in for TensorFlow compute, with numpy: types, inputs and attributes as TensorFlow's.

Operations with a state (variables, iterators, random numbers, functions) are in `_tf_session`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Callable

from ascend_dump._errors import NotSupported
from ascend_dump.fakes._tf_graph import DType, Tensor, TensorShape, as_dtype

if TYPE_CHECKING:
    import numpy as np

    _Array = np.ndarray[Any, Any]

__all__ = ["KERNELS", "compute", "infer"]

_Kernel = Callable[[Sequence[Any], Mapping[str, Any]], Any]

#: Type of the operation -> function of inputs and attributes, which gives one array or a tuple of them.
KERNELS: dict[str, _Kernel] = {}

#: Sizes that stand for an unknown one; a result's dimension that differs between them is unknown too.
_PROBES = (2, 3)


def compute(op_type: str, inputs: Sequence[Any], attrs: Mapping[str, Any]) -> tuple[_Array, ...]:
    """The outputs of one operation. Raises NotSupported for a type that is not there, ValueError for wrong inputs."""
    import numpy as np

    kernel = KERNELS.get(op_type)
    if kernel is None:
        raise NotSupported(
            f"the stand-in for tensorflow has no operation {op_type}",
            hint=f"it has {', '.join(sorted(KERNELS))}; install a real tensorflow for others",
        )
    with np.errstate(all="ignore"):
        found = kernel(inputs, attrs)
    return tuple(map(np.asarray, found if isinstance(found, tuple) else (found,)))


def infer(op_type: str, inputs: Sequence[Tensor], attrs: Mapping[str, Any]) -> list[tuple[DType, TensorShape]]:
    """Types and static shapes of the outputs, found by computing on zeros of the static shapes.

    Raises ValueError for inputs that do not fit together, NotSupported as `compute`.
    """
    runs = [compute(op_type, [_probe(tensor, size) for tensor in inputs], attrs) for size in _PROBES]
    found = []
    for one, other in zip(*runs):
        same = one.ndim == other.ndim
        dims = [a if a == b else None for a, b in zip(one.shape, other.shape)] if same else None
        found.append((as_dtype(one.dtype), TensorShape(dims)))
    return found


def _probe(tensor: Tensor, size: int) -> _Array:
    import numpy as np

    known = tensor.op.attrs.get("value")
    if known is not None and tensor.op.type == "Const":
        return np.asarray(known)
    if tensor.op.type == "Shape":
        return np.array(_probe(tensor.op.inputs[0], size).shape, np.int32)
    if tensor.shape.ndims is None:
        raise NotSupported(
            f"{tensor.name} has no static rank, which the stand-in for tensorflow needs", hint="give it a shape"
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
        import numpy as np

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


@_kernel("Const")
def _const(inputs: Sequence[Any], attrs: Mapping[str, Any]) -> Any:
    return attrs["value"]


@_kernel("Identity", "StopGradient")
def _identity(inputs: Sequence[Any], attrs: Mapping[str, Any]) -> Any:
    return inputs[0]


@_kernel("NoOp")
def _nothing(inputs: Sequence[Any], attrs: Mapping[str, Any]) -> Any:
    return ()


@_kernel("MatMul", "BatchMatMulV2")
def _matmul(inputs: Sequence[Any], attrs: Mapping[str, Any]) -> Any:
    first, second = inputs
    first = first.swapaxes(-1, -2) if attrs.get("transpose_a") else first
    second = second.swapaxes(-1, -2) if attrs.get("transpose_b") else second
    return first @ second


@_kernel("BiasAdd")
def _bias_add(inputs: Sequence[Any], attrs: Mapping[str, Any]) -> Any:
    return inputs[0] + inputs[1]


@_kernel("BiasAddGrad")
def _bias_add_grad(inputs: Sequence[Any], attrs: Mapping[str, Any]) -> Any:
    return inputs[0].sum(axis=tuple(range(inputs[0].ndim - 1)))


@_kernel("Relu")
def _relu(inputs: Sequence[Any], attrs: Mapping[str, Any]) -> Any:
    import numpy as np

    return np.maximum(inputs[0], inputs[0].dtype.type(0))


@_kernel("ReluGrad")
def _relu_grad(inputs: Sequence[Any], attrs: Mapping[str, Any]) -> Any:
    return inputs[0] * (inputs[1] > 0)


@_kernel("Sigmoid")
def _sigmoid(inputs: Sequence[Any], attrs: Mapping[str, Any]) -> Any:
    import numpy as np

    return (1 / (1 + np.exp(-inputs[0]))).astype(inputs[0].dtype)


@_kernel("Softmax")
def _softmax(inputs: Sequence[Any], attrs: Mapping[str, Any]) -> Any:
    import numpy as np

    powers = np.exp(inputs[0] - inputs[0].max(axis=-1, keepdims=True))
    return powers / powers.sum(axis=-1, keepdims=True)


@_kernel("SparseSoftmaxCrossEntropyWithLogits")
def _sparse_cross_entropy(inputs: Sequence[Any], attrs: Mapping[str, Any]) -> Any:
    import numpy as np

    logits, labels = inputs
    chosen = np.eye(logits.shape[-1], dtype=logits.dtype)[labels]
    return _cross_entropy([logits, chosen], attrs)


@_kernel("SoftmaxCrossEntropyWithLogits")
def _cross_entropy(inputs: Sequence[Any], attrs: Mapping[str, Any]) -> Any:
    """The loss of each row, and its gradient."""
    import numpy as np

    logits, labels = inputs
    likely = _softmax([logits], attrs)
    shifted = logits - logits.max(axis=-1, keepdims=True)
    logs = shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))
    return -(labels * logs).sum(axis=-1), likely - labels


def _reduction(method: str) -> _Kernel:
    def call(inputs: Sequence[Any], attrs: Mapping[str, Any]) -> Any:
        axes = tuple(int(axis) for axis in inputs[1].reshape(-1))
        found = getattr(inputs[0], method)(axis=axes, keepdims=bool(attrs.get("keep_dims")))
        return found.astype(inputs[0].dtype)

    return call


for _type, _name in {"Mean": "mean", "Sum": "sum", "Max": "max", "Min": "min", "Prod": "prod"}.items():
    KERNELS[_type] = _reduction(_name)


@_kernel("ArgMax")
def _arg_max(inputs: Sequence[Any], attrs: Mapping[str, Any]) -> Any:
    import numpy as np

    return inputs[0].argmax(axis=int(inputs[1])).astype(np.int64)


@_kernel("Cast")
def _cast(inputs: Sequence[Any], attrs: Mapping[str, Any]) -> Any:
    return inputs[0].astype(attrs["DstT"])


@_kernel("Reshape")
def _reshape(inputs: Sequence[Any], attrs: Mapping[str, Any]) -> Any:
    shape = [int(dim) for dim in inputs[1].reshape(-1)]
    return inputs[0].reshape(shape)


@_kernel("ExpandDims")
def _expand_dims(inputs: Sequence[Any], attrs: Mapping[str, Any]) -> Any:
    import numpy as np

    return np.expand_dims(inputs[0], int(inputs[1]))


@_kernel("Squeeze")
def _squeeze(inputs: Sequence[Any], attrs: Mapping[str, Any]) -> Any:
    axes = attrs.get("squeeze_dims")
    return inputs[0].squeeze(axis=tuple(axes) if axes else None)


@_kernel("Transpose")
def _transpose(inputs: Sequence[Any], attrs: Mapping[str, Any]) -> Any:
    return inputs[0].transpose([int(axis) for axis in inputs[1]])


@_kernel("ConcatV2")
def _concat(inputs: Sequence[Any], attrs: Mapping[str, Any]) -> Any:
    import numpy as np

    return np.concatenate(inputs[:-1], axis=int(inputs[-1]))


@_kernel("Shape")
def _shape(inputs: Sequence[Any], attrs: Mapping[str, Any]) -> Any:
    import numpy as np

    return np.array(inputs[0].shape, np.int32)


@_kernel("Fill")
def _fill(inputs: Sequence[Any], attrs: Mapping[str, Any]) -> Any:
    import numpy as np

    return np.full([int(dim) for dim in inputs[0]], inputs[1], inputs[1].dtype)
