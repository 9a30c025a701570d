"""OLMo 2 of transformers, and a port with einsum, a softmax by hand, and parameters without modules."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers import Olmo2Config, Olmo2ForCausalLM

from port_programs.program import (
    Network,
    Program,
    Truth,
    parameter_of,
    train_clearing_before_backward,
    train_clearing_first,
)

_SETTINGS = {
    "vocab_size": 50,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
    "eos_token_id": 1,
    "bos_token_id": 2,
}


def _tokens() -> Tensor:
    return torch.randint(3, 50, (2, 10), generator=torch.Generator().manual_seed(5))


def reference() -> Program:
    model = Olmo2ForCausalLM(Olmo2Config(**_SETTINGS, attn_implementation="sdpa"))
    model.train()
    tokens = _tokens()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    return Program(model, train_clearing_first(optimizer, lambda: model(input_ids=tokens, labels=tokens).loss))


class Norm(nn.Module):
    """Root mean square norm by hand."""

    def __init__(self, weight: Tensor, eps: float) -> None:
        super().__init__()
        self.weight = parameter_of(weight)
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        return self.weight * (x / torch.sqrt(x.square().mean(-1, keepdim=True) + self.eps))


class Layer(nn.Module):
    """Attention and feed-forward of one layer."""

    def __init__(self, layer: nn.Module, fault: str) -> None:
        super().__init__()
        self.fault = fault
        attention, mlp = layer.self_attn, layer.mlp
        eps = attention.q_norm.variance_epsilon
        self.query, self.key = parameter_of(attention.q_proj.weight), parameter_of(attention.k_proj.weight)
        self.value, self.out = parameter_of(attention.v_proj.weight), parameter_of(attention.o_proj.weight)
        self.query_norm = Norm(attention.q_norm.weight, eps)
        self.key_norm = Norm(attention.k_norm.weight, 1e-2 if fault == "eps" else eps)
        self.norm1 = Norm(layer.post_attention_layernorm.weight, eps)
        self.norm2 = Norm(layer.post_feedforward_layernorm.weight, eps)
        self.gate, self.up = parameter_of(mlp.gate_proj.weight), parameter_of(mlp.up_proj.weight)
        self.down = parameter_of(mlp.down_proj.weight)

    def forward(self, hidden: Tensor, cos: Tensor, sin: Tensor, mask: Tensor) -> Tensor:
        batch, length, width = hidden.shape

        def rotate(x: Tensor) -> Tensor:
            return x * cos + torch.cat((-x[..., 4:], x[..., :4]), -1) * sin

        query = self.query_norm(torch.einsum("btd,ed->bte", hidden, self.query)).reshape(batch, length, 4, 8)
        key = self.key_norm(torch.einsum("btd,ed->bte", hidden, self.key)).reshape(batch, length, 4, 8)
        value = torch.einsum("btd,ed->bte", hidden, self.value).reshape(batch, length, 4, 8)
        query, key = rotate(query), rotate(key)
        scores = torch.einsum("bthd,bshd->bhts", query, key) / math.sqrt(8)
        scores = scores.masked_fill(mask, float("-inf"))
        scores = scores - scores.amax(-1, keepdim=True).detach()
        scores = scores.exp()
        scores = scores / scores.sum(-1, keepdim=True)
        mixed = torch.einsum("bhts,bshd->bthd", scores, value).reshape(batch, length, width)
        mixed = torch.einsum("btd,ed->bte", mixed, self.out)
        if self.fault == "resid":
            hidden = self.norm1(hidden + mixed)  # planted: olmo2_resid
        else:
            hidden = hidden + self.norm1(mixed)
        inner = functional.silu(hidden @ self.gate.T) * (hidden @ self.up.T)
        return hidden + self.norm2(inner @ self.down.T)


class Port(nn.Module):
    """The port; it returns logits."""

    def __init__(self, source: nn.Module, faults: tuple[str, str]) -> None:
        super().__init__()
        self.embedding = parameter_of(source.model.embed_tokens.weight)
        self.layers = nn.ModuleList(Layer(layer, fault) for layer, fault in zip(source.model.layers, faults))
        self.norm = Norm(source.model.norm.weight, source.model.norm.variance_epsilon)
        self.head = parameter_of(source.lm_head.weight)

    def forward(self, tokens: Tensor) -> Tensor:
        hidden = self.embedding[tokens]
        length = tokens.shape[1]
        frequencies = 1 / 10000.0 ** (torch.arange(0, 8, 2).to(hidden.dtype) / 8)
        angles = torch.outer(torch.arange(length).to(hidden.dtype), frequencies)
        angles = torch.cat([angles, angles], -1)[:, None]
        mask = torch.ones(length, length, dtype=torch.bool).triu(1)
        cos, sin = angles.cos(), angles.sin()
        for layer in self.layers:
            hidden = layer(hidden, cos, sin, mask)
        return self.norm(hidden) @ self.head.T


def port(fault: str) -> Program:
    faults = ("eps", "") if fault == "eps" else ("", fault)
    model = Port(Olmo2ForCausalLM(Olmo2Config(**_SETTINGS)), faults)
    tokens = _tokens()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)

    def loss_of() -> Tensor:
        logarithms = model(tokens)[:, :-1].log_softmax(-1)
        return -logarithms.gather(-1, tokens[:, 1:, None]).mean()

    return Program(model, train_clearing_before_backward(optimizer, loss_of))


NETWORK = Network(
    "olmo2",
    reference,
    port,
    {
        "resid": Truth(
            modules=(r"layers\.1\.norm1", r"model\.layers\.1\.post_attention_layernorm"),
        ),
        "eps": Truth(modules=(r"layers\.0\.key_norm", r"model\.layers\.0\.self_attn\.k_norm")),
    },
)
