"""Own parts of transformers: gated MLP, rotary embedding, mixture of experts, fused projections, Mamba's mixer."""

from __future__ import annotations

import importlib
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from program_pairs.case import Edit, Truth
from program_pairs.edits._swap import swapping
from program_pairs.edits.attention import attend
from program_pairs.program import Program


class FusedMLP(nn.Module):
    """A gated MLP whose gate and up projections are one matrix."""

    def __init__(self, old: Any, flaw: str) -> None:
        super().__init__()
        self.gate_up_proj = nn.Linear(old.hidden_size, 2 * old.intermediate_size, bias=False)
        parts = [old.gate_proj.weight, old.up_proj.weight]
        if flaw == "halves":
            parts.reverse()
        self.gate_up_proj.weight = nn.Parameter(torch.cat([part.detach() for part in parts]))
        self.down_proj, self.act_fn, self.flaw = old.down_proj, old.act_fn, flaw

    def forward(self, x: Tensor) -> Tensor:
        gate, up = self.gate_up_proj(x).chunk(2, dim=-1)
        if self.flaw == "on_both":
            return self.down_proj(self.act_fn(gate) * self.act_fn(up))  # planted: mlp_on_both
        if self.flaw == "on_up":
            return self.down_proj(gate * self.act_fn(up))  # planted: mlp_on_up
        if self.flaw == "sum":
            return self.down_proj(self.act_fn(gate) + up)  # planted: mlp_sum
        if self.flaw == "not_activated":
            return self.down_proj(gate * up)  # planted: mlp_not_activated
        return self.down_proj(up * self.act_fn(gate))  # planted: mlp_halves


def fused_mlp(where: str = ".*mlp", flaw: str = "") -> Edit:
    """Replace gated MLPs by fused ones."""
    edit = swapping("mlp", where, flaw, lambda old: FusedMLP(old, flaw))
    inside = (f"{where}\\.gate_up_proj", f"{where}\\.down_proj", f"{where}\\.act_fn") if flaw == "halves" else ()
    return edit.at(*inside) if flaw else edit


class FusedAttention(nn.Module):
    """Attention of Llama's kind with one matrix for query, key and value, and its own rotation."""

    def __init__(self, old: Any, flaw: str) -> None:
        super().__init__()
        self.head_dim, self.scaling, self.flaw = old.head_dim, old.scaling, flaw
        parts = [old.q_proj.weight, old.k_proj.weight, old.v_proj.weight]
        self.sizes = [part.shape[0] for part in parts]
        self.qkv_proj = nn.Linear(parts[0].shape[1], sum(self.sizes), bias=False)
        self.qkv_proj.weight = nn.Parameter(torch.cat([part.detach() for part in parts]))
        self.o_proj = old.o_proj

    def forward(
        self, hidden_states: Tensor, position_embeddings: Any, attention_mask: Tensor | None = None, **_: Any
    ) -> tuple[Tensor, None]:
        batch, tokens, _width = hidden_states.shape
        parts = self.qkv_proj(hidden_states).split(self.sizes, dim=-1)
        query, key, value = (part.reshape(batch, tokens, -1, self.head_dim).transpose(1, 2) for part in parts)
        if self.flaw == "key_and_value":
            key, value = value, key  # planted: fused_attention_key_and_value
        cos, sin = (part.unsqueeze(1) for part in position_embeddings)
        query = _rotated(query, cos, sin)
        if self.flaw != "key_not_rotated":
            key = _rotated(key, cos, sin)
        if attention_mask is None:
            attention_mask = torch.full((tokens, tokens), float("-inf"), dtype=query.dtype).triu(1)[None, None]
        if self.flaw == "key_not_rotated":
            result = attend(query, key, value, attention_mask, self.scaling)  # planted: fused_attention_key_not_rotated
        else:
            result = attend(query, key, value, attention_mask, self.scaling)
        result = result.transpose(1, 2).reshape(batch, tokens, -1)
        return self.o_proj(result), None


