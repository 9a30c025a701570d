"""GPT-NeoX of transformers, and a port of functions: no modules, matrices that are stored transposed."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers import GPTNeoXConfig, GPTNeoXForCausalLM

from port_programs.program import Network, Program, Truth, generator, shaken, train_clearing_first, train_clearing_last

_HEADS, _WIDTH, _ROTATED = 4, 8, 4


def _source() -> nn.Module:
    config = GPTNeoXConfig(
        vocab_size=48,
        hidden_size=_HEADS * _WIDTH,
        num_hidden_layers=2,
        num_attention_heads=_HEADS,
        intermediate_size=64,
        initializer_range=0.2,
        max_position_embeddings=32,
        rope_parameters={"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.5},
        attn_implementation="eager",
    )
    return shaken(GPTNeoXForCausalLM(config)).train()


def _tokens() -> Tensor:
    return torch.randint(0, 48, (2, 11), generator=generator())


def reference() -> Program:
    model, tokens = _source(), _tokens()
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)

    def loss_of() -> Tensor:
        logits = model(input_ids=tokens).logits
        return functional.cross_entropy(logits[:, :-1].flatten(0, 1), tokens[:, 1:].flatten())

    return Program(model, train_clearing_first(optimizer, loss_of))


def _norm(x: Tensor, weights: dict[str, Tensor], name: str) -> Tensor:
    centered = x - x.mean(-1, keepdim=True)
    deviation = torch.sqrt(centered.square().mean(-1, keepdim=True) + 1e-5)
    return centered / deviation * weights[f"{name}_weight"] + weights[f"{name}_bias"]


def _rotate(x: Tensor, angles: Tensor, fault: str) -> Tensor:
    cos, sin = (turn.to(x.dtype)[None, :, None] for turn in (angles.cos(), angles.sin()))
    rotated, kept = x[..., :_ROTATED], x[..., _ROTATED:]
    if fault == "pairing":
        first, second = rotated[..., 0::2], rotated[..., 1::2]  # planted: gpt_neox_pairing
        turned = torch.stack([first * cos - second * sin, second * cos + first * sin], -1)  # planted: gpt_neox_pairing
        return torch.cat([turned.flatten(-2), kept], -1)  # planted: gpt_neox_pairing
    first, second = rotated.chunk(2, -1)
    return torch.cat([first * cos - second * sin, second * cos + first * sin, kept], -1)  # place: gpt_neox_heads


def _attend(x: Tensor, weights: dict[str, Tensor], angles: Tensor, fault: str) -> Tensor:
    batch, length, _ = x.shape
    projected = x @ weights["qkv_weight"] + weights["qkv_bias"]
    if fault == "heads":
        query, key, value = projected.view(batch, length, 3, _HEADS, _WIDTH).unbind(2)  # planted: gpt_neox_heads
    else:
        query, key, value = projected.view(batch, length, _HEADS, 3, _WIDTH).unbind(3)
    query, key = _rotate(query, angles, fault), _rotate(key, angles, fault)  # place: gpt_neox_heads gpt_neox_pairing
    divisor = _ROTATED**0.5 if fault == "scale" else _WIDTH**0.5
    scores = torch.einsum("bqhd,bkhd->bhqk", query, key) / divisor  # planted: gpt_neox_scale
    future = torch.ones(length, length, dtype=torch.bool).triu(1)
    scores = scores.masked_fill(future, -torch.inf)
    mixed = torch.einsum("bhqk,bkhd->bqhd", scores.softmax(-1), value)  # place: gpt_neox_heads
    return mixed.flatten(2) @ weights["out_weight"] + weights["out_bias"]


def _feed(x: Tensor, weights: dict[str, Tensor]) -> Tensor:
    inner = x @ weights["expand_weight"] + weights["expand_bias"]
    inner = inner * 0.5 * (1 + torch.erf(inner / 2**0.5))
    return inner @ weights["contract_weight"] + weights["contract_bias"]


_NAMES = {
    "attention.query_key_value": "qkv",
    "attention.dense": "out",
    "mlp.dense_h_to_4h": "expand",
    "mlp.dense_4h_to_h": "contract",
    "input_layernorm": "norm1",
    "post_attention_layernorm": "norm2",
}


class Port(nn.Module):
    """Parameters by name, and one function that calls the others."""

    def __init__(self, source: nn.Module, fault: str) -> None:
        super().__init__()
        self.fault = fault
        body = source.gpt_neox
        self.top = nn.ParameterDict(
            {
                "tokens": body.embed_in.weight.detach().clone(),
                "norm_weight": body.final_layer_norm.weight.detach().clone(),
                "norm_bias": body.final_layer_norm.bias.detach().clone(),
                "head": source.lm_head.weight.detach().t().clone(),
            }
        )
        self.layers = nn.ModuleList()
        for layer in body.layers:
            weights = {}
            for name, short in _NAMES.items():
                module = layer.get_submodule(name)
                weights[f"{short}_weight"] = module.weight.detach().t().clone()
                weights[f"{short}_bias"] = module.bias.detach().clone()
            self.layers.append(nn.ParameterDict(weights))

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.top["tokens"][tokens]
        frequencies = 10000.0 ** (-torch.arange(0, _ROTATED, 2, dtype=torch.float32) / _ROTATED)
        angles = torch.outer(torch.arange(tokens.shape[1], dtype=torch.float32), frequencies)
        for weights in self.layers:
            attended = _attend(_norm(x, weights, "norm1"), weights, angles, self.fault)
            if self.fault == "serial":
                x = x + attended  # planted: gpt_neox_serial
                x = x + _feed(_norm(x, weights, "norm2"), weights)  # planted: gpt_neox_serial
            else:
                x = x + attended + _feed(_norm(x, weights, "norm2"), weights)
        return _norm(x, self.top, "norm") @ self.top["head"]


def port(fault: str) -> Program:
    model, tokens = Port(_source(), fault), _tokens()
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)

    def loss_of() -> Tensor:
        logarithms = model(tokens)[:, :-1].log_softmax(-1)
        return -logarithms.gather(-1, tokens[:, 1:, None]).mean()

    return Program(model, train_clearing_last(optimizer, loss_of))


_ATTENTION = r"gpt_neox\.layers\.\d\.attention"
NETWORK = Network(
    "gpt_neox",
    reference,
    port,
    {
        "heads": Truth(modules=(_ATTENTION,), readers=("", _ATTENTION + r"\.dense")),
        "pairing": Truth(modules=(_ATTENTION,), readers=("", _ATTENTION + r"\.dense")),
        "scale": Truth(modules=(_ATTENTION,), readers=("", _ATTENTION + r"\.dense")),
        "serial": Truth(
            modules=(r"gpt_neox\.layers\.\d\.post_attention_layernorm",),
            operators=(r"gpt_neox\.layers\.\d:aten::add_?",),
            readers=("", r"gpt_neox\.layers\.\d"),
        ),
    },
)
