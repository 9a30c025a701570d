"""Operators of torch_npu that move tokens: to the experts of a mixture (MoE) and back, and into key and value caches.

In `indices`, each token chooses one or several experts. A *permuted* tensor has one row for each choice, in the order
of the experts.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Optional

import torch

from ascend_dump.fakes.torch_npu._operators import gradient, operator, refuse

__all__: list[str] = []

_Pair = tuple[torch.Tensor, torch.Tensor]


@operator(
    "npu_moe_token_permute(Tensor tokens, Tensor indices, int? num_out_tokens=None, bool padded_mode=False)"
    " -> (Tensor, Tensor)"
)
def _permute(
    tokens: torch.Tensor, indices: torch.Tensor, num_out_tokens: Optional[int] = None, padded_mode: bool = False
) -> _Pair:
    """Return the permuted tokens, and for each choice the number of its row.

    num_out_tokens: the number of rows to return; if negative, this many rows at the end are dropped; 0 or None for all
    rows.
    """
    refuse("npu_moe_token_permute", padded_mode=padded_mode)
    flat = indices.reshape(-1)
    order = torch.argsort(flat, stable=True)
    choices = flat.numel() // tokens.shape[0]
    count = num_out_tokens or flat.numel()
    return tokens[order[:count] // choices], torch.argsort(order).to(torch.int32)


@operator(
    "npu_moe_token_permute_grad_v2(Tensor grad_permuted_tokens, Tensor sorted_indices, int tokens_size_0,"
    " ScalarType tokens_dtype, int num_topK, bool padded_mode=False) -> Tensor"
)
def _permute_grad(
    grad: torch.Tensor,
    sorted_indices: torch.Tensor,
    tokens_size_0: int,
    tokens_dtype: torch.dtype,
    num_topK: int,  # noqa: N803  (op-plugin's name)
    padded_mode: bool = False,
) -> torch.Tensor:
    chosen = _rows(grad, sorted_indices).float()
    return chosen.view(tokens_size_0, num_topK, -1).sum(1).to(tokens_dtype)


def _save_permute(ctx: Any, inputs: Any, output: Any) -> None:
    tokens, indices = inputs[:2]
    ctx.save_for_backward(output[1])
    ctx.mark_non_differentiable(output[1])
    ctx.tokens = (tokens.shape[0], tokens.dtype, 1 if indices.dim() == 1 else indices.shape[-1])


@gradient("npu_moe_token_permute", _save_permute)
def _permute_gradient(ctx: Any, grad: torch.Tensor, indices: Any) -> tuple[Any, ...]:
    return torch.ops.npu.npu_moe_token_permute_grad_v2(grad, *ctx.saved_tensors, *ctx.tokens), None, None, None


def _rows(tokens: torch.Tensor, indices: torch.Tensor) -> torch.Tensor:
    """Return the rows with these numbers. For a number beyond the last row, the result has zeros."""
    kept = indices < tokens.shape[0]
    rows = tokens[torch.where(kept, indices, 0).long()]
    return torch.where(kept.unsqueeze(-1), rows, torch.zeros((), dtype=rows.dtype))


_UNPERMUTE = "Tensor sorted_indices, Tensor? probs=None, bool padded_mode=False, int[]? restore_shape=None"


@operator(f"npu_moe_token_unpermute(Tensor permuted_tokens, {_UNPERMUTE}) -> Tensor")
def _unpermute(
    permuted_tokens: torch.Tensor,
    sorted_indices: torch.Tensor,
    probs: Optional[torch.Tensor] = None,
    padded_mode: bool = False,
    restore_shape: Optional[Sequence[int]] = None,
) -> torch.Tensor:
    """Return for each token the sum of the rows of its choices, each multiplied by its probability in `probs`."""
    refuse("npu_moe_token_unpermute", padded_mode=padded_mode)
    choices = 1 if probs is None else probs.shape[-1]
    rows = _rows(permuted_tokens, sorted_indices).float().view(-1, choices, permuted_tokens.shape[-1])
    weighted = rows if probs is None else rows * probs.float().unsqueeze(-1)
    return weighted.sum(1).to(permuted_tokens.dtype)


@operator(
    "npu_moe_token_unpermute_grad(Tensor permuted_tokens, Tensor grad_unpermuted_tokens, "
    f"{_UNPERMUTE}) -> (Tensor, Tensor)"
)
def _unpermute_grad(
    permuted_tokens: torch.Tensor,
    grad: torch.Tensor,
    sorted_indices: torch.Tensor,
    probs: Optional[torch.Tensor] = None,
    padded_mode: bool = False,
    restore_shape: Optional[Sequence[int]] = None,
) -> _Pair:
    choices = 1 if probs is None else probs.shape[-1]
    wide = grad.float().unsqueeze(1).expand(-1, choices, -1)
    rows = (wide if probs is None else wide * probs.float().unsqueeze(-1)).reshape(-1, grad.shape[-1])
    kept = sorted_indices < permuted_tokens.shape[0]
    dtokens = torch.zeros(permuted_tokens.shape)
    dtokens[sorted_indices[kept].long()] = rows[kept]
    if probs is None:
        return dtokens.to(permuted_tokens.dtype), grad.new_empty(0)
    values = _rows(permuted_tokens, sorted_indices).float().view_as(wide)
    return dtokens.to(permuted_tokens.dtype), (values * wide).sum(-1).to(probs.dtype)


def _save_unpermute(ctx: Any, inputs: Any, output: Any) -> None:
    ctx.save_for_backward(*inputs[:3])
    ctx.has_probs = inputs[2] is not None


@gradient("npu_moe_token_unpermute", _save_unpermute)
def _unpermute_gradient(ctx: Any, grad: torch.Tensor) -> tuple[Any, ...]:
    tokens, indices, probs = ctx.saved_tensors
    dtokens, dprobs = torch.ops.npu.npu_moe_token_unpermute_grad(tokens, grad, indices, probs)
    return dtokens, None, dprobs if ctx.has_probs else None, None, None


@operator("npu_moe_gating_top_k_softmax(Tensor x, Tensor? finished=None, int k=1) -> (Tensor, Tensor, Tensor)")
def _gating(x: torch.Tensor, finished: Optional[torch.Tensor] = None, k: int = 1) -> tuple[torch.Tensor, ...]:
    """Return for each token its `k` highest probabilities, the numbers of their experts, and row numbers.

    The row numbers count all first choices, then all second choices, and so on.
    """
    refuse("npu_moe_gating_top_k_softmax", finished=finished)
    values, experts = torch.softmax(x.float(), -1).topk(k, -1)
    rows = torch.arange(experts.numel(), dtype=torch.int32).view(k, -1).t().contiguous().view(experts.shape)
    return values.to(x.dtype), experts.to(torch.int32), rows


@operator(
    "npu_scatter_pa_kv_cache(Tensor key, Tensor value, Tensor(a!) key_cache, Tensor(b!) value_cache,"
    " Tensor slot_mapping, *, Tensor? compress_lens=None, Tensor? compress_seq_offsets=None, Tensor? seq_lens=None,"
    " str? cache_mode='PA_NZ') -> ()"
)
def _scatter_cache(
    key: torch.Tensor,
    value: torch.Tensor,
    key_cache: torch.Tensor,
    value_cache: torch.Tensor,
    slot_mapping: torch.Tensor,
    *,
    cache_mode: Optional[str] = "PA_NZ",
    **options: Any,
) -> None:
    """Write keys and values of tokens to the slots of their caches.

    A cache has the shape (blocks, tokens, heads, size of a head); in the mode PA_NZ it has the shape (blocks, H / 16,
    tokens, 16), where H is the size of all heads. slot_mapping: for each token block * tokens + position; negative to
    skip the token.
    """
    refuse("npu_scatter_pa_kv_cache", **options)
    for tokens, cache in ((key, key_cache), (value, value_cache)):
        _write(tokens, cache, slot_mapping, nz=cache_mode == "PA_NZ")


@operator(
    "_npu_reshape_and_cache(Tensor key, Tensor value, Tensor(a!) key_cache, Tensor(b!) value_cache,"
    " Tensor slot_indices) -> ()"
)
def _reshape_and_cache(
    key: torch.Tensor,
    value: torch.Tensor,
    key_cache: torch.Tensor,
    value_cache: torch.Tensor,
    slot_indices: torch.Tensor,
) -> None:
    for tokens, cache in ((key, key_cache), (value, value_cache)):
        _write(tokens, cache, slot_indices, nz=False)


def _write(tokens: torch.Tensor, cache: torch.Tensor, slots: torch.Tensor, *, nz: bool) -> None:
    """Write tokens to the slots of a cache. nz: the cache has the shape of the mode PA_NZ."""
    flat = tokens.reshape(tokens.shape[0], -1).to(cache.dtype)
    size = cache.shape[2] if nz else cache.shape[1]
    used = slots.long() >= 0
    block, position = slots.long()[used] // size, slots.long()[used] % size
    if nz:
        cache[block, :, position] = flat[used].view(-1, cache.shape[1], cache.shape[3])
    else:
        cache[block, position] = flat[used].view(-1, *cache.shape[2:])
