"""Qwen3 of transformers, and a port with fused projections, one rotation table, and a fused attention kernel."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers import Qwen3Config, Qwen3ForCausalLM

from port_programs.program import (
    Network,
    Program,
    Truth,
    parameter_of,
    train_clearing_before_backward,
    train_clearing_first,
    with_state,
)

_SETTINGS = {
    "vocab_size": 64,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 64,
    "tie_word_embeddings": False,
    "rope_theta": 10000.0,
}


def _tokens() -> Tensor:
    return torch.randint(0, 64, (2, 12), generator=torch.Generator().manual_seed(5))


def reference() -> Program:
    model = Qwen3ForCausalLM(Qwen3Config(**_SETTINGS, attn_implementation="eager"))
    model.train()
    tokens = _tokens()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    return Program(model, train_clearing_first(optimizer, lambda: model(input_ids=tokens, labels=tokens).loss))


class Norm(nn.Module):
    """Root mean square norm as a library call."""

    def __init__(self, weight: Tensor, eps: float = 1e-6) -> None:
        super().__init__()
        self.gain = parameter_of(weight)
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        return functional.rms_norm(x, x.shape[-1:], self.gain, self.eps)


def _rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    first, second = x[..., :4], x[..., 4:]
    return torch.cat([first * cos - second * sin, second * cos + first * sin], -1)  # place: qwen3_rope


class Block(nn.Module):
    """Attention and feed-forward of one layer."""

    def __init__(self, layer: nn.Module, fault: str) -> None:
        super().__init__()
        self.fault = fault
        attention, mlp = layer.self_attn, layer.mlp
        self.qkv = parameter_of(torch.cat([attention.q_proj.weight, attention.k_proj.weight, attention.v_proj.weight]))
        self.out = with_state(nn.Linear(32, 32, bias=False), attention.o_proj)
        self.query_norm, self.key_norm = Norm(attention.q_norm.weight), Norm(attention.k_norm.weight)
        self.norm1, self.norm2 = Norm(layer.input_layernorm.weight), Norm(layer.post_attention_layernorm.weight)
        self.gate_up = parameter_of(torch.cat([mlp.gate_proj.weight, mlp.up_proj.weight]))
        self.down = with_state(nn.Linear(48, 32, bias=False), mlp.down_proj)

    def forward(self, hidden: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        batch, length, _ = hidden.shape
        query, key, value = functional.linear(self.norm1(hidden), self.qkv).split([32, 16, 16], -1)
        query = self.query_norm(query.view(batch, length, 4, 8))
        key = self.key_norm(key.view(batch, length, 2, 8))
        value = value.view(batch, length, 2, 8)
        cos_query, sin_query = cos[:length, None], sin[:length, None]
        cos_key, sin_key = cos_query, sin_query
        if self.fault == "rope":
            cos_key, sin_key = cos[1 : length + 1, None], sin[1 : length + 1, None]  # planted: qwen3_rope
        query = _rotate(query, cos_query, sin_query)
        key = _rotate(key, cos_key, sin_key)  # place: qwen3_rope
        mixed = functional.scaled_dot_product_attention(
            query.transpose(1, 2), key.transpose(1, 2), value.transpose(1, 2), is_causal=True, enable_gqa=True
        )
        hidden = hidden + self.out(mixed.transpose(1, 2).reshape(batch, length, 32))
        gate, up = functional.linear(self.norm2(hidden), self.gate_up).chunk(2, -1)  # place: qwen3_swap
        if self.fault == "swap":
            product = functional.silu(up) * gate  # planted: qwen3_swap
        else:
            product = functional.silu(gate) * up
        return hidden + self.down(product)


class Port(nn.Module):
    """The port; it returns the loss."""

    def __init__(self, source: nn.Module, fault: str) -> None:
        super().__init__()
        self.tokens = with_state(nn.Embedding(64, 32), source.model.embed_tokens)
        layers = source.model.layers
        self.blocks = nn.ModuleList(Block(layer, fault if layer is layers[-1] else "") for layer in layers)
        self.norm = Norm(source.model.norm.weight)
        self.head = with_state(nn.Linear(32, 64, bias=False), source.lm_head)
        angles = torch.outer(torch.arange(64.0), 1 / 10000 ** (torch.arange(0, 8, 2) / 8))
        self.register_buffer("cos", angles.cos())
        self.register_buffer("sin", angles.sin())

    def forward(self, tokens: Tensor) -> Tensor:
        hidden = self.tokens(tokens)
        for block in self.blocks:
            hidden = block(hidden, self.cos, self.sin)
        logits = self.head(self.norm(hidden))
        return functional.cross_entropy(logits[:, :-1].reshape(-1, 64), tokens[:, 1:].reshape(-1))


def port(fault: str) -> Program:
    model = Port(Qwen3ForCausalLM(Qwen3Config(**_SETTINGS)), fault)
    tokens = _tokens()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    return Program(model, train_clearing_before_backward(optimizer, lambda: model(tokens)))


NETWORK = Network(
    "qwen3",
    reference,
    port,
    {
        "rope": Truth(
            modules=(r"model\.layers\.1\.self_attn",),
            within=(r"blocks\.1", r"model\.layers\.1\.self_attn"),
            readers=(r"blocks\.1\.out", r"model\.layers\.1\.self_attn\.o_proj"),
        ),
        "swap": Truth(
            within=(r"blocks\.1", r"model\.layers\.1\.mlp(\.gate_proj|\.up_proj)?"),
            modules=(r"model\.layers\.1\.mlp(\.act_fn|\.down_proj)?", r"blocks\.1\.down"),
        ),
    },
)
