"""Convolution and pooling on the simulated device, computed with numpy.

Attributes and padding are those of GE's operator prototypes of Conv2D, MaxPool and AvgPool. `size` and `strides` of a
window are pairs (height, width).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    _Array = np.ndarray[Any, Any]

__all__ = ["along_channels", "channel_axis", "convolve", "pool"]

_Attrs = Mapping[str, Any]


def channel_axis(x: _Array, attrs: _Attrs) -> int:
    """Return the axis of the channels in `x`: the last one for NHWC, else 1."""
    return x.ndim - 1 if attrs.get("data_format", "NCHW") == "NHWC" or x.ndim < 2 else 1


def along_channels(x: _Array, count: int, attrs: _Attrs) -> tuple[int, ...]:
    """Return the shape in which `count` values, one for each channel, broadcast over `x`."""
    axis = channel_axis(x, attrs)
    return tuple(count if dim == axis else 1 for dim in range(x.ndim))


def convolve(inputs: Sequence[_Array], attrs: _Attrs) -> _Array:
    """Return a 2D convolution. inputs: x, weight and, optionally, bias.

    attrs: data_format, strides, dilations, groups, and pads or padding.
    """
    x, weight, *bias = inputs
    last = attrs.get("data_format", "NCHW") == "NHWC"
    if last:
        x, weight = x.transpose(0, 3, 1, 2), weight.transpose(3, 2, 0, 1)
    groups = int(attrs.get("groups", 1))
    strides, dilations = _spatial(attrs, "strides", last), _spatial(attrs, "dilations", last)
    size = tuple((kernel - 1) * step + 1 for kernel, step in zip(weight.shape[2:], dilations))
    views = _windows(_pad(x, attrs, size, strides, 0), size, strides)[..., :: dilations[0], :: dilations[1]]
    parts = zip(np.split(views, groups, axis=1), np.split(weight, groups, axis=0))
    result = np.concatenate([np.tensordot(part, kernels, ((1, 4, 5), (1, 2, 3))) for part, kernels in parts], axis=3)
    if bias:
        result = result + bias[0]
    return result if last else result.transpose(0, 3, 1, 2)


def pool(x: _Array, attrs: _Attrs, *, highest: bool) -> _Array:
    """Return the maximum of each window if `highest`, else its mean.

    attrs: data_format, ksize, strides, pads or padding, and ceil_mode. For a mean also `exclusive` and
    `divisor_override`: the sum is divided by the number of elements in the window, which includes the padding only if
    `exclusive` is false; or by `divisor_override`, if that is set.
    """
    result: _Array
    last = attrs.get("data_format", "NCHW") == "NHWC"
    image = x.transpose(0, 3, 1, 2) if last else x
    size, strides = _spatial(attrs, "ksize", last), _spatial(attrs, "strides", last)
    last_pads = _last_windows(image, attrs, size, strides)
    if highest:
        lowest = -np.inf if image.dtype.kind == "f" else np.iinfo(image.dtype).min
        padded = _pad(_pad(image, attrs, size, strides, lowest), {"pads": last_pads}, size, strides, lowest)
        result = _windows(padded, size, strides).max(axis=(4, 5))
    else:
        padded = _pad(_pad(image, attrs, size, strides, 0), {"pads": last_pads}, size, strides, 0)
        ones = _pad(np.ones_like(image[:1, :1]), attrs, size, strides, 0 if attrs.get("exclusive", True) else 1)
        counts = _windows(_pad(ones, {"pads": last_pads}, size, strides, 0), size, strides).sum(axis=(4, 5))
        total = _windows(padded, size, strides).sum(axis=(4, 5))
        result = total / (attrs.get("divisor_override", 0) or counts)
    return result.transpose(0, 2, 3, 1) if last else result


def _last_windows(x: _Array, attrs: _Attrs, size: tuple[int, int], strides: tuple[int, int]) -> list[int]:
    """Return the padding that `ceil_mode` adds: top, bottom, left, right.

    It completes a last window that begins inside the image or its first padding, but reaches beyond the end.
    """
    added = [0, 0, 0, 0]
    if not attrs.get("ceil_mode", False) or attrs.get("padding") == "SAME":
        return added
    pads = [int(pad) for pad in attrs.get("pads", (0, 0, 0, 0))]
    for axis, (window, stride) in enumerate(zip(size, strides)):
        before, after = pads[2 * axis : 2 * axis + 2]
        length = x.shape[2 + axis] + before + after
        windows = -(-(length - window) // stride) + 1
        if (windows - 1) * stride >= x.shape[2 + axis] + before:
            windows -= 1
        added[2 * axis + 1] = max((windows - 1) * stride + window - length, 0)
    return added


def _spatial(attrs: _Attrs, name: str, last: bool) -> tuple[int, int]:
    """Return the numbers for height and width of an attribute. last: it has the channels last (NHWC)."""
    values = [int(value) for value in attrs.get(name, (1, 1, 1, 1))]
    if len(values) == 2:
        return values[0], values[1]
    return (values[1], values[2]) if last else (values[2], values[3])


def _windows(x: _Array, size: tuple[int, int], strides: tuple[int, int]) -> _Array:
    """Return the windows of images, of shape (N, C, output height, output width, *size)."""
    windows: _Array = np.lib.stride_tricks.sliding_window_view(x, size, axis=(2, 3))
    return windows[:, :, :: strides[0], :: strides[1]]


def _pad(x: _Array, attrs: _Attrs, size: tuple[int, int], strides: tuple[int, int], value: float) -> _Array:
    """Return images with the padding of the attribute `padding` (SAME) or `pads`, filled with `value`."""
    if attrs.get("padding") == "SAME":
        edges = []
        for length, window, stride in zip(x.shape[2:], size, strides):
            total = max((-(-length // stride) - 1) * stride + window - length, 0)
            edges.append((total // 2, total - total // 2))
    else:
        top, bottom, left, right = (int(pad) for pad in attrs.get("pads", (0, 0, 0, 0)))
        edges = [(top, bottom), (left, right)]
    return np.pad(x, ((0, 0), (0, 0), *edges), constant_values=value)
