"""Arguments for ATen operators whose converters declare no cases, and for some that are decomposed before."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Callable

import torch

_Arguments = tuple[Any, ...]


def _f(*shape: int) -> torch.Tensor:
    return torch.randn(*shape)


def _positive(*shape: int) -> torch.Tensor:
    return torch.rand(*shape) + 0.5


def _i(*shape: int, high: int = 3) -> torch.Tensor:
    return torch.randint(0, high, shape)


def _b(*shape: int) -> torch.Tensor:
    return torch.rand(*shape) > 0.5


def _distinct(*shape: int) -> torch.Tensor:
    """No two values are equal, so their order is one."""
    return torch.randperm(torch.Size(shape).numel()).reshape(shape).float()


def _permuted(*shape: int) -> torch.Tensor:
    return torch.randperm(shape[-1]).expand(shape).contiguous()


def _max_pool_backward() -> _Arguments:
    x = _distinct(1, 2, 6, 6)
    y, places = torch.ops.aten.max_pool2d_with_indices(x, [2, 2], [2, 2])
    return _f(*y.shape), x, [2, 2], [2, 2], [0, 0], [1, 1], False, places


def _layer_norm_backward(*, mask: tuple[bool, bool, bool]) -> _Arguments:
    x, weight, bias = _f(4, 3, 8), _f(8), _f(8)
    _, mean, rstd = torch.ops.aten.native_layer_norm(x, [8], weight, bias, 1e-5)
    return _f(4, 3, 8), x, [8], mean, rstd, weight, bias, list(mask)


def _convolution_backward(stride: int, padding: int, groups: int, bias: bool) -> _Arguments:
    x, weight = _f(2, 4, 6, 6), _f(6, 4 // groups, 3, 3)
    settings = ([stride] * 2, [padding] * 2, [1, 1], False, [0, 0], groups)
    y = torch.ops.aten.convolution(x, weight, None, *settings)
    return _f(*y.shape), x, weight, [6] if bias else None, *settings, [True, True, bias]


def _group_norm_backward(*, mask: tuple[bool, bool, bool]) -> _Arguments:
    x, weight = _f(2, 6, 4, 4), _f(6)
    _, mean, rstd = torch.ops.aten.native_group_norm(x, weight, None, 2, 6, 16, 3, 1e-5)
    return _f(2, 6, 4, 4), x, mean, rstd, weight, 2, 6, 16, 3, list(mask)


#: Operator -> makers of arguments. Keywords stand in a dictionary at the end.
_CASES: dict[str, tuple[Callable[[], _Arguments], ...]] = {
    "aten._adaptive_avg_pool2d_backward.default": (
        lambda: (_f(2, 3, 2, 2), _f(2, 3, 6, 6)),
        lambda: (_f(2, 3, 1, 1), _f(2, 3, 5, 7)),
    ),
    "aten._adaptive_avg_pool3d.default": (lambda: (_f(1, 2, 4, 4, 4), [2, 2, 2]),),
    "aten._cdist_forward.default": (lambda: (_f(3, 4), _f(5, 4), 2.0, None),),
    "aten._embedding_bag.default": (
        lambda: (_f(5, 3), _i(6, high=5), torch.tensor([0, 2, 4])),
        lambda: (_f(5, 3), _i(6, high=5), torch.tensor([0, 2, 4]), False, 1),
    ),
    "aten._fft_c2r.default": (lambda: (torch.randn(4, 5, dtype=torch.complex64), [1], 2, 8),),
    "aten._fft_r2c.default": (lambda: (_f(4, 8), [1], 0, True),),
    "aten._local_scalar_dense.default": (lambda: (_f(1),),),
    "aten._native_batch_norm_legit.no_stats": (lambda: (_f(4, 3, 2, 2), _f(3), _f(3), True, 0.1, 1e-5),),
    "aten._pdist_forward.default": (lambda: (_f(4, 3), 2.0),),
    "aten.adaptive_avg_pool1d.default": (lambda: (_f(2, 3, 8), [4]),),
    "aten.add.Scalar": (lambda: (_f(2, 3), 2.5), lambda: (_i(2, 3), 2, 3)),
    "aten.amax.default": (lambda: (_f(2, 3, 4), [1]), lambda: (_f(2, 3, 4), [0, -1], True)),
    "aten.amin.default": (lambda: (_f(2, 3, 4), [1]), lambda: (_f(2, 3, 4), [0, -1], True)),
    "aten.any.dims": (lambda: (_b(2, 3, 4), [0, 2]),),
    "aten.atan2.default": (lambda: (_f(2, 3), _f(2, 3)),),
    "aten.avg_pool1d.default": (lambda: (_f(2, 3, 8), [2], [2]),),
    "aten.avg_pool3d.default": (lambda: (_f(1, 2, 4, 4, 4), [2, 2, 2]),),
    "aten.bitwise_and.Scalar": (lambda: (_i(2, 3, high=9), 5), lambda: (_b(2, 3), True)),
    "aten.bitwise_or.Scalar": (lambda: (_i(2, 3, high=9), 5),),
    "aten.bitwise_xor.Tensor": (lambda: (_i(2, 3, high=9), _i(2, 3, high=9)),),
    "aten.bitwise_xor.Scalar": (lambda: (_i(2, 3, high=9), 5),),
    "aten.clamp.Tensor": (lambda: (_f(2, 3), _f(2, 3) - 1, _f(2, 3) + 1), lambda: (_f(2, 3), _f(3), None)),
    "aten.clone.default": (lambda: (_f(2, 3),),),
    "aten.col2im.default": (lambda: (_f(1, 8, 4), [4, 4], [2, 2], [1, 1], [0, 0], [2, 2]),),
    "aten.convolution_backward.default": (
        lambda: _convolution_backward(1, 1, 1, True),
        lambda: _convolution_backward(2, 0, 1, False),
        lambda: _convolution_backward(1, 1, 2, True),
    ),
    "aten.diagonal.default": (lambda: (_f(3, 4),),),
    "aten.div.Scalar_mode": (lambda: (_f(2, 3), 2.0, {"rounding_mode": "floor"}),),
    "aten.embedding.default": (lambda: (_f(5, 3), _i(2, 4, high=5)), lambda: (_f(5, 3), _i(4, high=5).int(), 1)),
    "aten.embedding_dense_backward.default": (lambda: (_f(2, 4, 3), _i(2, 4, high=5), 5, -1, False),),
    "aten.empty.memory_format": (lambda: ([2, 3],), lambda: ([2, 3], {"dtype": torch.float16})),
    "aten.empty_strided.default": (lambda: ([2, 3], [3, 1]),),
    "aten.expm1.default": (lambda: (_f(2, 3),), lambda: (_f(2, 3).half(),)),
    "aten.fmod.Tensor": (lambda: (_f(2, 3), _positive(2, 3)),),
    "aten.fmod.Scalar": (lambda: (_f(2, 3), 0.7),),
    "aten.full.default": (lambda: ([2, 3], 1.5), lambda: ([2], 3, {"dtype": torch.int64})),
    "aten.index.Tensor": (
        lambda: (_f(4, 5), [_i(3), _i(3)]),
        lambda: (_f(4, 5, 6), [None, _i(3)]),
        lambda: (_f(4, 5, 6), [_i(3), None, _i(3)]),
        lambda: (_f(4, 5), [torch.tensor([True, False, True, True])]),
    ),
    "aten.index_put.default": (
        lambda: (_f(4, 5), [_permuted(4)], _f(4, 5)),
        lambda: (_f(4, 5), [_i(3), _i(3)], _f(3), True),
        lambda: (_f(4, 5), [None, torch.tensor([3, 1])], _f(4, 2)),
    ),
    "aten.isinf.default": (lambda: (torch.tensor([1.0, float("inf"), float("nan"), -float("inf")]),),),
    "aten.isnan.default": (lambda: (torch.tensor([1.0, float("inf"), float("nan")]),),),
    "aten.logical_xor.default": (lambda: (_b(2, 3), _b(2, 3)),),
    "aten.masked_scatter.default": (lambda: (_f(2, 3), _b(2, 3), _f(6)),),
    "aten.max_pool2d_with_indices.default": (
        lambda: (_distinct(1, 2, 6, 6), [2, 2]),
        lambda: (_distinct(2, 2, 7, 7), [3, 3], [2, 2], [1, 1]),
        lambda: (_distinct(2, 2, 7, 7), [2, 2], [2, 2], [0, 0], [1, 1], True),
    ),
    "aten.max_pool2d_with_indices_backward.default": (_max_pool_backward,),
    "aten.max_pool3d_with_indices.default": (lambda: (_distinct(1, 2, 4, 4, 4), [2, 2, 2], [2, 2, 2]),),
    "aten.maximum.default": (lambda: (_f(2, 3), _f(2, 3)), lambda: (_i(2, 3), _i(3))),
    "aten.min.dim": (lambda: (_distinct(3, 4), 1), lambda: (_distinct(3, 4), 0, True)),
    "aten.mm.default": (lambda: (_f(2, 3), _f(3, 4)), lambda: (_f(2, 3).half(), _f(3, 4).half())),
    "aten.native_dropout.default": (lambda: (_f(40, 50), 0.3, True), lambda: (_f(4, 5), 0.3, False)),
    "aten.native_layer_norm_backward.default": (
        lambda: _layer_norm_backward(mask=(True, True, True)),
        lambda: _layer_norm_backward(mask=(True, False, False)),
    ),
    "aten.neg.default": (lambda: (_f(2, 3),), lambda: (_i(2, 3),)),
    "aten.nonzero.default": (lambda: (torch.tensor([[1, 0, 2], [0, 0, 3]]),),),
    "aten.prod.default": (lambda: (_f(2, 3),),),
    "aten.prod.dim_int": (lambda: (_f(2, 3), 1),),
    "aten.randperm.default": (lambda: (7,), lambda: (50, {"dtype": torch.int32})),
    "aten.reflection_pad1d.default": (lambda: (_f(2, 3, 6), [1, 2]),),
    "aten.reflection_pad3d.default": (lambda: (_f(1, 2, 4, 4, 4), [1, 1, 1, 1, 1, 1]),),
    "aten.remainder.Tensor": (lambda: (_f(2, 3), _positive(2, 3)), lambda: (_i(2, 3, high=9), _i(2, 3) + 1)),
    "aten.repeat.default": (lambda: (_f(2, 3), [2, 1]), lambda: (_f(3), [2, 2])),
    "aten.replication_pad2d.default": (lambda: (_f(1, 2, 4, 4), [1, 2, 1, 0]),),
    "aten.replication_pad3d.default": (lambda: (_f(1, 2, 4, 4, 4), [1, 1, 1, 1, 1, 1]),),
    "aten.rsqrt.default": (lambda: (_positive(2, 3),), lambda: (_positive(2, 3).half(),)),
    "aten.scalar_tensor.default": (lambda: (2.5,), lambda: (3, {"dtype": torch.int64})),
    "aten.scatter_reduce.two": (
        lambda: (_f(3, 4), 0, _permuted(3, 3)[:, :3], _f(3, 4), "sum"),
        lambda: (_f(3, 4), 1, _i(3, 4, high=4), _f(3, 4), "amax"),
    ),
    "aten.squeeze.dims": (lambda: (_f(1, 3, 1, 2), [0, 2]),),
    "aten.select.int": (lambda: (_f(3, 4), 0, 1), lambda: (_f(3, 4), 1, -1)),
    "aten.sub.Scalar": (lambda: (_f(2, 3), 1.5),),
    "aten.topk.default": (
        lambda: (_distinct(3, 6), 2),
        lambda: (_distinct(3, 6), 3, 0, False),
    ),
    "aten.trunc.default": (lambda: (_f(2, 3) * 3,),),
    "aten.upsample_bilinear2d.vec": (
        lambda: (_f(1, 2, 4, 4), [8, 8], False, None),
        lambda: (_f(1, 2, 4, 4), [7, 6], True, None),
    ),
    "aten.upsample_nearest2d.vec": (
        lambda: (_f(1, 2, 4, 4), [8, 8], None),
        lambda: (_f(1, 2, 4, 6), None, [2.0, 1.5]),
    ),
    "aten.var.dim": (lambda: (_f(3, 4), [1]), lambda: (_f(3, 4), [0], False, True)),
    "aten.var.correction": (lambda: (_f(3, 4), [1]), lambda: (_f(3, 4), [0, 1], {"correction": 0, "keepdim": True})),
    # Their declared cases are refused by eager mode, or draw what does not fit: a deviation below zero, such indices.
    "aten._log_softmax.default": (lambda: (_f(2, 3), 1, False), lambda: (_f(2, 3).half(), 0, False)),
    "aten._prelu_kernel.default": (lambda: (_f(2, 3), _f(1, 3)),),
    "aten._prelu_kernel_backward.default": (lambda: (_f(2, 3), _f(2, 3), _f(1, 3)),),
    "aten.fill.Tensor": (lambda: (_f(2, 3), torch.tensor(2.5)),),
    "aten.native_group_norm_backward.default": (lambda: _group_norm_backward(mask=(True, True, True)),),
    "aten.scatter.src": (lambda: (_f(3, 4), 1, _permuted(3, 4), _f(3, 4)),),
    # Declared without padding.
    "aten.avg_pool2d.default": (
        lambda: (_f(1, 2, 6, 6), [2, 2]),
        lambda: (_f(1, 2, 6, 7), [3, 3], [2, 2], [1, 1], True),
        lambda: (_f(1, 2, 6, 7), [3, 3], [2, 2], [1, 1], True, False),
        lambda: (_f(1, 2, 6, 7), [3, 3], [2, 2], [1, 1], False, True, 5),
        lambda: (_f(2, 6, 6), [2, 2], [1, 1]),
        lambda: (_f(1, 2, 6, 7).half(), [3, 3], [2, 2], [1, 1]),
    ),
    "aten.avg_pool2d_backward.default": (
        lambda: (_f(1, 2, 3, 3), _f(1, 2, 6, 6), [2, 2], [2, 2], [0, 0], False, True, None),
        lambda: (_f(1, 2, 4, 4), _f(1, 2, 6, 7), [3, 3], [2, 2], [1, 1], True, False, None),
    ),
    # Declared with one bag and no group: transposed, grouped, strided and of three dimensions.
    "aten.convolution.default": (
        lambda: (_f(2, 4, 6, 6), _f(6, 4, 3, 3), _f(6), [1, 1], [1, 1], [1, 1], False, [0, 0], 1),
        lambda: (_f(2, 4, 6, 6), _f(6, 2, 3, 3), None, [2, 2], [0, 1], [1, 1], False, [0, 0], 2),
        lambda: (_f(2, 4, 9), _f(6, 4, 3), _f(6), [2], [1], [1], False, [0], 1),
        lambda: (_f(2, 4, 5, 5), _f(4, 3, 3, 3), _f(3), [2, 2], [1, 1], [1, 1], True, [1, 1], 1),
        lambda: (_f(2, 4, 5, 5), _f(4, 3, 3, 3), None, [2, 2], [1, 1], [1, 1], True, [0, 0], 2),
        lambda: (_f(1, 2, 4, 5, 5), _f(4, 2, 3, 3, 3), _f(4), [1] * 3, [1] * 3, [1] * 3, False, [0] * 3, 1),
        lambda: (_f(1, 2, 4, 5, 5), _f(2, 3, 2, 2, 2), _f(3), [2] * 3, [0] * 3, [1] * 3, True, [0] * 3, 1),
    ),
    # Not of the core set, and often in training programs.
    "aten.gelu_backward.default": (lambda: (_f(2, 3), _f(2, 3)), lambda: (_f(2, 3), _f(2, 3), {"approximate": "tanh"})),
    "aten.index_put_.default": (lambda: (_f(4, 5), [_permuted(4)], _f(4, 5)),),
    "aten.normal_functional.default": (lambda: (_f(40, 50), 1.0, 2.0),),
    "aten.roll.default": (lambda: (_f(4, 5), [1], [0]), lambda: (_f(4, 5), [2, -1], [0, 1])),
    "aten.smooth_l1_loss.default": (lambda: (_f(4, 5), _f(4, 5)), lambda: (_f(4, 5), _f(4, 5), 0, 0.5)),
    "aten.smooth_l1_loss_backward.default": (lambda: (_f(1)[0], _f(4, 5), _f(4, 5), 1, 1.0),),
    "aten.var_mean.correction": (lambda: (_f(3, 4), [1]),),
}
OPERATORS = tuple(_CASES)


#: Operator and output -> not compared: the converter gives something of its own there, and says so.
OF_THE_DEVICE = {
    # 910's mask of bits; "the dtype and shape of output mask are different from cpu's".
    ("aten.native_dropout.default", 1),
    # "A stopgap": the values instead of their places, which its backward operator computes anew.
    ("aten.max_pool2d_with_indices.default", 1),
    # The batch's variance instead of its inverse deviation, which its backward operator takes.
    ("aten._native_batch_norm_legit_functional.default", 2),
}


def cases(name: str) -> Iterator[tuple[_Arguments, dict[str, Any]]]:
    """Arguments for the operator of this name, none for most."""
    for make in _CASES.get(name, ()):
        args = make()
        keywords = args[-1] if isinstance(args[-1], dict) else None
        yield (args, {}) if keywords is None else (args[:-1], keywords)
