"""Gemma 2 of transformers, without training, and a port with folded gains and masks that are made beforehand."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers import Gemma2Config, Gemma2ForCausalLM

from port_programs.program import Network, Program, Truth, generator, infer, shaken, with_state

_CAP, _LAST_CAP, _WINDOW, _LENGTH = 2.0, 3.0, 4, 10


def _source() -> nn.Module:
    config = Gemma2Config(
        vocab_size=48,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=8,
        query_pre_attn_scalar=16,
        sliding_window=_WINDOW,
        attn_logit_softcapping=_CAP,
        final_logit_softcapping=_LAST_CAP,
        max_position_embeddings=32,
        initializer_range=0.2,
        attn_implementation="eager",
    )
    return shaken(Gemma2ForCausalLM(config)).eval()


def _requests() -> Tensor:
    return torch.randint(0, 48, (3, 2, _LENGTH), generator=generator())


def reference() -> Program:
    model, requests = _source(), _requests()
    return Program(model, infer(lambda step: model(input_ids=requests[step], use_cache=False).logits))


def _folded(source: nn.Module) -> nn.Module:
    """Return a norm of PyTorch: the one that is added to gains is a part of them."""
    norm = nn.RMSNorm(32, eps=1e-6)
    norm.weight.data.copy_(1 + source.weight)
    return norm


class Decoder(nn.Module):
    """One layer, with all of its parts in one list of steps."""

    def __init__(self, source: nn.Module, fault: str) -> None:
        super().__init__()
        self.fault = fault
        attention = source.self_attn
        self.norms = nn.ModuleDict(
            {
                "enter_attention": _folded(source.input_layernorm),
                "leave_attention": _folded(source.post_attention_layernorm),
                "enter_mlp": _folded(source.pre_feedforward_layernorm),
                "leave_mlp": _folded(source.post_feedforward_layernorm),
            }
        )
        if fault == "gains":
            self.norms["leave_mlp"].weight.data.copy_(source.post_feedforward_layernorm.weight)
        self.query, self.key = with_state(nn.Linear(32, 32, False), attention.q_proj), attention.k_proj
        self.value, self.merge = attention.v_proj, attention.o_proj
        self.gate, self.up, self.down = source.mlp.gate_proj, source.mlp.up_proj, source.mlp.down_proj

    def _attend(self, x: Tensor, rotation: Tensor, allowed: Tensor) -> Tensor:
        heads = [
            projection(x).unflatten(-1, (-1, 8)).movedim(2, 0) for projection in (self.query, self.key, self.value)
        ]
        query, key = (torch.einsum("hbtd,tde->hbte", each, rotation) for each in heads[:2])
        scale = 8**-0.5 if self.fault == "scaling" else 16**-0.5
        outputs = []
        for head in range(4):
            scores = query[head] @ key[head // 2].mT * scale  # planted: gemma2_scaling
            scores = _CAP * torch.tanh(scores / _CAP)
            probabilities = torch.where(allowed, scores, -torch.inf).softmax(-1)  # place: gemma2_window
            outputs.append(probabilities @ heads[2][head // 2])
        return self.merge(torch.cat(outputs, -1))

    def forward(self, x: Tensor, rotation: Tensor, allowed: Tensor) -> Tensor:
        x = x + self.norms["leave_attention"](self._attend(self.norms["enter_attention"](x), rotation, allowed))
        entering = self.norms["enter_mlp"](x)
        inner = functional.gelu(self.gate(entering), approximate="tanh") * self.up(entering)
        return x + self.norms["leave_mlp"](self.down(inner))  # planted: gemma2_gains


class Port(nn.Module):
    """The port; it returns logits."""

    def __init__(self, source: nn.Module, fault: str) -> None:
        super().__init__()
        self.fault = fault
        self.embed = with_state(nn.Embedding(48, 32), source.model.embed_tokens)
        layers = source.model.layers
        self.stack = nn.ModuleList(
            Decoder(layer, fault if fault != "gains" or layer is layers[1] else "") for layer in layers
        )
        self.last = _folded(source.model.norm)
        angles = torch.outer(torch.arange(_LENGTH, dtype=torch.float32), 1e4 ** (-torch.arange(4) / 4))
        cos, sin = torch.diag_embed(angles.cos()), torch.diag_embed(angles.sin())
        rotation = torch.cat([torch.cat([cos, sin], -1), torch.cat([-sin, cos], -1)], -2)
        self.register_buffer("rotation", rotation.to(torch.get_default_dtype()))
        distances = torch.arange(_LENGTH)[:, None] - torch.arange(_LENGTH)
        near = distances <= _WINDOW if fault == "window" else distances < _WINDOW
        self.register_buffer("near", near & (distances >= 0))
        self.register_buffer("earlier", distances >= 0)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embed(tokens)
        if self.fault != "embedding":
            x = x * 32**0.5
        for index, decoder in enumerate(self.stack):
            allowed = self.earlier if index % 2 else self.near
            x = decoder(x, self.rotation, allowed)
        return _LAST_CAP * torch.tanh(self.last(x) @ self.embed.weight.T / _LAST_CAP)


def port(fault: str) -> Program:
    model, requests = Port(_source(), fault).eval(), _requests()
    return Program(model, infer(lambda step: model(requests[step])))


_ATTENTION = r"model\.layers\.{}\.self_attn"
NETWORK = Network(
    "gemma2",
    reference,
    port,
    {
        "gains": Truth(
            modules=(r"stack\.1\.norms\.leave_mlp", r"model\.layers\.1\.post_feedforward_layernorm"),
            within=(r"stack\.1(\..*)?", r"model\.layers\.1"),
        ),
        "window": Truth(
            modules=(_ATTENTION.format(0),),
            within=(r"stack\.0", _ATTENTION.format(0)),
            readers=(r"stack\.0\.merge", r"stack\.0", _ATTENTION.format(0) + r"\.o_proj"),
        ),
        "scaling": Truth(
            modules=(_ATTENTION.format(r"\d"),), readers=(r"stack\.\d\.merge", _ATTENTION.format(r"\d") + r"\.o_proj")
        ),
        "embedding": Truth(
            modules=(r"model\.embed_tokens", r"stack\.0\.norms\.enter_attention", r"model\.layers\.0\.input_layernorm"),
            operators=(r"(model)?:aten::mul",),
            readers=(r"stack\.0", r"model\.layers\.0", "embed"),
        ),
    },
)
