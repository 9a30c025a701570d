"""Operators that the simulated device computes with numpy, for offline models and torchair's graphs.

Inputs and attributes are those of GE's operator prototypes. `ge_compute` adds the operators that only torchair's graphs
have. Floating-point types of less than 32 bits are computed in float32, and the result is rounded once, as the device's
units Cube and Vector do for most operators. For convolution and pooling, `data_format` is NCHW (the default) or NHWC;
weights are OIHW for NCHW, and HWCN for NHWC.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Callable, Optional

import numpy as np

from ascend_dump import ConfigError, NotSupported
from ascend_dump.fakes.kernels import _npu_windows as windows

if TYPE_CHECKING:
    _Array = np.ndarray[Any, Any]

__all__ = ["OPERATORS", "compute"]

_Attrs = Mapping[str, Any]
_Operator = Callable[[Sequence[Any], _Attrs], Any]

#: Operator type -> a function of inputs and attributes that returns an array or a tuple of arrays.
OPERATORS: dict[str, _Operator] = {}

#: Operators that move values without computing. Their results are not converted to the type of the first input.
_MOVING = frozenset(
    (
        *("Cast", "ConcatD", "ConcatV2D", "Flatten", "FlattenV2", "GatherV2", "Identity", "NetOutput", "Reshape"),
        *("Gather", "SplitD", "TensorMove", "Transpose", "TransposeD"),
    )
)
#: Operator type -> attributes for which only one value is supported.
_SUPPORTED: Mapping[str, Mapping[str, Any]] = MappingProxyType(
    {
        "Gather": {"batch_dims": 0},
        "GatherV2": {"batch_dims": 0},
        "Reshape": {"axis": 0, "num_axes": -1},
    }
)


def compute(op_type: str, name: str, inputs: Sequence[Optional[_Array]], attrs: _Attrs) -> tuple[_Array, ...]:
    """Return the outputs of an operator.

    name: its name, for messages. inputs: the arrays; None for an absent optional input, which must come after the
    others. Raises NotSupported for a type that is not in the table, and for an attribute that has another value than in
    `_SUPPORTED`; raises ConfigError for invalid inputs or attributes.
    """
    fed = [array for array in inputs if array is not None]

    operator = OPERATORS.get(op_type)
    if operator is None:
        raise NotSupported(
            f"the simulated device has no operator {op_type} ({name!r})",
            hint=f"it has {', '.join(sorted(OPERATORS))}; or compute it and report it to the device with Npu.run_op",
        )
    for attribute, value in _SUPPORTED.get(op_type, {}).items():
        if attrs.get(attribute, value) != value:
            raise NotSupported(
                f"{op_type} {name!r} has {attribute}={attrs[attribute]!r}, which the simulated device does not support",
                hint=f"it supports {attribute}={value!r}",
            )
    kind = fed[0].dtype if fed else np.dtype("f4")
    narrow = op_type not in _MOVING and kind.itemsize < 4 and kind.name.startswith(("float", "bfloat"))
    operands = [_widen(array) for array in fed] if narrow else fed
    if attrs.get("half_to_float", False):
        kind = np.dtype("f4")
    try:
        with np.errstate(all="ignore"):
            result = operator(operands, attrs)
            outputs = result if isinstance(result, tuple) else (result,)
            if op_type not in _MOVING:
                outputs = tuple(np.asarray(array).astype(kind, copy=False) for array in outputs)
    except (ValueError, IndexError, KeyError, TypeError) as error:
        shapes = ", ".join(f"{array.dtype.name} {array.shape}" for array in fed)
        raise ConfigError(
            f"{op_type} {name!r} cannot be computed from {shapes or 'no inputs'} and {dict(attrs)}: {error}",
            hint="inputs and attributes are those of GE's operator of that name",
        ) from None
    return tuple(np.ascontiguousarray(array).reshape(np.shape(array)) for array in outputs)


def _widen(array: _Array) -> _Array:
    return array.astype("f4") if array.dtype.name.startswith(("float", "bfloat")) else array


def _operator(*types: str) -> Callable[[_Operator], _Operator]:
    def register(function: _Operator) -> _Operator:
        OPERATORS.update(dict.fromkeys(types, function))
        return function

    return register


def _of_numpy(name: str) -> _Operator:
    def call(inputs: Sequence[Any], attrs: _Attrs) -> Any:
        return getattr(np, name)(*inputs)

    return call


for _type, _name in {
    "Add": "add",
    "Sub": "subtract",
    "Mul": "multiply",
    "Sqrt": "sqrt",
    "Pow": "power",
    "Tanh": "tanh",
    "Neg": "negative",
    "Abs": "absolute",
    "Maximum": "maximum",
    "Minimum": "minimum",
}.items():
    OPERATORS[_type] = _of_numpy(_name)


@_operator("Div", "RealDiv")
def _divide(inputs: Sequence[Any], attrs: _Attrs) -> Any:
    first, second = inputs
    if first.dtype.kind in "iu":
        # Quotients of integers are rounded towards 0. For the divisor 0 a device leaves the result open; here it is 0.
        safe = np.where(second == 0, 1, second)
        quotient = abs(first) // abs(safe) * np.sign(first) * np.sign(safe)
        return np.where(second == 0, 0, quotient)
    return first / second


@_operator("Exp")
def _exp(inputs: Sequence[Any], attrs: _Attrs) -> Any:
    base = float(attrs.get("base", -1.0))
    power = inputs[0] * attrs.get("scale", 1.0) + attrs.get("shift", 0.0)
    return np.exp(power if base == -1 else power * math.log(base))


@_operator("Gelu")
def _gelu(inputs: Sequence[Any], attrs: _Attrs) -> Any:
    x = inputs[0]
    return 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


@_operator("SoftmaxV2")
def _softmax(inputs: Sequence[Any], attrs: _Attrs) -> Any:
    axes = tuple(attrs.get("axes", (-1,)))
    powers = np.exp(inputs[0] - inputs[0].max(axis=axes, keepdims=True))
    return powers / powers.sum(axis=axes, keepdims=True)


@_operator("MatMul", "MatMulV2", "BatchMatMul", "BatchMatMulV2")
def _matmul(inputs: Sequence[Any], attrs: _Attrs) -> Any:
    first, second, *bias = inputs
    if attrs.get("transpose_x1", attrs.get("adj_x1", False)):
        first = first.swapaxes(-1, -2)
    if attrs.get("transpose_x2", attrs.get("adj_x2", False)):
        second = second.swapaxes(-1, -2)
    product = first @ second
    return product + bias[0] if bias else product


@_operator("FullyConnection")
def _fully_connection(inputs: Sequence[Any], attrs: _Attrs) -> Any:
    x, weight, *bias = inputs
    axis = int(attrs.get("axis", 1))
    flat = x.reshape(*x.shape[:axis], -1)
    weight = weight.reshape(weight.shape[0], -1)
    product = flat @ (weight if attrs.get("transpose", False) else weight.T)
    return product + bias[0] if bias else product


@_operator("BiasAdd")
def _bias_add(inputs: Sequence[Any], attrs: _Attrs) -> Any:
    x, bias = inputs
    return x + bias.reshape(windows.along_channels(x, bias.size, attrs))


@_operator("MaxPool", "MaxPoolV3")
def _max_pool(inputs: Sequence[Any], attrs: _Attrs) -> Any:
    return windows.pool(inputs[0], attrs, highest=True)


@_operator("AvgPool", "AvgPoolV2")
def _avg_pool(inputs: Sequence[Any], attrs: _Attrs) -> Any:
    return windows.pool(inputs[0], attrs, highest=False)


@_operator("BatchNorm")
def _batch_norm(inputs: Sequence[Any], attrs: _Attrs) -> Any:
    x, scale, offset, *moving = inputs
    if attrs.get("is_training", False):
        axes = tuple(axis for axis in range(x.ndim) if axis != windows.channel_axis(x, attrs))
        moving = [x.mean(axis=axes), x.var(axis=axes)]
    mean, variance = moving
    return _normalise(x, scale, offset, mean, variance, attrs), mean, variance, mean, variance


@_operator("BNInference")
def _bn_inference(inputs: Sequence[Any], attrs: _Attrs) -> Any:
    x, mean, variance, _momentum, *affine = inputs
    scale, offset = affine or (mean * 0 + 1, mean * 0)
    return _normalise(x, scale, offset, mean, variance, attrs)


def _normalise(x: Any, scale: Any, offset: Any, mean: Any, variance: Any, attrs: _Attrs) -> Any:
    spread = [
        vector.reshape(windows.along_channels(x, vector.size, attrs)) for vector in (scale, offset, mean, variance)
    ]
    scale, offset, mean, variance = spread
    return (x - mean) / np.sqrt(variance + attrs.get("epsilon", 1e-4)) * scale + offset


@_operator("LayerNorm")
def _layer_norm(inputs: Sequence[Any], attrs: _Attrs) -> Any:
    x, gamma, beta = inputs
    first = int(attrs.get("begin_norm_axis", -1)) % x.ndim
    axes = tuple(range(first, x.ndim))
    mean = x.mean(axis=axes, keepdims=True)
    variance = ((x - mean) ** 2).mean(axis=axes, keepdims=True)
    return (x - mean) / np.sqrt(variance + attrs.get("epsilon", 1e-5)) * gamma + beta, mean, variance


def _reduction(method: str) -> _Operator:
    def call(inputs: Sequence[Any], attrs: _Attrs) -> Any:
        x = inputs[0]
        axes = _list(inputs, 1, attrs, "axes") if x.ndim else []
        if not axes and len(inputs) > 1 and attrs.get("noop_with_empty_axes", True):
            return x.copy()
        # GE reduces over all axes if none is named.
        return getattr(x, method)(axis=tuple(axes) or None, keepdims=bool(attrs.get("keep_dims", False)))

    return call


for _type, _name in {"Mean": "mean", "Sum": "sum", "Max": "max", "Min": "min"}.items():
    OPERATORS[f"Reduce{_type}"] = OPERATORS[f"Reduce{_type}D"] = _reduction(_name)


@_operator("Identity", "TensorMove", "NetOutput")
def _identity(inputs: Sequence[Any], attrs: _Attrs) -> Any:
    return tuple(inputs)


@_operator("Flatten", "FlattenV2")
def _flatten(inputs: Sequence[Any], attrs: _Attrs) -> Any:
    x = inputs[0]
    if "end_axis" in attrs and x.ndim:
        first, last = (int(attrs.get(name, 1)) % x.ndim for name in ("axis", "end_axis"))
        return x.reshape(*x.shape[:first], math.prod(x.shape[first : last + 1]), *x.shape[last + 1 :])
    axis = int(attrs.get("axis", 1)) % (x.ndim + 1)
    return x.reshape(math.prod(x.shape[:axis]), -1) if x.size else x.reshape(x.shape[0], 0)


@_operator("Transpose", "TransposeD")
def _transpose(inputs: Sequence[Any], attrs: _Attrs) -> Any:
    return inputs[0].transpose(_list(inputs, 1, attrs, "perm"))


@_operator("ConcatD", "ConcatV2D")
def _concat(inputs: Sequence[Any], attrs: _Attrs) -> Any:
    return np.concatenate(inputs, axis=int(attrs["concat_dim"]))


@_operator("SplitD")
def _split(inputs: Sequence[Any], attrs: _Attrs) -> Any:
    return tuple(np.split(inputs[0], int(attrs["num_split"]), axis=int(attrs["split_dim"])))


@_operator("Gather", "GatherV2")
def _gather(inputs: Sequence[Any], attrs: _Attrs) -> Any:
    axis = _list(inputs, 2, attrs, "axis") or [0]
    return inputs[0].take(inputs[1], axis=axis[0])


@_operator("Cast")
def _cast(inputs: Sequence[Any], attrs: _Attrs) -> Any:
    from ascend_dump.native.cann import dtypes

    # The attribute is the number of the type in ge::DataType.
    number = dtypes.from_ge(int(attrs["dst_type"]))
    kind = dtypes.decode(np.empty(0, np.uint8), number, (0,)).dtype
    return inputs[0].astype(kind)


def _list(inputs: Sequence[Any], index: int, attrs: _Attrs, name: str) -> list[int]:
    """Return the integers in input `index`, or in the attribute `name` if there is no such input.

    GE's variants of operators with the suffix D have attributes in place of inputs.
    """
    numbers = inputs[index].reshape(-1).tolist() if len(inputs) > index else attrs.get(name, [])
    return [int(number) for number in (numbers if isinstance(numbers, (list, tuple)) else [numbers])]


# Operators that are one expression.
OPERATORS.update(
    {
        "Relu": lambda inputs, attrs: np.maximum(inputs[0], inputs[0].dtype.type(0)),
        "Sigmoid": lambda inputs, attrs: 1 / (1 + np.exp(-inputs[0])),
        "Swish": lambda inputs, attrs: inputs[0] / (1 + np.exp(-inputs[0] * attrs.get("scale", 1.0))),
        "Conv2D": windows.convolve,
        "Reshape": lambda inputs, attrs: inputs[0].reshape(_list(inputs, 1, attrs, "shape")),
    }
)
