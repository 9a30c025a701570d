"""GE operators for pooling and normalisation, and for their gradients. Images are NCHW."""

from __future__ import annotations

from typing import Any, Optional

import numpy as np
import torch

from ascend_dump.fakes.kernels._ge_table import integers, operator
from ascend_dump.fakes.kernels.ge_model import GeOp
from ascend_dump.fakes.kernels.ge_values import from_array

__all__: list[str] = []

#: Number of outputs whose bits one uint16 of a mask contains.
_MASK_BITS = 16


def _window(op: GeOp) -> tuple[Any, ...]:
    """Return the arguments of ATen's max_pool2d: size, stride, padding, dilation and ceil_mode.

    The attributes of the operator have four numbers each, in the order N, H, W, C.
    """
    attrs = op.attrs
    dilation = attrs.get("dilation", [1, 1, 1, 1])
    ceil = attrs.get("ceil_mode", False)
    return attrs["ksize"][1:3], attrs["strides"][1:3], attrs["pads"][1:3], dilation[1:3], ceil


@operator("MaxPoolWithArgmaxV1")
def _max_pool(op: GeOp, x: Any) -> Any:
    """Return the maximum of each window, and a bit mask of its position in the window.

    (assumption torchair.max_pool_mask)
    """
    window = _window(op)
    values, indices = torch.ops.aten.max_pool2d_with_indices(x, *window)
    return values, _mask(indices, x.shape[-1], window)


