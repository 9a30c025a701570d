"""GE operators along axes: reductions, cumulative sums, sorting and softmax, computed with torch."""

from __future__ import annotations

import math
from typing import Any, Optional

import torch

from ascend_dump.fakes.kernels._ge_table import OPERATORS, Operator, axes_of, operator
from ascend_dump.fakes.kernels.ge_model import GeOp
from ascend_dump.fakes.kernels.ge_values import torch_dtype

__all__: list[str] = []

_INT32 = 3  # ge::DataType


def _reduction(name: str) -> Operator:
    def call(op: GeOp, x: Any, axes: Optional[Any] = None) -> Any:
        dims = axes_of(op, axes)
        if not dims and op.attrs.get("noop_with_empty_axes", True) and axes is not None:
            return x.clone()
        keep = op.attrs.get("keep_dims", False)
        dims = sorted(axis % max(x.dim(), 1) for axis in dims) or list(range(x.dim()))
        for dim in reversed(dims):
            x = getattr(torch, name)(x, dim, keepdim=keep)
        return x

    return call


_REDUCTIONS = {"Prod": "prod", "All": "all", "Any": "any"}
for _type, _name in _REDUCTIONS.items():
    OPERATORS[f"Reduce{_type}"] = OPERATORS[f"Reduce{_type}D"] = _reduction(_name)


@operator("ArgMaxV2", "ArgMin")
def _arg_extreme(op: GeOp, x: Any, dimension: Any) -> Any:
    indices = x.argmax(int(dimension)) if op.type == "ArgMaxV2" else x.argmin(int(dimension))
    return indices.to(torch_dtype(op.attrs.get("dtype", _INT32)))


@operator("ArgMaxWithValue", "ArgMinWithValue")
def _arg_with_value(op: GeOp, x: Any) -> Any:
    method = x.max if op.type == "ArgMaxWithValue" else x.min
    values, indices = method(op.attrs["dimension"], keepdim=op.attrs.get("keep_dims", False))
    return indices.int(), values


@operator("TopKV2")
def _top_k(op: GeOp, x: Any, k: Any) -> Any:
    attrs = op.attrs
    values, indices = x.topk(int(k), attrs.get("dim", -1), attrs.get("largest", True), attrs.get("sorted", True))
    return values, indices.to(torch_dtype(attrs.get("indices_dtype", _INT32)))


@operator("Sort")
def _sort(op: GeOp, x: Any) -> Any:
    attrs = op.attrs
    values, indices = x.sort(
        stable=attrs.get("stable", False), dim=attrs.get("axis", -1), descending=attrs.get("descending", False)
    )
    return values, indices.to(torch_dtype(attrs.get("y2_dtype", _INT32)))


@operator("Cumsum")
def _cumsum(op: GeOp, x: Any, axis: Any) -> Any:
    dim = int(axis)
    values = x.flip(dim) if op.attrs.get("reverse", False) else x
    sums = values.cumsum(dim).to(x.dtype)
    if op.attrs.get("exclusive", False):
        sums = sums - values
    return sums.flip(dim) if op.attrs.get("reverse", False) else sums


@operator("SoftmaxGrad")
def _softmax_grad(op: GeOp, softmax: Any, gradient: Any) -> Any:
    [axis] = op.attrs.get("axes", [-1])
    product = softmax * gradient
    return product - softmax * product.sum(axis, keepdim=True)


@operator("LogSoftmaxV2")
def _log_softmax(op: GeOp, x: Any) -> Any:
    [axis] = op.attrs.get("axes", [-1])
    return x.log_softmax(axis)


@operator("LogSoftmaxGrad")
def _log_softmax_grad(op: GeOp, gradient: Any, x: Any) -> Any:
    """Return the gradient of LogSoftmaxV2. x: its output."""
    [axis] = op.attrs.get("axis", [-1])
    return gradient - x.exp() * gradient.sum(axis, keepdim=True)


@operator("ReduceLogSumExp")
def _log_sum_exp(op: GeOp, x: Any, axes: Any) -> Any:
    return x.logsumexp(axes_of(op, axes) or list(range(x.dim())), keepdim=op.attrs.get("keep_dims", False))


@operator("ReduceStdWithMean")
def _std_with_mean(op: GeOp, x: Any, mean: Any) -> Any:
    """Return the standard deviation of `x` along axes; with the attribute `invert` its reciprocal.

    mean: the mean, of a shape that broadcasts to that of `x`.
    """
    attrs = op.attrs
    dims = attrs.get("dim", []) or list(range(x.dim()))
    count = math.prod(x.shape[dim] for dim in dims)
    correction = attrs.get("correction", 1) if attrs.get("unbiased", True) else 0
    total = (x.float() - mean.float()).square().sum(dims, keepdim=attrs.get("keepdim", False))
    variance = total / max(count - correction, 0)
    if attrs.get("invert", False):
        return (variance + attrs.get("epsilon", 1e-3)).rsqrt().to(x.dtype)
    return variance.sqrt().to(x.dtype)


@operator("LpNormV2")
def _lp_norm(op: GeOp, x: Any) -> Any:
    attrs = op.attrs
    order = attrs.get("p", 2.0)
    # For an infinite order, torchair writes the largest or smallest int32.
    order = math.copysign(math.inf, order) if abs(order) >= 2**31 - 1 else order
    dims = attrs.get("axes", []) or list(range(x.dim()))
    return torch.linalg.vector_norm(x, order, dims, attrs.get("keepdim", False))
