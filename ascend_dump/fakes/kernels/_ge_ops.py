"""Elementwise GE operators, computed with torch, that are not in `npu_ops`."""

from __future__ import annotations

import math
from typing import Any, Callable

import torch
from torch.nn import functional

from ascend_dump.fakes.kernels._ge_table import OPERATORS, Operator, operator
from ascend_dump.fakes.kernels.ge_model import GeOp
from ascend_dump.fakes.kernels.ge_values import constant, torch_dtype

__all__: list[str] = []

#: GE's types of operators that torch has as functions with the same name in lower case.
_LOWER_CASE = (
    *("Acos", "Acosh", "Asin", "Asinh", "Atan", "Atan2", "Atanh", "Ceil", "Cos", "Cosh", "Erf"),
    *("Erfc", "Erfinv", "Expm1", "Floor", "Greater", "IsInf", "IsNan", "Lerp", "Less", "Log1p", "Real", "Reciprocal"),
    *("Round", "Rsqrt", "Sign", "Sin", "Sinh", "Square", "Tan", "Trunc"),
)
#: GE's type of an operator -> name of the function of torch that computes it.
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
    "Imag": "imag",
    "Invert": "bitwise_not",
    "LessEqual": "le",
    "LogicalAnd": "logical_and",
    "LogicalNot": "logical_not",
    "LogicalOr": "logical_or",
    "NanToNum": "nan_to_num",
    "NotEqual": "ne",
    "OnesLike": "ones_like",
    "Select": "where",
    "SelectV2": "where",
    "ZerosLike": "zeros_like",
}


def _of_torch(function: Callable[..., Any]) -> Operator:
    return lambda op, *inputs: function(*inputs)


for _type, _name in _NAMED.items():
    OPERATORS[_type] = _of_torch(getattr(torch, _name))
for _type, _function in {
    "HardSwish": functional.hardswish,
    "HardSwishGrad": torch.ops.aten.hardswish_backward,
    "LogSigmoid": functional.logsigmoid,
    "Mish": functional.mish,
    "PReluGrad": torch.ops.aten._prelu_kernel_backward,
}.items():
    OPERATORS[_type] = _of_torch(_function)


@operator("Const", "Constant")
def _const(op: GeOp) -> Any:
    return constant(op.attrs["value"])


@operator("Log")
def _log(op: GeOp, x: Any) -> Any:
    base, scale, shift = (op.attrs.get(*attribute) for attribute in (("base", -1.0), ("scale", 1.0), ("shift", 0.0)))
    result = x.log() if (scale, shift) == (1.0, 0.0) else (x * scale + shift).log()
    return result if base == -1.0 else result / math.log(base)


@operator("Addcmul", "Addcdiv")
def _add_scaled(op: GeOp, x: Any, first: Any, second: Any, value: Any) -> Any:
    return getattr(torch, op.type.lower())(x, first, second, value=value.item())


@operator("ClipByValue", "ClipByValueV2")
def _clip(op: GeOp, x: Any, lowest: Any, highest: Any) -> Any:
    return x.clamp(lowest, highest)


# Activations and their gradients.


@operator("LeakyReluGrad")
def _leaky_relu_grad(op: GeOp, gradient: Any, x: Any) -> Any:
    return gradient.where(x > 0, gradient * op.attrs.get("negative_slope", 0.0))


@operator("SwishGrad")
def _swish_grad(op: GeOp, gradient: Any, x: Any, y: Any) -> Any:
    scaled = x * op.attrs.get("scale", 1.0)
    return gradient * scaled.sigmoid() * (1 + scaled * (1 - scaled.sigmoid()))


@operator("HardSigmoidGrad")
def _hard_sigmoid_grad(op: GeOp, gradient: Any, x: Any) -> Any:
    alpha, beta = op.attrs.get("alpha", 1 / 6), op.attrs.get("beta", 0.5)
    line = x * alpha + beta
    return (gradient * alpha).where((line > 0) & (line < 1), 0)


@operator("HardtanhGrad")
def _hardtanh_grad(op: GeOp, x: Any, gradient: Any) -> Any:
    lowest, highest = op.attrs.get("min_val", -1.0), op.attrs.get("max_val", 1.0)
    return gradient.where((x > lowest) & (x < highest), 0)


@operator("EluGradV2")
def _elu_grad(op: GeOp, gradient: Any, activations: Any) -> Any:
    result = op.attrs.get("is_result", False)
    return torch.ops.aten.elu_backward(gradient, *_elu_attributes(op), result, activations)


def _elu_attributes(op: GeOp) -> list[float]:
    return [op.attrs.get(name, 1.0) for name in ("alpha", "scale", "input_scale")]


# Operators that are one expression.
OPERATORS.update(
    {
        "Bitcast": lambda op, x: x.view(torch_dtype(op.attrs["type"])),
        "TruncateDiv": lambda op, x, y: x.div(y, rounding_mode="trunc"),
        "Muls": lambda op, x: x * op.attrs["value"],
        "Adds": lambda op, x: x + op.attrs["value"],
        "Axpy": lambda op, x, y: x + y * op.attrs["alpha"],
        "AxpyV2": lambda op, x, y, alpha: x + y * alpha,
        "Sxpy": lambda op, x, y, alpha=None: x - y if alpha is None else x - y * alpha,
        "MaskedFill": lambda op, x, mask, value: value.to(x.dtype).reshape(()).where(mask, x),
        "LeakyRelu": lambda op, x: x.where(x > 0, x * op.attrs.get("negative_slope", 0.0)),
        "ReluGrad": lambda op, gradient, features: gradient.where(features > 0, 0),
        "SigmoidGrad": lambda op, y, gradient: (gradient.float() * y.float() * (1 - y.float())).to(gradient.dtype),
        "TanhGrad": lambda op, y, gradient: (gradient.float() * (1 - y.float().square())).to(gradient.dtype),
        "GeluGrad": lambda op, gradient, x, y: torch.ops.aten.gelu_backward(gradient, x, approximate="tanh"),
        "HardSigmoid": lambda op, x: (x * op.attrs.get("alpha", 1 / 6) + op.attrs.get("beta", 0.5)).clamp(0, 1),
        "Elu": lambda op, x: torch.ops.aten.elu(x, *_elu_attributes(op)),
        "PRelu": lambda op, x, weight: x.where(x > 0, x * weight),
        "ThresholdV2": lambda op, x, threshold, value=None: x.where(x > threshold, 0 if value is None else value),
        "ThresholdGradV2D": lambda op, gradient, x: gradient.where(x > op.attrs["threshold"], 0),
        "GLU": lambda op, x: torch.ops.aten.glu(x, op.attrs.get("dim", -1)),
        "GLUGrad": lambda op, gradient, x: torch.ops.aten.glu_backward(gradient, x, op.attrs.get("dim", -1)),
    }
)
