"""Own attention functions for transformers, timm and diffusers, right and wrong."""

from __future__ import annotations

import importlib
import math
import re
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from program_pairs.case import Edit, Truth
from program_pairs.edits._swap import short, swapping
from program_pairs.program import Program


def _softmax(scores: Tensor, dim: int) -> Tensor:
    shifted = torch.exp(scores - scores.amax(dim, keepdim=True).detach())
    return shifted / shifted.sum(dim, keepdim=True)


def _repeat_heads(x: Tensor, heads: int, flaw: str) -> Tensor:
    groups = heads // x.shape[1]
    if groups == 1:
        return x
    if flaw == "head_order":
        return x.repeat(1, groups, 1, 1)  # planted: attention_head_order
    return x.repeat_interleave(groups, dim=1)


def attend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,
    scale: float,
    *,
    style: str = "manual",
    flaw: str = "",
    bias: Tensor | None = None,
    softcap: float | None = None,
) -> Tensor:
    """Return the attention of [batch, heads, tokens, size], before the heads are merged."""
    key, value = _repeat_heads(key, query.shape[1], flaw), _repeat_heads(value, query.shape[1], flaw)
    if flaw == "scale":
        scale = scale * scale if scale != 1.0 else 0.5  # planted: attention_scale
    if flaw == "value_from_key":
        value = key  # planted: attention_value_from_key
    if mask is not None and mask.dtype == torch.bool:
        mask = torch.zeros(mask.shape, dtype=query.dtype).masked_fill(~mask, torch.finfo(query.dtype).min)
    if mask is not None and style == "small_mask":
        mask = torch.where(mask < 0, torch.full_like(mask, -1e9), torch.zeros_like(mask))
    if mask is not None and flaw == "mask_value":
        mask = torch.where(
            mask < 0, torch.full_like(mask, -2.0), torch.zeros_like(mask)
        )  # planted: attention_mask_value
    if style == "sdpa" and not flaw and softcap is None:
        added = mask if bias is None else (bias if mask is None else bias + mask)
        return functional.scaled_dot_product_attention(query, key, value, attn_mask=added, scale=scale)
    if style == "einsum":
        scores = torch.einsum("bhqd,bhkd->bhqk", query, key) * scale  # planted: attention_scale
    elif style == "scaled_query":
        scores = (query * scale) @ key.transpose(-1, -2)  # planted: attention_scale
    else:
        scores = query @ key.transpose(-1, -2) * scale  # planted: attention_scale
    if softcap is not None and flaw == "softcap_lost":
        scores = scores.clamp(-50, 50)  # planted: attention_softcap_lost
    elif softcap is not None:
        scores = softcap * torch.tanh(scores / softcap)
    if bias is not None:
        if flaw == "bias_sign":
            scores = scores - bias  # planted: attention_bias_sign
        elif flaw == "bias_transposed":
            scores = scores + bias.transpose(-1, -2)  # planted: attention_bias_transposed
        else:
            scores = bias + scores
    if flaw == "scores_larger":
        scores = scores * 1.5 if mask is None else scores * 1.5 + mask  # planted: attention_scores_larger
    elif flaw == "mask_lost":
        scores = scores + 0.0  # planted: attention_mask_lost
    elif flaw == "mask_multiplied" and mask is not None:
        scores = scores * (mask == 0)  # planted: attention_mask_multiplied
    elif mask is not None:
        scores = scores + mask  # planted: attention_mask_value
    if flaw == "softmax_axis":
        weights = torch.softmax(scores, dim=-2)  # planted: attention_softmax_axis
    elif flaw == "mask_after":
        weights = torch.softmax(scores - mask, dim=-1)  # planted: attention_mask_after
        weights = weights * (mask == 0)  # planted: attention_mask_after
    elif style in ("einsum", "small_mask"):
        weights = _softmax(scores, -1)
    else:
        weights = torch.softmax(scores, dim=-1)
    if flaw == "dropout":
        weights = functional.dropout(weights, 0.1, True)  # planted: attention_dropout
    if flaw == "detached":
        weights = weights.detach()  # planted: attention_detached
    return torch.einsum("bhqk,bhkd->bhqd", weights, value) if style == "einsum" else weights @ value


def _merged(x: Tensor, flaw: str) -> Tensor:
    if flaw == "not_transposed":
        batch, heads, tokens, size = x.shape
        return x.reshape(batch, tokens, heads, size)  # planted: attention_not_transposed
    return x.transpose(1, 2).contiguous()


def _function(style: str, flaw: str, is_meant: Callable[[nn.Module], bool], usual: Any) -> Any:
    def own_attention(
        module: nn.Module,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attention_mask: Tensor | None,
        scaling: float | None = None,
        dropout: float = 0.0,
        **others: Any,
    ) -> tuple[Tensor, None]:
        if not is_meant(module):
            return usual(module, query, key, value, attention_mask, scaling=scaling, dropout=dropout, **others)
        scale = query.shape[-1] ** -0.5 if scaling is None else scaling
        options = {"bias": others.get("position_bias"), "softcap": others.get("softcap")}
        mask = attention_mask
        if mask is not None and mask.dim() == 4:
            mask = mask[..., : key.shape[-2]]
        result = attend(query, key, value, mask, scale, style=style, flaw=flaw, **options)
        return _merged(result, flaw), None

    return own_attention


