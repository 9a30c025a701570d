"""Automatic mixed precision for the device: the types in which `torch.autocast("npu")` runs operators.

Source: torch_npu's AutoCastOps.cpp. One difference: torch_npu caches the half-precision copies of weights, here a copy
is made for each use.
"""

from __future__ import annotations

from typing import Any, Callable

import torch

__all__ = ["kernels"]

#: Operators that run in the type of autocast, float16 or bfloat16.
_LOWER = """
_convolution _convolution.deprecated conv1d conv2d conv3d conv_tbc conv_transpose1d conv_transpose2d.input
conv_transpose3d.input convolution prelu addmm addmv addr matmul einsum mm mv linear addbmm baddbmm bmm chain_matmul
linalg_multi_dot _thnn_fused_lstm_cell _thnn_fused_gru_cell lstm_cell gru_cell rnn_tanh_cell rnn_relu_cell
scaled_dot_product_attention
"""
#: Operators that run in float32.
_FLOAT32 = """
acos asin cosh erfinv exp expm1 log log10 log2 log1p reciprocal rsqrt sinh tan pow.Tensor_Scalar pow.Tensor_Tensor
pow.Scalar softplus layer_norm native_layer_norm group_norm frobenius_norm.dim nuclear_norm nuclear_norm.dim
cosine_similarity poisson_nll_loss cosine_embedding_loss nll_loss nll_loss2d hinge_embedding_loss kl_div l1_loss
smooth_l1_loss huber_loss mse_loss margin_ranking_loss multilabel_margin_loss soft_margin_loss triplet_margin_loss
multi_margin_loss binary_cross_entropy_with_logits dist pdist cdist renorm logsumexp norm.Scalar norm.ScalarOpt_dim
"""
#: Operators that run in float32 unless the caller passes a `dtype`.
_FLOAT32_BY_DEFAULT = """
prod prod.dim_int softmax.int log_softmax.int cumprod cumsum linalg_vector_norm linalg_matrix_norm
linalg_matrix_norm.str_ord sum sum.dim_IntList
"""
#: Operators that run in float32 if an argument is float32, else in the type of autocast.
_WIDEST = "addcdiv addcmul atan2 bilinear cross dot grid_sampler index_put tensordot scatter_add"

_EXCLUDED = torch._C.DispatchKeySet(torch._C.DispatchKey.AutocastPrivateUse1)


def kernels() -> dict[str, Callable[[Any], Any]]:
    """Return, by the name of an ATen operator, the function that makes its autocast kernel from the operator."""
    rules = {_LOWER: _lower, _FLOAT32: _float32, _FLOAT32_BY_DEFAULT: _float32_by_default, _WIDEST: _widest}
    by_name = {name: rule for names, rule in rules.items() for name in names.split()}
    return {**by_name, "binary_cross_entropy": _refuse}


def _lower(operator: Any) -> Any:
    def kernel(*args: Any, **kwargs: Any) -> Any:
        return _call(operator, torch.get_autocast_dtype("npu"), args, kwargs)

    return kernel


def _float32(operator: Any) -> Any:
    def kernel(*args: Any, **kwargs: Any) -> Any:
        return _call(operator, torch.float32, args, kwargs)

    return kernel


def _float32_by_default(operator: Any) -> Any:
    names = [argument.name for argument in operator._schema.arguments]

    def kernel(*args: Any, **kwargs: Any) -> Any:
        named = {**dict(zip(names, args)), **kwargs}
        if _is_eligible(args[0]) and named.get("dtype") is None:
            named["dtype"] = torch.float32
        return _call(operator, None, (), named)

    return kernel


def _widest(operator: Any) -> Any:
    def kernel(*args: Any, **kwargs: Any) -> Any:
        leaves = torch.utils._pytree.tree_leaves((args, kwargs))
        wide = any(_is_eligible(leaf) and leaf.dtype == torch.float32 for leaf in leaves)
        return _call(operator, torch.float32 if wide else torch.get_autocast_dtype("npu"), args, kwargs)

    return kernel


def _refuse(operator: Any) -> Any:
    def kernel(*args: Any, **kwargs: Any) -> Any:
        raise RuntimeError(
            "torch.nn.functional.binary_cross_entropy and torch.nn.BCELoss are unsafe to autocast.\n"
            "Use torch.nn.functional.binary_cross_entropy_with_logits or torch.nn.BCEWithLogitsLoss, which are safe."
        )

    return kernel


def _call(operator: Any, dtype: Any, args: Any, kwargs: Any) -> Any:
    with torch._C._ExcludeDispatchKeyGuard(_EXCLUDED):
        if dtype is None:
            return operator(*args, **kwargs)
        return operator(*(_cast(value, dtype) for value in args), **{k: _cast(v, dtype) for k, v in kwargs.items()})


def _cast(value: Any, dtype: torch.dtype) -> Any:
    if isinstance(value, (list, tuple)):
        return [_cast(item, dtype) for item in value]
    return value.to(dtype) if _is_eligible(value) else value


def _is_eligible(value: Any) -> bool:
    return (
        isinstance(value, torch.Tensor)
        and value.device.type == "npu"
        and value.is_floating_point()
        and value.dtype != torch.float64
    )
