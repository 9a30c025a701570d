"""The kernels of the fake MindSpore's operators, written in numpy.

A kernel takes the arrays of its inputs and the operator's attributes, and returns one output or a tuple of outputs. A
kernel that overwrites inputs returns `Changed`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Callable, NamedTuple

import numpy as np

if TYPE_CHECKING:
    _Array = np.ndarray[Any, Any]

__all__ = ["KERNELS", "Changed"]


class Changed(NamedTuple):
    """The result of a kernel that overwrites inputs. inputs: the new value by the index of the input."""

    outputs: Sequence[_Array]
    inputs: Mapping[int, _Array]


def _matmul(a: _Array, b: _Array, transpose_a: _Array, transpose_b: _Array) -> _Array:
    first = np.swapaxes(a, -1, -2) if transpose_a else a
    second = np.swapaxes(b, -1, -2) if transpose_b else b
    return np.asarray(np.matmul(first, second))


def _windows(x: _Array, kernel: Sequence[int], stride: Sequence[int], fill: float, pad: Sequence[int]) -> _Array:
    """Return the windows of the padded images `x`, as an array of shape (N, C, OH, OW, KH, KW).

    fill: the value of the padding. pad: its size at the top, bottom, left and right.
    """
    padded = np.pad(x, ((0, 0), (0, 0), tuple(pad[:2]), tuple(pad[2:])), constant_values=fill)
    windows: _Array = np.lib.stride_tricks.sliding_window_view(padded, tuple(kernel), axis=(2, 3))
    return windows[:, :, :: stride[0], :: stride[1]]


def padding(size: Sequence[int], kernel: Sequence[int], stride: Sequence[int], mode: str, pad: Any) -> list[int]:
    """Return the size of the padding at the top, bottom, left and right. mode: pad_mode `valid`, `same` or `pad`."""
    if mode == "valid":
        return [0, 0, 0, 0]
    if mode == "pad":
        return [pad] * 4 if isinstance(pad, int) else list(pad)
    pads = []
    for length, window, step in zip(size, kernel, stride):
        missing = max((-(-length // step) - 1) * step + window - length, 0)
        pads += [missing // 2, missing - missing // 2]
    return pads


def _conv2d(x: _Array, w: _Array, *, stride: Sequence[int], pad_list: Sequence[int], **_: Any) -> _Array:
    windows = _windows(x, w.shape[2:], stride, 0.0, pad_list)
    return np.ascontiguousarray(np.einsum("nchwij,ocij->nohw", windows, w, optimize=True)).astype(x.dtype)


def _conv2d_filter(dy: _Array, x: _Array, *, kernel: Sequence[int], stride: Any, pad_list: Any, **_: Any) -> _Array:
    windows = _windows(x, kernel, stride, 0.0, pad_list)
    return np.ascontiguousarray(np.einsum("nchwij,nohw->ocij", windows, dy, optimize=True)).astype(x.dtype)


def _spread(parts: _Array, shape: Sequence[int], stride: Sequence[int], pad: Sequence[int]) -> _Array:
    """Return images of this shape: the sum of windows (N, C, OH, OW, KH, KW), each added at its position."""
    n, c, height, width = shape
    out = np.zeros((n, c, height + pad[0] + pad[1], width + pad[2] + pad[3]), parts.dtype)
    rows, columns = parts.shape[2] * stride[0], parts.shape[3] * stride[1]
    for i in range(parts.shape[4]):
        for j in range(parts.shape[5]):
            out[:, :, i : i + rows : stride[0], j : j + columns : stride[1]] += parts[..., i, j]
    return np.ascontiguousarray(out[:, :, pad[0] : pad[0] + height, pad[2] : pad[2] + width])


def _conv2d_input(dy: _Array, w: _Array, *, shape: Any, stride: Any, pad_list: Any, **_: Any) -> _Array:
    parts = np.einsum("nohw,ocij->nchwij", dy, w, optimize=True)
    return _spread(parts, shape, stride, pad_list).astype(dy.dtype)


def _maxpool(x: _Array, *, kernel: Sequence[int], stride: Sequence[int], pad_list: Sequence[int], **_: Any) -> _Array:
    return np.ascontiguousarray(_windows(x, kernel, stride, -np.inf, pad_list).max(axis=(4, 5))).astype(x.dtype)


def _maxpool_grad(x: _Array, y: _Array, dy: _Array, *, kernel: Any, stride: Any, pad_list: Any, **_: Any) -> _Array:
    windows = _windows(x, kernel, stride, -np.inf, pad_list)
    flat = windows.reshape(*windows.shape[:4], -1)
    parts = np.zeros_like(flat)
    np.put_along_axis(parts, flat.argmax(axis=-1)[..., None], dy[..., None], axis=-1)
    return _spread(parts.reshape(windows.shape), x.shape, stride, pad_list)


def _avgpool(x: _Array, *_: _Array, kernel: Sequence[int], stride: Sequence[int], pad_list: Sequence[int]) -> _Array:
    sums = _windows(x, kernel, stride, 0.0, pad_list).sum(axis=(4, 5))
    return np.ascontiguousarray(sums / _covered(x, kernel, stride, pad_list)).astype(x.dtype)


def _covered(x: _Array, kernel: Sequence[int], stride: Sequence[int], pad: Sequence[int]) -> _Array:
    """Return the number of elements of the image, without padding, in each window."""
    return np.asarray(_windows(np.ones((1, 1, *x.shape[2:]), x.dtype), kernel, stride, 0.0, pad).sum(axis=(4, 5)))


def _avgpool_grad(x: _Array, dy: _Array, *, kernel: Any, stride: Any, pad_list: Any, **_: Any) -> _Array:
    shares = dy / _covered(x, kernel, stride, pad_list)
    parts = np.broadcast_to(shares[..., None, None], (*dy.shape, *kernel))
    return _spread(parts.astype(x.dtype), x.shape, stride, pad_list)


def _per_channel(values: _Array, like: _Array) -> _Array:
    """Reshape one value for each channel, so that it broadcasts over `like` (N, C, …)."""
    return values.reshape((1, -1) + (1,) * (like.ndim - 2))


def _batchnorm(x: _Array, gamma: _Array, beta: _Array, mean: _Array, var: _Array, *settings: _Array) -> Any:
    training, eps, momentum = bool(settings[0]), float(settings[1]), float(settings[2])
    axes = (0, *range(2, x.ndim))
    used_mean = x.mean(axis=axes, dtype=np.float32) if training else mean
    used_var = x.var(axis=axes, dtype=np.float32) if training else var
    y = (x - _per_channel(used_mean, x)) / np.sqrt(_per_channel(used_var, x) + eps)
    y = (y * _per_channel(gamma, x) + _per_channel(beta, x)).astype(x.dtype)
    outputs = (y, used_mean, used_var, used_mean, used_var)
    if not training:
        return Changed(outputs, {})
    count = np.float32(x.size // x.shape[1])
    # The unbiased variance; it is NaN if a channel has a single element.
    unbiased_var = used_var * (count / (count - 1))
    return Changed(
        outputs,
        {
            3: (mean * (1 - momentum) + used_mean * momentum).astype(mean.dtype),
            4: (var * (1 - momentum) + unbiased_var * momentum).astype(var.dtype),
        },
    )


def _batchnorm_grad(dy: _Array, x: _Array, gamma: _Array, mean: _Array, var: _Array, *settings: _Array) -> Any:
    training, eps = bool(settings[1]), float(settings[2])
    axes = (0, *range(2, x.ndim))
    scale = 1.0 / np.sqrt(_per_channel(var, x) + eps)
    normal = (x - _per_channel(mean, x)) * scale
    dgamma, dbeta = (dy * normal).sum(axis=axes), dy.sum(axis=axes)
    dx = dy * _per_channel(gamma, x) * scale
    if training:
        count = x.size // x.shape[1]
        inner = dy - _per_channel(dbeta, x) / count - normal * _per_channel(dgamma, x) / count
        dx = inner * _per_channel(gamma, x) * scale
    return dx.astype(x.dtype), dgamma.astype(gamma.dtype), dbeta.astype(gamma.dtype)


def softmax(x: _Array, axis: int = -1) -> _Array:
    shifted = np.exp(x - x.max(axis=axis, keepdims=True))
    return np.asarray((shifted / shifted.sum(axis=axis, keepdims=True)).astype(x.dtype))


def log_softmax(x: _Array, axis: int = -1) -> _Array:
    """Return the logarithm of softmax. Unlike log(softmax(x)), it does not underflow to -Inf."""
    shifted = x - x.max(axis=axis, keepdims=True)
    return np.asarray((shifted - np.log(np.exp(shifted).sum(axis=axis, keepdims=True))).astype(x.dtype))


def _sparse_cross_entropy(logits: _Array, labels: _Array, *, is_grad: bool, exact: bool = False) -> _Array:
    if logits.ndim != 2 or labels.shape != logits.shape[:1]:
        raise ValueError(
            f"Features shape length must be equal to Labels shape length plus 1: {logits.shape}, {labels.shape}"
        )
    if ((labels < 0) | (labels >= logits.shape[1])).any():
        raise ValueError(f"the labels must be in [0, {logits.shape[1]}), but got {labels.tolist()}")
    chances = softmax(logits)
    rows = np.arange(len(labels))
    if exact:
        return np.asarray(-log_softmax(logits)[rows, labels].mean(), logits.dtype)
    if not is_grad:
        return np.asarray(-np.log(chances[rows, labels]).mean(), logits.dtype)
    chances[rows, labels] -= 1
    return (chances / len(labels)).astype(logits.dtype)


def _cross_entropy(logits: _Array, labels: _Array) -> Any:
    chances = softmax(logits)
    loss = -(labels * np.log(np.maximum(chances, np.finfo(np.float32).tiny))).sum(axis=-1)
    return loss.astype(logits.dtype), (chances - labels).astype(logits.dtype)


def _assign_add(variable: _Array, value: _Array) -> Changed:
    new = (variable + value).astype(variable.dtype)
    return Changed((new,), {0: new})


def _assign(variable: _Array, value: _Array) -> Changed:
    new = value.astype(variable.dtype)
    return Changed((new,), {0: new})


def _apply_momentum(
    variable: _Array, moment: _Array, rate: _Array, grad: _Array, momentum: _Array, *, use_nesterov: bool
) -> Changed:
    new_moment = (moment * momentum + grad).astype(variable.dtype)
    step = grad + momentum * new_moment if use_nesterov else new_moment
    new = (variable - rate * step).astype(variable.dtype)
    return Changed((new,), {0: new, 1: new_moment})


def _sgd(
    variable: _Array, grad: _Array, rate: _Array, accum: _Array, momentum: _Array, stat: _Array, **attrs: Any
) -> Any:
    grad = grad + attrs["weight_decay"] * variable if attrs["weight_decay"] else grad
    if not momentum:
        new = (variable - rate * grad).astype(variable.dtype)
        return Changed((new,), {0: new})
    first = stat.reshape(-1)[0] > 0
    new_accum = (grad if first else accum * momentum + (1 - attrs["dampening"]) * grad).astype(variable.dtype)
    step = grad + momentum * new_accum if attrs["nesterov"] else new_accum
    new = (variable - rate * step).astype(variable.dtype)
    return Changed((new,), {0: new, 3: new_accum, 5: np.zeros_like(stat)})


def _adam(variable: _Array, m: _Array, v: _Array, *inputs: _Array, **_: Any) -> Changed:
    beta1_power, beta2_power, rate, beta1, beta2, epsilon, grad = inputs
    new_m = (m * beta1 + (1 - beta1) * grad).astype(variable.dtype)
    new_v = (v * beta2 + (1 - beta2) * grad * grad).astype(variable.dtype)
    step = rate * np.sqrt(1 - beta2_power) / (1 - beta1_power)
    new = (variable - step * new_m / (np.sqrt(new_v) + epsilon)).astype(variable.dtype)
    return Changed((new, new_m, new_v), {0: new, 1: new_m, 2: new_v})


def _reduce(function: Callable[..., Any]) -> Callable[..., Any]:
    def kernel(x: _Array, *_: _Array, axis: Any, keep_dims: bool) -> _Array:
        return np.asarray(function(x, axis=axis, keepdims=keep_dims)).astype(x.dtype)

    return kernel


def _sigmoid(x: _Array) -> _Array:
    return (1.0 / (1.0 + np.exp(-x))).astype(x.dtype)


def _gelu(x: _Array) -> _Array:
    return np.asarray((0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))).astype(x.dtype))


def _erf(x: _Array) -> _Array:
    return np.asarray(np.vectorize(math.erf, otypes=[np.float64])(x).astype(x.dtype))


def _gelu_grad(dy: _Array, x: _Array, y: _Array) -> _Array:
    slope = np.sqrt(2 / np.pi)
    tanh = np.tanh(slope * (x + 0.044715 * x**3))
    inner = slope * (1 + 3 * 0.044715 * x**2)
    return np.asarray((dy * 0.5 * (1 + tanh + x * (1 - tanh**2) * inner)).astype(x.dtype))


def _divide(a: _Array, b: _Array) -> _Array:
    return np.asarray(np.true_divide(a, b), np.float32 if a.dtype.kind in "iub" else a.dtype)


#: Operator type -> kernel. A result that is an array is the only output.
KERNELS: Mapping[str, Callable[..., Any]] = {
    "Add": np.add,
    "Sub": np.subtract,
    "Mul": np.multiply,
    "Div": _divide,
    "RealDiv": _divide,
    "Pow": np.power,
    "Neg": np.negative,
    "Abs": np.abs,
    "Exp": np.exp,
    "Log": np.log,
    "Sqrt": lambda x: np.sqrt(x, dtype=np.float32 if x.dtype.kind in "iub" else x.dtype),
    "Square": np.square,
    "Tanh": np.tanh,
    "GeLUGrad": _gelu_grad,
    "Erf": _erf,
    "TanhGrad": lambda y, dy: dy * (1 - y * y),
    "Sigmoid": _sigmoid,
    "SigmoidGrad": lambda y, dy: dy * y * (1 - y),
    "GeLU": _gelu,
    "ReLU": lambda x: np.maximum(x, x.dtype.type(0)),
    "ReluGrad": lambda dy, y: np.where(y > 0, dy, dy.dtype.type(0)),
    "Equal": np.equal,
    "NotEqual": np.not_equal,
    "Greater": np.greater,
    "GreaterEqual": np.greater_equal,
    "Less": np.less,
    "LessEqual": np.less_equal,
    "Maximum": np.maximum,
    "Minimum": np.minimum,
    "Sign": np.sign,
    "MatMul": _matmul,
    "BatchMatMul": _matmul,
    "BiasAdd": lambda x, bias, data_format: x + _per_channel(bias, x),
    "BiasAddGrad": lambda dy, data_format: dy.sum(axis=(0, *range(2, dy.ndim)), dtype=dy.dtype),
    "Conv2D": _conv2d,
    "Conv2DBackpropFilter": _conv2d_filter,
    "Conv2DBackpropInput": _conv2d_input,
    "MaxPool": _maxpool,
    "MaxPoolGrad": _maxpool_grad,
    "AvgPool": _avgpool,
    "AvgPoolGrad": _avgpool_grad,
    "BatchNorm": _batchnorm,
    "BatchNormGrad": _batchnorm_grad,
    "Softmax": lambda x, axis: softmax(x, int(axis[0])),
    "LogSoftmax": lambda x, axis: log_softmax(x, int(axis)),
    "SparseSoftmaxCrossEntropyWithLogits": _sparse_cross_entropy,
    "SoftmaxCrossEntropyWithLogits": _cross_entropy,
    "Cast": lambda x, *, dtype: x.astype(dtype),
    "Reshape": lambda x, *, shape: x.reshape(shape),
    "Flatten": lambda x: x.reshape(len(x), -1),
    "Transpose": lambda x, *, perm: np.ascontiguousarray(x.transpose(perm)),
    "BroadcastTo": lambda x, *, shape: np.ascontiguousarray(np.broadcast_to(x, shape)),
    "StridedSlice": lambda x, *, key: np.ascontiguousarray(x[key]),
    "StridedSliceGrad": lambda dy, *, shape, key: _scatter(dy, shape, key),
    "Concat": lambda *parts, axis: np.concatenate(parts, axis=axis),
    "ReduceSum": _reduce(np.sum),
    "ReduceMean": _reduce(np.mean),
    "ReduceMax": _reduce(np.max),
    "ReduceMin": _reduce(np.min),
    "Argmax": lambda x, *, axis: np.asarray(np.argmax(x, axis=axis), np.int32),
    "ArgMaxExt": lambda x, *, axis: np.asarray(np.argmax(x, axis=axis), np.int64),
    "AssignAdd": _assign_add,
    "Assign": _assign,
    "AddN": lambda *parts: sum(parts[1:], parts[0]),
    "ApplyMomentum": _apply_momentum,
    "SGD": _sgd,
    "Adam": _adam,
}


def _scatter(dy: _Array, shape: Sequence[int], key: Any) -> _Array:
    out = np.zeros(shape, dy.dtype)
    np.add.at(out, key, dy)
    return out