def attention(family: str, where: str = ".*", flaw: str = "", style: str = "manual") -> Edit:
    """Patch the eager attention function of a family of transformers."""

    def apply(program: Program) -> None:
        names = {id(module): name for name, module in program.model.named_modules()}
        source = importlib.import_module(f"transformers.models.{family}.modeling_{family}")
        usual = source.eager_attention_forward

        def is_meant(module: nn.Module) -> bool:
            return re.fullmatch(where, names.get(id(module), "")) is not None

        for module in program.model.modules():
            if hasattr(getattr(module, "config", None), "_attn_implementation"):
                module.config._attn_implementation = "eager"
        program.patches.append((source, "eager_attention_forward", _function(style, flaw, is_meant, usual)))

    truth = Truth(modules=(where,), lines=(f"attention_{flaw}",)) if flaw else None
    label = f"attention_{flaw}@{short(where)}" if flaw else f"attention_{style}"
    return Edit(label + (f"_{style}" if flaw and style != "manual" else ""), apply, truth)


def library_attention(implementation: str) -> Edit:
    """Choose another attention of transformers: eager or sdpa."""

    def apply(program: Program) -> None:
        for module in program.model.modules():
            if hasattr(getattr(module, "config", None), "_attn_implementation"):
                module.config._attn_implementation = implementation

    return Edit(f"library_{implementation}", apply)


class OwnTimmAttention(nn.Module):
    """Attention of a vision transformer, by hand."""

    def __init__(self, old: Any, style: str, flaw: str) -> None:
        super().__init__()
        self.num_heads, self.head_dim, self.scale = old.num_heads, old.head_dim, old.scale
        self.qkv, self.proj = old.qkv, old.proj
        self.style, self.flaw = style, flaw

    def forward(self, x: Tensor, attn_mask: Tensor | None = None, **_: Any) -> Tensor:
        batch, tokens, width = x.shape
        heads, size = self.num_heads, self.head_dim
        if self.flaw == "qkv_order":
            parts = (
                self.qkv(x).reshape(batch, tokens, heads, 3, size).permute(3, 0, 2, 1, 4)
            )  # planted: attention_qkv_order
        else:
            parts = self.qkv(x).reshape(batch, tokens, 3, heads, size).permute(2, 0, 3, 1, 4)
        query, key, value = parts.unbind(0)
        if self.flaw == "key_and_value":
            key, value = value, key  # planted: attention_key_and_value
        result = attend(query, key, value, attn_mask, self.scale, style=self.style, flaw=self.flaw)
        return self.proj(_merged(result, self.flaw).reshape(batch, tokens, width))


def timm_attention(where: str = ".*attn", flaw: str = "", style: str = "manual") -> Edit:
    """Replace attentions of timm's vision transformers."""
    return swapping("attention", where, flaw, lambda old: OwnTimmAttention(old, style, flaw))


class OwnProcessor:
    """A processor of diffusers' attention."""

    def __init__(self, style: str, flaw: str) -> None:
        self.style, self.flaw = style, flaw

    def __call__(
        self,
        attn: Any,
        hidden_states: Tensor,
        encoder_hidden_states: Tensor | None = None,
        attention_mask: Tensor | None = None,
        temb: Tensor | None = None,
        **_: Any,
    ) -> Tensor:
        residual, shape = hidden_states, hidden_states.shape
        if hidden_states.ndim == 4:
            hidden_states = hidden_states.flatten(2).transpose(1, 2)
        if attn.group_norm is not None:
            hidden_states = attn.group_norm(hidden_states.transpose(1, 2)).transpose(1, 2)
        context = hidden_states if encoder_hidden_states is None else encoder_hidden_states
        if self.flaw == "context" and encoder_hidden_states is not None:
            context = encoder_hidden_states.flip(1).roll(1, 0)  # planted: attention_context
        query, key, value = attn.to_q(hidden_states), attn.to_k(context), attn.to_v(context)
        heads = attn.heads
        query, key, value = (
            part.view(part.shape[0], -1, heads, part.shape[-1] // heads).transpose(1, 2) for part in (query, key, value)
        )
        scale = 1 / math.sqrt(query.shape[-1])
        result = attend(query, key, value, None, scale, style=self.style, flaw=self.flaw)
        result = attn.to_out[0](_merged(result, self.flaw).flatten(2))
        if len(shape) == 4:
            result = result.transpose(-1, -2).reshape(shape)
        if attn.residual_connection and self.flaw != "residual_lost":
            result = residual + result
        if self.flaw == "residual_lost":
            return result / attn.rescale_output_factor  # planted: attention_residual_lost
        return result / attn.rescale_output_factor


def processor(where: str = ".*", flaw: str = "", style: str = "manual") -> Edit:
    """Set another processor in attentions of diffusers."""

    def apply(program: Program) -> None:
        found = False
        for name, module in program.model.named_modules():
            if hasattr(module, "set_processor") and hasattr(module, "to_q") and re.fullmatch(where, name):
                module.set_processor(OwnProcessor(style, flaw))
                found = True
        if not found:
            raise LookupError(f"no attention matches {where}")

    truth = Truth(modules=(where,), lines=(f"attention_{flaw}",)) if flaw else None
    return Edit(f"attention_{flaw}@{short(where)}" if flaw else f"processor_{style}", apply, truth)
