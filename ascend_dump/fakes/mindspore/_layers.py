"""Layers and losses of the fake MindSpore (`mindspore.nn`).

Each layer runs the same operators as MindSpore's layer does in dumps of MindSpore 2.10.0.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Callable, Optional, Union

import numpy as np

from ascend_dump import NotSupported
from ascend_dump.fakes.mindspore import _functions as ops
from ascend_dump.fakes.mindspore._cell import Cell
from ascend_dump.fakes.mindspore._functions import call, execute
from ascend_dump.fakes.mindspore._kernels import padding
from ascend_dump.fakes.mindspore._types import Parameter, Tensor, initializer

__all__ = ["LAYERS"]

_NCHW = np.asarray(0, np.int64)
_PAD_MODES = {"same": 1, "valid": 2}
_MODES = ("valid", "same", "pad")


class ReLU(Cell):
    def construct(self, input: Any) -> Tensor:
        return call("ReLU", input)


class Sigmoid(Cell):
    def construct(self, input: Any) -> Tensor:
        return call("Sigmoid", input)


class Tanh(Cell):
    def construct(self, input: Any) -> Tensor:
        return call("Tanh", input)


class GELU(Cell):
    def construct(self, input: Any) -> Tensor:
        return call("GeLU", input)


class Softmax(Cell):
    def __init__(self, axis: int = -1) -> None:
        super().__init__()
        self.axis = axis

    def construct(self, input: Any) -> Tensor:
        return ops.softmax(input, self.axis)


class LogSoftmax(Cell):
    def __init__(self, axis: int = -1) -> None:
        super().__init__()
        self.axis = axis

    def construct(self, logits: Any) -> Tensor:
        return ops.log_softmax(logits, self.axis)


class Flatten(Cell):
    def construct(self, x: Any) -> Tensor:
        if x.ndim < 2:
            raise ValueError("'start_dim' or 'end_dim' out of range.")
        return ops.flatten(x)


class Identity(Cell):
    def construct(self, x: Any) -> Any:
        return x


class Dropout(Cell):
    def __init__(self, keep_prob: float = 1.0, p: Optional[float] = None) -> None:
        super().__init__()
        self.p = 1.0 - keep_prob if p is None else p

    def construct(self, x: Any) -> Any:
        if self.training and self.p:
            raise NotSupported("the fake MindSpore has no random operators", hint="use nn.Dropout(p=0.0)")
        return x


_ACTIVATIONS = {"relu": ReLU, "sigmoid": Sigmoid, "tanh": Tanh, "gelu": GELU, "softmax": Softmax}


class Dense(Cell):
    """`nn.Dense`: `x @ weight.T`, plus a bias, and an activation. The weight has the shape (out, in)."""

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        weight_init: Any = None,
        bias_init: Any = None,
        has_bias: bool = True,
        activation: Union[str, Cell, None] = None,
        dtype: Any = None,
    ) -> None:
        super().__init__()
        self.in_channels, self.out_channels, self.has_bias = in_channels, out_channels, has_bias
        init = "he_uniform" if weight_init is None else weight_init
        if isinstance(init, Tensor) and init.shape != (out_channels, in_channels):
            raise ValueError(
                f"For 'Dense', weight init shape error: expected {(out_channels, in_channels)}, but got {init.shape}."
            )
        if isinstance(activation, str) and activation not in _ACTIVATIONS:
            raise NotSupported(
                f"the fake MindSpore has no activation {activation!r} for Dense",
                hint=f"pass a cell, or one of {', '.join(_ACTIVATIONS)}",
            )
        self.weight = Parameter(initializer(init, (out_channels, in_channels), dtype), name="weight")
        if has_bias:
            init = "zeros" if bias_init is None else bias_init
            self.bias = Parameter(initializer(init, (out_channels,), dtype), name="bias")
        self.activation = _ACTIVATIONS[activation]() if isinstance(activation, str) else activation

    def construct(self, x: Tensor) -> Tensor:
        leading = x.shape[:-1]
        if x.ndim != 2:
            x = ops.reshape(x, (-1, x.shape[-1]))
        x = ops.matmul_kernel(x, self.weight, False, True)
        if self.has_bias:
            x = ops.bias_add(x, self.bias)
        if self.activation is not None:
            x = self.activation(x)
        return x if len(leading) == 1 else ops.reshape(x, (*leading, self.out_channels))


def _pair(value: Union[int, Sequence[int]]) -> tuple[int, int]:
    return (value, value) if isinstance(value, int) else (value[0], value[1])


class Conv2d(Cell):
    """`nn.Conv2d` in the data format NCHW, without groups and dilation."""

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: Union[int, Sequence[int]],
        stride: Union[int, Sequence[int]] = 1,
        pad_mode: str = "same",
        padding: Any = 0,
        dilation: int = 1,
        group: int = 1,
        has_bias: bool = False,
        weight_init: Any = None,
        bias_init: Any = None,
        data_format: str = "NCHW",
        dtype: Any = None,
    ) -> None:
        super().__init__()
        if dilation != 1 or group != 1 or data_format != "NCHW":
            raise NotSupported(
                "the fake MindSpore convolves with dilation 1, group 1 and data_format NCHW only",
                hint="leave out dilation, group and data_format",
            )
        if pad_mode not in _MODES:
            raise ValueError(f"For 'Conv2D', the 'pad_mode' must be in {list(_MODES)}, but got {pad_mode!r}.")
        if pad_mode != "pad" and np.any(padding):
            raise ValueError(
                "For 'Conv2D', the 'pad' must be zero when 'pad_mode' is not 'pad', "
                f"but got 'pad': {padding} and 'pad_mode': {pad_mode}."
            )
        self.kernel_size, self.stride = _pair(kernel_size), _pair(stride)
        self.pad_mode, self.padding, self.has_bias = pad_mode, padding, has_bias
        init = "he_uniform" if weight_init is None else weight_init
        shape = (out_channels, in_channels, *self.kernel_size)
        self.weight = Parameter(initializer(init, shape, dtype), name="weight")
        if has_bias:
            init = "zeros" if bias_init is None else bias_init
            self.bias = Parameter(initializer(init, (out_channels,), dtype), name="bias")

    def construct(self, x: Tensor) -> Tensor:
        pads = tuple(padding(x.shape[2:], self.kernel_size, self.stride, self.pad_mode, self.padding))
        y = execute("Conv2D", x, self.weight, kernel=self.kernel_size, stride=self.stride, pad_list=pads)[0]
        return ops.bias_add(y, self.bias) if self.has_bias else y


class _Pool(Cell):
    def __init__(self, kernel_size: Any = 1, stride: Any = 1, pad_mode: str = "valid", padding: Any = 0) -> None:
        super().__init__()
        self.kernel_size, self.stride, self.pad_mode = _pair(kernel_size), _pair(stride), pad_mode.lower()
        if self.pad_mode == "pad":
            raise NotSupported("the fake MindSpore pools with pad_mode same and valid only", hint="use 'same'")
        if self.pad_mode not in _PAD_MODES:
            raise ValueError(
                f"For {self.cls_name!r}, the 'pad_mode' must be in {list(_MODES)}, but got {self.pad_mode!r}."
            )

    def _attrs(self, x: Tensor) -> dict[str, Any]:
        pads = tuple(padding(x.shape[2:], self.kernel_size, self.stride, self.pad_mode, 0))
        return {"kernel": self.kernel_size, "stride": self.stride, "pad_list": pads}


class MaxPool2d(_Pool):
    def construct(self, x: Tensor) -> Tensor:
        return execute("MaxPool", x, **self._attrs(x))[0]


class AvgPool2d(_Pool):
    def construct(self, x: Tensor) -> Tensor:
        mode = np.asarray(_PAD_MODES[self.pad_mode], np.int64)
        sizes = (np.asarray(self.kernel_size, np.int64), np.asarray(self.stride, np.int64))
        return execute("AvgPool", x, *sizes, mode, _NCHW, **self._attrs(x))[0]


class BatchNorm2d(Cell):
    def __init__(self, num_features: int, eps: float = 1e-5, momentum: float = 0.9, affine: bool = True) -> None:
        super().__init__()
        if not 0 <= momentum <= 1:
            raise ValueError(
                f"For {self.cls_name!r}, the 'momentum' must be a number in range [0, 1], but got {momentum}."
            )
        self.eps, self.momentum = eps, 1.0 - momentum
        ones, zeros = initializer("ones", (num_features,)), initializer("zeros", (num_features,))
        self.moving_mean = Parameter(zeros, name="moving_mean", requires_grad=False)
        self.moving_variance = Parameter(ones, name="moving_variance", requires_grad=False)
        self.gamma = Parameter(ones, name="gamma", requires_grad=affine)
        self.beta = Parameter(zeros, name="beta", requires_grad=affine)

    def construct(self, x: Tensor) -> Tensor:
        if x.ndim != 4:
            raise ValueError(f"For 'BatchNorm2d', the in_shape must have 4 dims, but got {x.ndim}.")
        return self._normalised(x)

    def _normalised(self, x: Tensor) -> Tensor:
        numbers = (np.asarray(self.eps, np.float32), np.asarray(self.momentum, np.float32))
        return execute(
            "BatchNorm",
            x,
            self.gamma,
            self.beta,
            self.moving_mean,
            self.moving_variance,
            np.asarray(self.training),
            *numbers,
            _NCHW,
        )[0]


class BatchNorm1d(BatchNorm2d):
    def construct(self, x: Tensor) -> Tensor:
        y = self._normalised(ops.reshape(x, (*x.shape, 1, 1)))
        return ops.reshape(y, x.shape)


class _Loss(Cell):
    def __init__(self, reduction: str = "mean") -> None:
        super().__init__()
        if reduction not in ("mean", "sum", "none"):
            raise ValueError(
                f"For {self.cls_name!r}, the 'reduction' must be in ['mean', 'sum', 'none'], but got {reduction}."
            )
        self.reduction = reduction

    def get_loss(self, x: Tensor) -> Tensor:
        axes = tuple(range(x.ndim))
        if self.reduction == "mean":
            return ops.mean(x, axes)
        return ops.reduce_sum(x, axes) if self.reduction == "sum" else x


class MSELoss(_Loss):
    def construct(self, logits: Any, labels: Any) -> Tensor:
        return self.get_loss(ops.square(ops.sub(logits, labels)))


class L1Loss(_Loss):
    def construct(self, logits: Any, labels: Any) -> Tensor:
        return self.get_loss(ops.absolute(ops.sub(logits, labels)))


class SoftmaxCrossEntropyWithLogits(_Loss):
    def __init__(self, sparse: bool = False, reduction: str = "none") -> None:
        super().__init__(reduction)
        self.sparse = sparse

    def construct(self, logits: Tensor, labels: Tensor) -> Tensor:
        if self.sparse:
            if self.reduction != "mean":
                raise NotSupported(
                    "the fake MindSpore computes the sparse loss only with reduction='mean'",
                    hint="use reduction='mean'",
                )
            return execute("SparseSoftmaxCrossEntropyWithLogits", logits, labels, is_grad=False)[0]
        return self.get_loss(execute("SoftmaxCrossEntropyWithLogits", logits, labels)[0])


class CrossEntropyLoss(_Loss):
    def construct(self, logits: Tensor, labels: Tensor) -> Tensor:
        if self.reduction != "mean":
            raise NotSupported(
                "the fake MindSpore computes CrossEntropyLoss only with reduction='mean'", hint="use reduction='mean'"
            )
        if labels.array.dtype.kind in "iu" and labels.array.dtype != np.int32:
            raise TypeError(f"For 'CrossEntropyLoss', the 'labels' should be Int32, but got {labels.dtype}.")
        return ops.cross_entropy(logits, labels)


LAYERS: dict[str, Callable[..., Cell]] = {
    layer.__name__: layer
    for layer in (
        *(ReLU, Sigmoid, Tanh, GELU, Softmax, LogSoftmax, Flatten, Identity, Dropout, Dense, Conv2d),
        *(MaxPool2d, AvgPool2d, BatchNorm2d, BatchNorm1d),
        *(MSELoss, L1Loss, SoftmaxCrossEntropyWithLogits, CrossEntropyLoss),
    )
}
