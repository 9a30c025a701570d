"""ATen operators that torch_npu computes in one piece, with their gradients. On a device without
kernels of its own for them, PyTorch composes them of other operators.

They are the matrix product, the attention, and the cells of LSTM and GRU. Sources: op-plugin's derivatives.yaml,
ScaledDotProductAttentionKernelNpuOpApi.cpp (versions from 2.5 on).
"""

from __future__ import annotations

import math
from typing import Any, Callable, Optional

import torch

__all__ = ["composed_operators"]

#: Limits of the fused attention: number of heads, and size of a head.
_MOST_HEADS, _LARGEST_HEAD = 2048, 512
#: Number of rows and columns of the mask that the fused attention takes for a causal mask of any size.
_CAUSAL_MASK = 2048
#: The sparse mode of the fused attention for a causal mask.
_LEFT_UP_CAUSAL = 2


def composed_operators(run: Callable[..., Any]) -> dict[str, tuple[Callable[..., Any], Callable[..., Any]]]:
    """Return two kernels by the name of each operator: one for tensors with gradients, one for tensors without.

    run: runs an operator on the device.
    """
    matmul = torch.ops.aten.matmul.default

    def product(self: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
        return run(matmul, self, other)

    def differentiable_product(self: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
        if torch._C._are_functorch_transforms_active():  # they need PyTorch's own rules
            return matmul.decompose(self, other)
        return _Matmul.apply(self, other)

    return {
        "matmul": (differentiable_product, product),
        "scaled_dot_product_attention": (_attention, _attention),
        "_thnn_fused_lstm_cell": (_lstm_cell, _lstm_cell),
        "_thnn_fused_gru_cell": (_gru_cell, _gru_cell),
    }


class _Matmul(torch.autograd.Function):  # type: ignore[misc]  # torch is not typed where mypy runs
    """The matrix product: one kernel in the forward pass, and one for each of the two gradients."""

    @staticmethod
    def forward(ctx: Any, first: torch.Tensor, second: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(first, second)
        with torch._C._AutoDispatchBelowAutograd():
            return torch.ops.aten.matmul.default(first, second)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[Optional[torch.Tensor], ...]:
        first, second = ctx.saved_tensors
        rows = first.unsqueeze(0) if first.dim() == 1 else first
        columns = second.unsqueeze(1) if second.dim() == 1 else second
        if first.dim() == 1:
            grad = grad.unsqueeze(-1 if second.dim() == 1 else -2)
        if second.dim() == 1:
            grad = grad.unsqueeze(-1)
        grads: list[Optional[torch.Tensor]] = [None, None]
        if ctx.needs_input_grad[0]:
            grads[0] = torch.matmul(grad, columns.mT).sum_to_size(rows.shape).view_as(first)
        if ctx.needs_input_grad[1]:
            if columns.dim() == 2:
                rows, grad = rows.reshape(-1, rows.shape[-1]), grad.reshape(-1, grad.shape[-1])
            grads[1] = torch.matmul(rows.mT, grad).sum_to_size(columns.shape).view_as(second)
        return tuple(grads)


def _attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_mask: Optional[torch.Tensor] = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: Optional[float] = None,
    enable_gqa: bool = False,
) -> torch.Tensor:
    """Compute the attention: by the fused operator if it supports these tensors, else composed of other operators."""
    if attn_mask is not None and attn_mask.dtype not in (torch.bool, query.dtype):
        raise RuntimeError(
            "Expected attn_mask dtype to be bool or to match query dtype, but got "
            f"attn_mask.dtype: {attn_mask.dtype} and  query.dtype: {query.dtype} instead."
        )
    if not _is_fused(query, key, value, attn_mask):
        if attn_mask is not None and attn_mask.dtype == torch.bool:
            mask = torch.zeros_like(attn_mask, dtype=query.dtype)
            attn_mask = mask.masked_fill_(attn_mask.logical_not(), -math.inf)
        return torch.ops.aten._scaled_dot_product_attention_math(
            query, key, value, attn_mask, dropout_p, is_causal, None, scale=scale, enable_gqa=enable_gqa
        )[0]
    if is_causal:
        ones = torch.ones(_CAUSAL_MASK, _CAUSAL_MASK, dtype=torch.bool, device=query.device)
        hidden: Optional[torch.Tensor] = ones.triu(1)
    else:
        hidden = None if attn_mask is None else attn_mask.logical_not()
    return torch.ops.npu.npu_fusion_attention(
        query,
        key,
        value,
        query.shape[1],
        "BNSD",
        atten_mask=hidden,
        scale=1 / math.sqrt(query.shape[-1]) if scale is None else scale,
        keep_prob=1 - dropout_p,
        next_tockens=0 if is_causal else 2147483647,
        sparse_mode=_LEFT_UP_CAUSAL if is_causal else 0,
    )[0]


def _is_fused(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, attn_mask: Optional[torch.Tensor]) -> bool:
    """Return True if torch_npu computes this attention by npu_fusion_attention."""
    if attn_mask is not None and attn_mask.dtype != torch.bool:
        return False
    if any(tensor.dim() != 4 for tensor in (query, key, value)):
        return False
    if query.dtype not in (torch.float16, torch.bfloat16, torch.float32):
        return False
    if query.dtype == torch.float32 and any(tensor.shape[-1] % 4 for tensor in (query, key, value)):
        return False
    heads, key_heads = query.shape[1], key.shape[1]
    return (
        max(heads, key_heads) <= _MOST_HEADS
        and query.shape[-1] <= _LARGEST_HEAD
        and heads >= key_heads
        and not heads % key_heads
    )


def _lstm_cell(
    input_gates: Any, hidden_gates: Any, cx: Any, input_bias: Any = None, hidden_bias: Any = None
) -> tuple[Any, Any, Any]:
    """Compute the cell of an LSTM by other operators, because the host has no kernel for it."""
    gates = input_gates + hidden_gates
    if input_bias is not None:
        gates = gates + input_bias + hidden_bias
    entry, forget, value, output = gates.chunk(4, 1)
    state = forget.sigmoid() * cx + entry.sigmoid() * value.tanh()
    return output.sigmoid() * state.tanh(), state, gates


def _gru_cell(
    input_gates: Any, hidden_gates: Any, hx: Any, input_bias: Any = None, hidden_bias: Any = None
) -> tuple[Any, Any]:
    """Compute the cell of a GRU by other operators, because the host has no kernel for it."""
    first = (input_gates if input_bias is None else input_gates + input_bias).chunk(3, 1)
    second = (hidden_gates if hidden_bias is None else hidden_gates + hidden_bias).chunk(3, 1)
    reset, update = (first[0] + second[0]).sigmoid(), (first[1] + second[1]).sigmoid()
    value = (first[2] + reset * second[2]).tanh()
    return (hx - value) * update + value, hidden_gates