def _mask(indices: Any, width: int, window: tuple[Any, ...]) -> Any:
    """Return the mask of MaxPoolWithArgmaxV1: uint16 of shape (N, C, positions in a window, outputs / 16).

    A bit is set if the maximum of its output is at this position of the window. indices: PyTorch's indices in images of
    this width, of shape (N, C, H, W).
    """
    size, stride, pad, dilation, _ = window
    sources = indices.numpy()
    outputs = np.indices(sources.shape[-2:])
    row, column = (
        (coordinate - outputs[axis] * stride[axis] + pad[axis]) // dilation[axis]
        for axis, coordinate in enumerate((sources // width, sources % width))
    )
    chosen = (row * size[1] + column).reshape(*sources.shape[:2], 1, -1)
    bits = chosen == np.arange(size[0] * size[1]).reshape(-1, 1)
    padded = np.pad(bits, [(0, 0)] * 3 + [(0, -bits.shape[-1] % _MASK_BITS)])
    return from_array(np.packbits(padded, axis=-1, bitorder="little").view("<u2"))


@operator("MaxPoolGradWithArgmaxV1")
def _max_pool_grad(op: GeOp, x: Any, gradient: Any, mask: Any) -> Any:
    """Return the gradient. The positions of the maxima are computed again from the image; the mask is not read."""
    window = _window(op)
    indices = torch.ops.aten.max_pool2d_with_indices(x, *window)[1]
    return torch.ops.aten.max_pool2d_with_indices_backward(gradient, x, *window, indices)


def _per_channel(values: Any, x: Any) -> Any:
    """Reshape one value for each channel, so that it broadcasts over the image."""
    return values.reshape([1, -1, *[1] * (x.dim() - 2)])


def _around_channel(x: Any) -> list[int]:
    """Return all axes but that of the channels."""
    return [dim for dim in range(x.dim()) if dim != 1]


@operator("BatchNormV3")
def _batch_norm(op: GeOp, x: Any, scale: Any, offset: Any, mean: Any, variance: Any) -> Any:
    """Return y, the mean and variance that were used, and the moving mean and variance, in torchair's order.

    (assumption torchair.batch_norm_outputs)
    """
    wide = x.float()
    epsilon, momentum = op.attrs.get("epsilon", 1e-5), op.attrs.get("momentum", 0.1)
    if op.attrs.get("is_training", True):
        dims = _around_channel(x)
        count = x.numel() // x.shape[1]
        used_mean, used_variance = wide.mean(dims), wide.var(dims, correction=0)
        unbiased = used_variance * (count / max(count - 1, 1))
        mean = mean * (1 - momentum) + used_mean.to(mean.dtype) * momentum
        variance = variance * (1 - momentum) + unbiased.to(variance.dtype) * momentum
    else:
        used_mean, used_variance = mean, variance
    y = _normalise(wide, scale, offset, used_mean, used_variance, epsilon).to(x.dtype)
    return y, used_mean, used_variance, mean, variance


@operator("BNInfer")
def _bn_infer(op: GeOp, x: Any, scale: Any, offset: Any, mean: Any, variance: Any) -> Any:
    return _normalise(x.float(), scale, offset, mean, variance, op.attrs.get("epsilon", 1e-5)).to(x.dtype)


def _normalise(x: Any, scale: Any, offset: Any, mean: Any, variance: Any, epsilon: float) -> Any:
    factor = scale.float() * (variance.float() + epsilon).rsqrt()
    return (x - _per_channel(mean.float(), x)) * _per_channel(factor, x) + _per_channel(offset.float(), x)


@operator("BNTrainingUpdateGrad", "BN3DTrainingUpdateGrad")
def _bn_update_grad(op: GeOp, gradient: Any, x: Any, mean: Any, variance: Any) -> Any:
    inverse = (variance.float() + op.attrs.get("epsilon", 1e-4)).rsqrt()
    centred = (x.float() - _per_channel(mean.float(), x)) * _per_channel(inverse, x)
    dims = _around_channel(x)
    return (gradient.float() * centred).sum(dims), gradient.float().sum(dims)


@operator("BNTrainingReduceGrad")
def _bn_reduce_grad(
    op: GeOp, gradient: Any, x: Any, by_scale: Any, by_offset: Any, scale: Any, mean: Any, variance: Any
) -> Any:
    count = x.numel() // x.shape[1]
    inverse = (variance.float() + op.attrs.get("epsilon", 1e-4)).rsqrt()
    centred = (x.float() - _per_channel(mean.float(), x)) * _per_channel(inverse, x)
    centred_gradient = gradient.float() - (_per_channel(by_offset, x) + centred * _per_channel(by_scale, x)) / count
    return (centred_gradient * _per_channel(scale.float() * inverse, x)).to(x.dtype)


@operator("BNInferGrad")
def _bn_infer_grad(op: GeOp, gradient: Any, scale: Any, variance: Any) -> Any:
    factor = scale.float() * (variance.float() + op.attrs.get("epsilon", 1e-4)).rsqrt()
    return (gradient.float() * _per_channel(factor, gradient)).to(gradient.dtype)


@operator("LayerNormV4")
def _layer_norm(op: GeOp, x: Any, shape: Any, gamma: Optional[Any] = None, beta: Optional[Any] = None) -> Any:
    return torch.ops.aten.native_layer_norm(x, integers(shape), gamma, beta, op.attrs.get("epsilon", 1e-5))


@operator("LayerNormGradV3")
def _layer_norm_grad(op: GeOp, gradient: Any, x: Any, rstd: Any, mean: Any, gamma: Any) -> Any:
    mask = [True, True, True]
    shape = list(gamma.shape)
    return torch.ops.aten.native_layer_norm_backward(gradient, x, shape, mean, rstd, gamma, gamma, mask)


@operator("GroupNorm")
def _group_norm(op: GeOp, x: Any, gamma: Any, beta: Any) -> Any:
    """Return y, and the mean and variance of each group."""
    groups, epsilon = op.attrs["num_groups"], op.attrs.get("eps", 1e-5)
    number, channels = x.shape[:2]
    size = x.numel() // (number * channels)
    y, mean, _ = torch.ops.aten.native_group_norm(x, gamma, beta, number, channels, size, groups, epsilon)
    return y, mean, x.float().reshape(number, groups, -1).var(-1, correction=0).to(x.dtype)


@operator("RmsNorm")
def _rms_norm(op: GeOp, x: Any, gamma: Any) -> Any:
    dims = list(range(x.dim() - gamma.dim(), x.dim()))
    inverse = (x.float().square().mean(dims, keepdim=True) + op.attrs.get("epsilon", 1e-6)).rsqrt()
    return (x.float() * inverse * gamma.float()).to(x.dtype), inverse
