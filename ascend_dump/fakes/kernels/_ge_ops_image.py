"""GE operators that resize, sample and pad images, pooling of volumes, and gradients of pooling.

Images are NCHW, and volumes NCDHW.
"""

from __future__ import annotations

from typing import Any, Optional

import torch

from ascend_dump import NotSupported
from ascend_dump.fakes.kernels._ge_table import integers, operator
from ascend_dump.fakes.kernels.ge_model import GeOp

__all__: list[str] = []


def _require_asymmetric(op: GeOp) -> None:
    """Raise NotSupported for modes of resizing other than "source index = floor(index * scale)".

    torchair uses no other mode.
    """
    modes = [name for name in ("align_corners", "half_pixel_centers") if op.attrs.get(name, False)]
    if modes:
        raise NotSupported(
            f"{op.type} {op.name!r} has {', '.join(modes)}, which the simulated device does not support",
            hint="leave out align_corners and half_pixel_centers: only PyTorch's mode `nearest` is simulated",
        )


@operator("ResizeNearestNeighborV2")
def _resize_nearest(op: GeOp, x: Any, size: Any) -> Any:
    _require_asymmetric(op)
    return torch.ops.aten.upsample_nearest2d(x, integers(size))


@operator("ResizeNearestNeighborV2Grad")
def _resize_nearest_gradient(op: GeOp, gradient: Any, size: Any) -> Any:
    _require_asymmetric(op)
    shape = [*gradient.shape[:2], *integers(size)]
    return torch.ops.aten.upsample_nearest2d_backward(gradient, list(gradient.shape[2:]), shape)


_INTERPOLATIONS = ("bilinear", "nearest", "bicubic")
_BORDERS = ("zeros", "border", "reflection")


def _sampling_arguments(op: GeOp) -> tuple[int, int, bool]:
    attrs = op.attrs
    interpolation = _INTERPOLATIONS.index(attrs.get("interpolation_mode", "bilinear"))
    return interpolation, _BORDERS.index(attrs.get("padding_mode", "zeros")), attrs.get("align_corners", False)


@operator("GridSampler2D")
def _sample_2d(op: GeOp, x: Any, grid: Any) -> Any:
    return torch.ops.aten.grid_sampler_2d(x, grid, *_sampling_arguments(op))


@operator("GridSampler2DGrad")
def _sample_2d_gradient(op: GeOp, gradient: Any, x: Any, grid: Any) -> Any:
    return torch.ops.aten.grid_sampler_2d_backward(gradient, x, grid, *_sampling_arguments(op), [True, True])


@operator("GridSampler3D")
def _sample_3d(op: GeOp, x: Any, grid: Any) -> Any:
    return torch.ops.aten.grid_sampler_3d(x, grid, *_sampling_arguments(op))


def _pairs(paddings: Any) -> list[tuple[int, int]]:
    """Return the widths of the padding before and after each axis."""
    widths = integers(paddings)
    return list(zip(widths[::2], widths[1::2]))


def _pad(x: Any, pairs: list[tuple[int, int]], mode: str, value: float = 0.0) -> Any:
    """Return a tensor with padding. pairs: its widths before and after each axis.

    mode: constant, edge, reflect or symmetric. In the modes other than constant, one axis after the other is padded, so
    that corners are filled with elements of the padding of earlier axes.
    """
    if mode == "constant":
        widths = [width for pair in reversed(pairs) for width in pair]  # torch counts from the last axis
        return torch.nn.functional.pad(x, widths, value=value)
    for axis, (before, after) in enumerate(pairs):
        indices = torch.arange(-before, x.shape[axis] + after)
        x = x.index_select(axis, _source_indices(indices, x.shape[axis], mode))
    return x


def _source_indices(indices: Any, length: int, mode: str) -> Any:
    """Return for each index, which may be outside of 0 … length - 1, the index of the element that is copied to it."""
    if mode == "edge":
        return indices.clamp(0, length - 1)
    if mode == "reflect":  # the outermost element is not repeated
        return (length - 1 - (indices.abs() - (length - 1)).abs()).clamp(0, length - 1)
    indices = indices.where(indices >= 0, -1 - indices)
    return indices.where(indices < length, 2 * length - 1 - indices)


