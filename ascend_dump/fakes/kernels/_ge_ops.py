"""The GE operators that the simulated device computes with torch on the CPU, by type.

Inputs and attributes are those of GE's operator prototypes (CANN, op_proto) as torchair writes them. Here is the
table, and what works element by element; `_ge_ops_shape`, `_ge_ops_reduce` and `_ge_ops_nn` hold the rest.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Callable, Optional

from ascend_dump._errors import ConfigError, NotSupported
from ascend_dump.fakes.kernels._ge_values import constant, torch_dtype
from ascend_dump.fakes.torchair._ge_model import GeOp

__all__ = ["OPERATORS", "axes_of", "compute", "integers", "known_types", "operator"]

#: Takes the operator and its inputs, None for those that are not fed; gives one tensor or several.
Operator = Callable[..., Any]

OPERATORS: dict[str, Operator] = {}


def operator(*types: str) -> Callable[[Operator], Operator]:
    """Register a function for these types of operator."""

    def register(function: Operator) -> Operator:
        OPERATORS.update(dict.fromkeys(types, function))
        return function

    return register


def known_types() -> list[str]:
    """Every type of operator that can be computed."""
    # They register theirs.
    from ascend_dump.fakes.kernels import _ge_ops_nn, _ge_ops_reduce, _ge_ops_shape  # noqa: F401

    return sorted(OPERATORS)


def compute(op: GeOp, inputs: Sequence[Optional[Any]]) -> tuple[Any, ...]:
    """The outputs of one operator, as tensors of their own or views of the inputs.

    Raises NotSupported for a type that is not in the table, ConfigError where inputs or attributes do not fit.
    """
    import torch

    if op.type not in OPERATORS and op.type not in known_types():
        raise NotSupported(
            f"the simulated device has no operator {op.type} ({op.name!r})",
            hint=f"it has {', '.join(sorted(OPERATORS))}",
        )
    try:
        with torch.no_grad():
            found = OPERATORS[op.type](op, *inputs)
    except (RuntimeError, TypeError, ValueError, IndexError, KeyError) as error:
        if isinstance(error, NotSupported):
            raise
        shapes = ", ".join("none" if each is None else f"{each.dtype} {tuple(each.shape)}" for each in inputs)
        attrs = {name: value for name, value in op.attrs.items() if not name.startswith("_")}
        raise ConfigError(
            f"{op.type} {op.name!r} cannot be computed from {shapes or 'no inputs'} and {attrs}: "
            f"{type(error).__name__}: {error}",
            hint="inputs and attributes are those of GE's operator of that name",
        ) from error
    return tuple(found) if isinstance(found, (tuple, list)) else (found,)


def integers(value: Any) -> list[int]:
    """Whole numbers given as a tensor or as an attribute."""
    found = value.reshape(-1).tolist() if hasattr(value, "reshape") else value
    return [int(each) for each in (found if isinstance(found, (list, tuple)) else [found])]


def axes_of(op: GeOp, given: Optional[Any], name: str = "axes") -> list[int]:
    """Axes that come as an input, or as an attribute in an operator's variant D."""
    return integers(op.attrs.get(name, [])) if given is None else integers(given)


# One function of torch each.

_LOWER_CASE = (
    *("Abs", "Acos", "Acosh", "Add", "Asin", "Asinh", "Atan", "Atan2", "Atanh", "Ceil", "Cos", "Cosh", "Erf", "Erfc"),
    *("Erfinv", "Expm1", "Floor", "Greater", "IsInf", "IsNan", "Less", "Log1p", "Maximum", "Minimum", "Mul", "Neg"),
    *("Pow", "Real", "Reciprocal", "Relu", "Round", "Rsqrt", "Sigmoid", "Sign", "Sin", "Sinh", "Sqrt", "Square"),
    *("Sub", "Tan", "Tanh"),
)
_NAMED = {
    **{name: name.lower() for name in _LOWER_CASE},
    "AddV2": "add",
    "BitwiseAnd": "bitwise_and",
    "BitwiseOr": "bitwise_or",
    "BitwiseXor": "bitwise_xor",
    "Equal": "eq",
    "FloorDiv": "floor_divide",
    "FloorMod": "remainder",
    "GreaterEqual": "ge",
    "Invert": "bitwise_not",
    "LessEqual": "le",
    "LogicalAnd": "logical_and",
    "LogicalNot": "logical_not",
    "LogicalOr": "logical_or",
    "NotEqual": "ne",
    "OnesLike": "ones_like",
    "Select": "where",
    "SelectV2": "where",
    "ZerosLike": "zeros_like",
}


def _of_torch(name: str) -> Operator:
    def call(op: GeOp, *inputs: Any) -> Any:
        import torch

        return getattr(torch, name)(*inputs)

    return call


for _type, _name in _NAMED.items():
    OPERATORS[_type] = _of_torch(_name)


@operator("Const", "Constant")
def _const(op: GeOp) -> Any:
    return constant(op.attrs["value"])


@operator("Identity")
def _identity(op: GeOp, x: Any) -> Any:
    return x


@operator("TensorMove")
def _tensor_move(op: GeOp, x: Any) -> Any:
    return x.clone()