def _rotated(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    half = x.shape[-1] // 2
    turned = torch.cat((-x[..., half:], x[..., :half]), dim=-1)
    return turned * sin + x * cos


def fused_attention(where: str = ".*self_attn", flaw: str = "") -> Edit:
    """Replace attentions of Llama's kind by fused ones."""
    return swapping("fused_attention", where, flaw, lambda old: FusedAttention(old, flaw))


def rotary(family: str, module: str, flaw: str = "") -> Edit:
    """Patch the function that rotates queries and keys."""

    def rotate(query: Tensor, key: Tensor, cos: Tensor, sin: Tensor, unsqueeze_dim: int = 1) -> tuple[Tensor, Tensor]:
        cos, sin = cos.unsqueeze(unsqueeze_dim), sin.unsqueeze(unsqueeze_dim)
        if flaw == "direction":
            return _rotated(query, cos, -sin), _rotated(key, cos, sin)  # planted: rotary_direction
        if flaw == "offset":
            shifted = cos.roll(1, dims=-2), sin.roll(1, dims=-2)  # planted: rotary_offset
            return _rotated(query, *shifted), _rotated(key, cos, sin)  # planted: rotary_offset
        if flaw == "value_of_cos":
            return _rotated(query, sin, cos), _rotated(key, sin, cos)  # planted: rotary_value_of_cos
        if flaw == "interleaved":
            pair = torch.stack((-query[..., 1::2], query[..., ::2]), dim=-1).flatten(-2)  # planted: rotary_interleaved
            return query * cos + pair * sin, _rotated(key, cos, sin)  # planted: rotary_interleaved
        if flaw == "key_lost":
            return _rotated(query, cos, sin), key  # planted: rotary_key_lost
        return _rotated(query, cos, sin), _rotated(key, cos, sin)

    def apply(program: Program) -> None:
        source = importlib.import_module(f"transformers.models.{family}.modeling_{family}")
        program.patches.append((source, "apply_rotary_pos_emb", rotate))

    truth = Truth(modules=(module,), lines=(f"rotary_{flaw}",)) if flaw else None
    return Edit(f"rotary_{flaw}" if flaw else "own_rotary", apply, truth)


class OwnRotaryTable(nn.Module):
    """The table of cosines and sines of a rotary embedding."""

    def __init__(self, old: Any, flaw: str) -> None:
        super().__init__()
        self.inv_freq, self.flaw = nn.Buffer(old.inv_freq.clone(), persistent=False), flaw
        if flaw == "base":
            size = 2 * old.inv_freq.numel()
            base = 500.0 ** (torch.arange(0, size, 2) / size)  # planted: rotary_table_base
            self.inv_freq = nn.Buffer(1 / base, persistent=False)  # planted: rotary_table_base

    def forward(self, x: Tensor, position_ids: Tensor, *_: Any) -> tuple[Tensor, Tensor]:
        positions = position_ids.to(self.inv_freq.dtype)
        if self.flaw == "offset":
            positions = positions + torch.arange(positions.shape[-1]) % 2  # planted: rotary_table_offset
        angles = torch.einsum("bt,f->btf", positions, self.inv_freq)  # planted: rotary_table_base
        if self.flaw == "repeated":
            angles = angles.repeat_interleave(2, dim=-1)  # planted: rotary_table_repeated
        else:
            angles = torch.cat((angles, angles), dim=-1)
        return angles.cos().to(x.dtype), angles.sin().to(x.dtype)


def rotary_table(where: str, flaw: str = "") -> Edit:
    """Replace the module that makes the table of a rotary embedding."""
    return swapping("rotary_table", where, flaw, lambda old: OwnRotaryTable(old, flaw))


class OwnExperts(nn.Module):
    """A mixture of experts that computes all experts for all tokens."""

    def __init__(self, old: Any, flaw: str) -> None:
        super().__init__()
        self.gate_weight = old.gate.weight
        self.gate_up_proj, self.down_proj = old.experts.gate_up_proj, old.experts.down_proj
        self.top_k, self.flaw = old.top_k, flaw

    def forward(self, x: Tensor) -> Tensor:
        flat = x.reshape(-1, x.shape[-1])
        logits = flat @ self.gate_weight.t()
        if self.flaw == "softmax_axis":
            shares = torch.softmax(logits, dim=0)  # planted: experts_softmax_axis
        elif self.flaw == "sigmoid":
            shares = torch.sigmoid(logits)  # planted: experts_sigmoid
        else:
            shares = torch.softmax(logits, dim=-1)
        best, chosen = shares.topk(self.top_k, dim=-1)
        if self.flaw == "not_normalised":
            weights = best  # planted: experts_not_normalised
        elif self.flaw == "one_only":
            best = best * torch.tensor([1.0] + [0.0] * (self.top_k - 1), dtype=best.dtype)  # planted: experts_one_only
            weights = best / best.sum(-1, keepdim=True)
        elif self.flaw == "detached":
            weights = (best / best.sum(-1, keepdim=True)).detach()  # planted: experts_detached
        else:
            weights = best / best.sum(-1, keepdim=True)
        if self.flaw == "order":
            weights = weights.flip(-1)  # planted: experts_order
        table = torch.zeros_like(shares).scatter(1, chosen, weights)
        gate, up = torch.einsum("td,efd->tef", flat, self.gate_up_proj).chunk(2, dim=-1)
        inner = functional.silu(gate) * up
        each = torch.einsum("tef,edf->ted", inner, self.down_proj)
        return torch.einsum("ted,te->td", each, table).reshape(x.shape)


def experts(where: str, flaw: str = "") -> Edit:
    """Replace mixtures of experts by dense ones."""
    return swapping("experts", where, flaw, lambda old: OwnExperts(old, flaw))


class OwnMixer(nn.Module):
    """Mamba's mixer; its recurrence is one product with a table of decays, or a loop."""

    def __init__(self, old: Any, style: str, flaw: str) -> None:
        super().__init__()
        self.in_proj, self.conv1d, self.x_proj = old.in_proj, old.conv1d, old.x_proj
        self.dt_proj, self.out_proj, self.A_log, self.D = old.dt_proj, old.out_proj, old.A_log, old.D
        self.sizes = [old.time_step_rank, old.ssm_state_size, old.ssm_state_size]
        self.style, self.flaw = style, flaw

    def forward(self, x: Tensor, *_: Any, **__: Any) -> Tensor:
        tokens = x.shape[1]
        hidden, gate = self.in_proj(x).transpose(1, 2).chunk(2, dim=1)
        convolved = self.conv1d(hidden)
        if self.flaw == "conv_end":
            convolved = convolved[..., -tokens:]  # planted: mixer_conv_end
        else:
            convolved = convolved[..., :tokens]
        hidden = functional.silu(convolved)
        if self.flaw == "conv_not_activated":
            hidden = convolved  # planted: mixer_conv_not_activated
        step, enter, leave = self.x_proj(hidden.transpose(1, 2)).split(self.sizes, dim=-1)
        step = self.dt_proj(step).transpose(1, 2)
        if self.flaw == "softplus_lost":
            step = torch.relu(step) + 0.01  # planted: mixer_softplus_lost
        else:
            step = functional.softplus(step)
        decay = -torch.exp(self.A_log)
        if self.flaw == "sign_of_a":
            decay = -self.A_log  # planted: mixer_sign_of_a
        rates = decay[None, :, None, :] * step[..., None]
        entered = (step * hidden)[..., None] * enter[:, None]
        states = self._scan(rates, entered)
        result = (states * leave[:, None]).sum(-1)
        if self.flaw == "skip_lost":
            return self.out_proj((result * functional.silu(gate)).transpose(1, 2))  # planted: mixer_skip_lost
        result = result + hidden * self.D[None, :, None]
        if self.flaw == "gate_lost":
            return self.out_proj(result.transpose(1, 2))  # planted: mixer_gate_lost
        return self.out_proj((functional.silu(gate) * result).transpose(1, 2))

    def _scan(self, rates: Tensor, entered: Tensor) -> Tensor:
        if self.flaw == "state_lost":
            return entered + torch.exp(rates) * entered.roll(1, dims=2)  # planted: mixer_state_lost
        if self.style == "loop":
            state, states = torch.zeros_like(entered[:, :, 0]), []
            for token in range(entered.shape[2]):
                state = torch.exp(rates[:, :, token]) * state + entered[:, :, token]
                states.append(state)
            return torch.stack(states, dim=2)
        total = rates.cumsum(2)
        table = total[:, :, :, None] - total[:, :, None]
        tokens = rates.shape[2]
        lower = torch.ones(tokens, tokens, dtype=torch.bool).tril()[None, None, :, :, None]
        return (torch.exp(table.masked_fill(~lower, float("-inf"))) * entered[:, :, None]).sum(3)


def mixer(where: str, flaw: str = "", style: str = "table") -> Edit:
    """Replace Mamba's mixers by own ones."""
    edit = swapping("mixer", where, flaw, lambda old: OwnMixer(old, style, flaw))
    return edit if flaw or style == "table" else Edit(f"own_mixer_{style}", edit.apply)