@operator("PadV3", "Pad")
def _pad_v3(op: GeOp, x: Any, paddings: Any, value: Optional[Any] = None) -> Any:
    mode = _padding_mode(op, "constant", "edge", "reflect")
    return _pad(x, _pairs(paddings), mode, 0.0 if value is None else value.item())


def _padding_mode(op: GeOp, default: str, *alternatives: str) -> str:
    """Return the padding mode of an operator.

    Raises NotSupported for modes other than these, and if the widths are not ordered axis by axis.
    """
    mode: str = op.attrs.get("mode", default)
    if mode not in (default, *alternatives) or not op.attrs.get("paddings_contiguous", True):
        raise NotSupported(
            f"{op.type} {op.name!r} pads with a mode or order that the simulated device lacks",
            hint=f"use {', '.join(alternatives)} or {default}, with the two widths of an axis side by side",
        )
    return mode


@operator("MirrorPad")
def _mirror_pad(op: GeOp, x: Any, paddings: Any) -> Any:
    return _pad(x, _pairs(paddings), {"REFLECT": "reflect", "SYMMETRIC": "symmetric"}[op.attrs["mode"]])


@operator("PadV3Grad")
def _pad_gradient(op: GeOp, gradient: Any, paddings: Any) -> Any:
    """Return the gradient of padding in the modes reflect and edge: for each element the sum over all its copies."""
    pairs, mode = _pairs(paddings), _padding_mode(op, "reflect", "edge")
    shape = [size - before - after for size, (before, after) in zip(gradient.shape, pairs)]
    indices = _pad(torch.arange(torch.Size(shape).numel()).reshape(shape), pairs, mode)
    sums = gradient.new_zeros(torch.Size(shape).numel(), dtype=torch.float64)
    return sums.index_add(0, indices.flatten(), gradient.double().flatten()).reshape(shape).to(gradient.dtype)


@operator("AdaptiveAvgPool2d")
def _adaptive_avg_pool(op: GeOp, x: Any) -> Any:
    return torch.nn.functional.adaptive_avg_pool2d(x, op.attrs["output_size"])


@operator("AdaptiveAvgPool2dGrad")
def _adaptive_avg_pool_gradient(op: GeOp, gradient: Any) -> Any:
    x = gradient.new_empty(integers(op.attrs["orig_input_shape"]))
    return torch.ops.aten._adaptive_avg_pool2d_backward(gradient, x)


@operator("AvgPoolV2Grad")
def _avg_pool_gradient(op: GeOp, shape: Any, gradient: Any) -> Any:
    attrs = op.attrs
    if attrs.get("data_format", "NCHW") != "NCHW" or attrs.get("padding_mode", "CALCULATED") != "CALCULATED":
        raise NotSupported(
            f"{op.type} {op.name!r} has a layout or padding that the simulated device lacks",
            hint="use NCHW with padding_mode CALCULATED",
        )
    top, _, left, _ = attrs["pads"]
    return torch.ops.aten.avg_pool2d_backward(
        gradient,
        gradient.new_empty(integers(shape)),
        attrs["ksize"][2:],
        attrs["strides"][2:],
        [top, left],
        attrs.get("ceil_mode", False),
        not attrs.get("exclusive", True),
        attrs.get("divisor_override", 0) or None,
    )


@operator("MaxPool3DWithArgmaxV2")
def _max_pool_3d(op: GeOp, x: Any) -> Any:
    attrs = op.attrs
    window = [attrs[name] for name in ("ksize", "strides", "pads")]
    options = (attrs.get("dilation", [1, 1, 1]), attrs.get("ceil_mode", False))
    values, indices = torch.ops.aten.max_pool3d_with_indices(x, *window, *options)
    return values, indices.int()