@operator("Cast")
def _cast(op: GeOp, x: Any) -> Any:
    return x.to(torch_dtype(op.attrs["dst_type"]))


@operator("Bitcast")
def _bitcast(op: GeOp, x: Any) -> Any:
    return x.view(torch_dtype(op.attrs["type"]))


@operator("RealDiv", "Div", "TruncateDiv")
def _divide(op: GeOp, x: Any, y: Any) -> Any:
    floating = x.is_floating_point() or x.is_complex()
    return x / y if floating and op.type != "TruncateDiv" else x.div(y, rounding_mode="trunc")


@operator("Exp")
def _exp(op: GeOp, x: Any) -> Any:
    base, scale, shift = (op.attrs.get(*each) for each in (("base", -1.0), ("scale", 1.0), ("shift", 0.0)))
    if (base, scale, shift) == (-1.0, 1.0, 0.0):
        return x.exp()
    power = x * scale + shift
    return power.exp() if base == -1.0 else (power * math.log(base)).exp()


@operator("Log")
def _log(op: GeOp, x: Any) -> Any:
    base, scale, shift = (op.attrs.get(*each) for each in (("base", -1.0), ("scale", 1.0), ("shift", 0.0)))
    found = x.log() if (scale, shift) == (1.0, 0.0) else (x * scale + shift).log()
    return found if base == -1.0 else found / math.log(base)


@operator("Muls")
def _muls(op: GeOp, x: Any) -> Any:
    return x * op.attrs["value"]


@operator("Adds")
def _adds(op: GeOp, x: Any) -> Any:
    return x + op.attrs["value"]


@operator("Axpy")
def _axpy(op: GeOp, x: Any, y: Any) -> Any:
    return x + y * op.attrs["alpha"]


@operator("AxpyV2")
def _axpy_v2(op: GeOp, x: Any, y: Any, alpha: Any) -> Any:
    return x + y * alpha


@operator("Sxpy")
def _sxpy(op: GeOp, x: Any, y: Any, alpha: Optional[Any] = None) -> Any:
    return x - y if alpha is None else x - y * alpha


@operator("Addcmul")
def _addcmul(op: GeOp, x: Any, one: Any, other: Any, value: Any) -> Any:
    return x + one * other * value


@operator("Addcdiv")
def _addcdiv(op: GeOp, x: Any, one: Any, other: Any, value: Any) -> Any:
    return x + one / other * value


@operator("Lerp")
def _lerp(op: GeOp, start: Any, end: Any, weight: Any) -> Any:
    return start.lerp(end, weight)


@operator("ClipByValue", "ClipByValueV2")
def _clip(op: GeOp, x: Any, lowest: Any, highest: Any) -> Any:
    return x.clamp(lowest, highest)


@operator("MaskedFill")
def _masked_fill(op: GeOp, x: Any, mask: Any, value: Any) -> Any:
    return value.to(x.dtype).reshape(()).where(mask, x)


# Activations and their gradients.


@operator("LeakyRelu")
def _leaky_relu(op: GeOp, x: Any) -> Any:
    return x.where(x > 0, x * op.attrs.get("negative_slope", 0.0))


@operator("LeakyReluGrad")
def _leaky_relu_grad(op: GeOp, gradient: Any, x: Any) -> Any:
    return gradient.where(x > 0, gradient * op.attrs.get("negative_slope", 0.0))


@operator("ReluGrad")
def _relu_grad(op: GeOp, gradient: Any, features: Any) -> Any:
    return gradient.where(features > 0, 0)


@operator("SigmoidGrad")
def _sigmoid_grad(op: GeOp, y: Any, gradient: Any) -> Any:
    return gradient * y * (1 - y)


@operator("TanhGrad")
def _tanh_grad(op: GeOp, y: Any, gradient: Any) -> Any:
    return gradient * (1 - y * y)


@operator("Swish")
def _swish(op: GeOp, x: Any) -> Any:
    from torch.nn import functional

    scale = op.attrs.get("scale", 1.0)
    return functional.silu(x) if scale == 1.0 else x * (x * scale).sigmoid()


@operator("SwishGrad")
def _swish_grad(op: GeOp, gradient: Any, x: Any, y: Any) -> Any:
    scaled = x * op.attrs.get("scale", 1.0)
    return gradient * scaled.sigmoid() * (1 + scaled * (1 - scaled.sigmoid()))


@operator("Gelu")
def _gelu(op: GeOp, x: Any) -> Any:
    # GE's Gelu is the approximation, whatever the model asked for.
    from torch.nn import functional

    return functional.gelu(x, approximate="tanh")


@operator("GeluGrad")
def _gelu_grad(op: GeOp, gradient: Any, x: Any, y: Any) -> Any:
    import torch

    return torch.ops.aten.gelu_backward(gradient, x, approximate="tanh")


@operator("HardSwish")
def _hard_swish(op: GeOp, x: Any) -> Any:
    from torch.nn import functional

    return functional.hardswish(x)


@operator("HardSigmoid")
def _hard_sigmoid(op: GeOp, x: Any) -> Any:
    return (x * op.attrs.get("alpha", 1 / 6) + op.attrs.get("beta", 0.5)).clamp(0, 1)
