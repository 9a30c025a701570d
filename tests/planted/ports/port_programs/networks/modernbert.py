"""ModernBERT of transformers, without training, and a port of two kinds of layers with one mask of distances."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers import ModernBertConfig, ModernBertForMaskedLM

from port_programs.program import Network, Program, Truth, generator, infer, shaken

_NEAR = 2


def _source() -> nn.Module:
    config = ModernBertConfig(
        vocab_size=48,
        hidden_size=32,
        intermediate_size=24,
        num_hidden_layers=4,
        num_attention_heads=4,
        global_attn_every_n_layers=2,
        local_attention=2 * _NEAR,
        max_position_embeddings=32,
        initializer_range=0.3,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
        cls_token_id=1,
        sep_token_id=2,
        attn_implementation="sdpa",
    )
    return shaken(ModernBertForMaskedLM(config)).eval()


def _requests() -> tuple[Tensor, Tensor]:
    tokens = torch.randint(3, 48, (3, 2, 12), generator=generator())
    kept = torch.ones_like(tokens)
    kept[:, 1, 10:] = 0
    return tokens * kept, kept


def reference() -> Program:
    model = _source()
    tokens, kept = _requests()
    return Program(model, infer(lambda step: model(input_ids=tokens[step], attention_mask=kept[step]).logits))


def _turned(x: Tensor, base: float) -> Tensor:
    """Rotate halves of the last axis by positions of the axis before it."""
    speeds = base ** -(torch.arange(4, dtype=torch.float32) / 4)  # place: modernbert_base
    angles = (torch.arange(x.shape[-2], dtype=torch.float32)[:, None] * speeds).repeat(1, 2)  # place: modernbert_base
    swapped = torch.cat([-x[..., 4:], x[..., :4]], -1)
    return (x.float() * angles.cos() + swapped.float() * angles.sin()).to(x.dtype)  # place: modernbert_base


class Attention(nn.Module):
    """Attention with one rotation base, near or everywhere."""

    def __init__(self, source: nn.Module, is_near: bool, fault: str) -> None:
        super().__init__()
        self.is_near, self.fault = is_near, fault
        self.projections, self.merge = source.Wqkv, source.Wo
        self.base = 10000.0 if is_near and fault != "base" else 160000.0

    def forward(self, x: Tensor, kept: Tensor) -> Tensor:
        query, key, value = self.projections(x).view(*x.shape[:2], 3, 4, 8).permute(2, 0, 3, 1, 4)
        query, key = _turned(query, self.base), _turned(key, self.base)  # planted: modernbert_base
        positions = torch.arange(x.shape[1])
        allowed = kept.bool()[:, None, None, :]
        if self.is_near:
            distances = (positions[:, None] - positions).abs()
            largest = 2 * _NEAR if self.fault == "near" else _NEAR
            allowed = allowed & (distances <= largest)  # planted: modernbert_near
        if self.fault == "padding":
            allowed = torch.ones_like(allowed)  # planted: modernbert_padding
        scores = query @ key.transpose(-1, -2) / 8**0.5  # place: modernbert_base
        scores = scores.masked_fill(~allowed, torch.finfo(x.dtype).min)  # place: modernbert_near modernbert_padding
        probabilities = scores.softmax(-1)  # place: modernbert_near modernbert_padding
        return self.merge((probabilities @ value).transpose(1, 2).flatten(2))


class Gated(nn.Sequential):
    """Norm, gated product, and the way back, as a sequence."""

    def __init__(self, source: nn.Module, fault: str) -> None:
        super().__init__(source.mlp_norm, source.mlp.Wi, Product(fault), source.mlp.Wo)


class Product(nn.Module):
    """One half by the GELU of the other."""

    def __init__(self, fault: str) -> None:
        super().__init__()
        self.fault = fault

    def forward(self, x: Tensor) -> Tensor:
        first, second = x.tensor_split(2, -1)
        if self.fault == "halves":
            return first * functional.gelu(second)  # planted: modernbert_halves
        return functional.gelu(first) * second


class Port(nn.Module):
    """The port; even layers attend everywhere. It returns logits."""

    def __init__(self, source: nn.Module, fault: str) -> None:
        super().__init__()
        body = source.model
        self.start = nn.Sequential(body.embeddings.tok_embeddings, body.embeddings.norm)
        self.mixers, self.gated, self.norms = nn.ModuleList(), nn.ModuleList(), nn.ModuleList()
        for index, layer in enumerate(body.layers):
            self.norms.append(layer.attn_norm)
            of_layer = "" if fault == "padding" and index != 2 else fault
            self.mixers.append(Attention(layer.attn, index % 2 == 1, of_layer))
            self.gated.append(Gated(layer, fault if index == 1 else ""))
        self.end = nn.Sequential(body.final_norm, source.head.dense, nn.GELU(), source.head.norm, source.decoder)

    def forward(self, tokens: Tensor, kept: Tensor) -> Tensor:
        x = self.start(tokens)
        for norm, mixer, gated in zip(self.norms, self.mixers, self.gated):
            x = x + mixer(norm(x), kept)
            x = x + gated(x)
        return self.end(x)


def port(fault: str) -> Program:
    model = Port(_source(), fault).eval()
    tokens, kept = _requests()
    return Program(model, infer(lambda step: model(tokens[step], kept[step])))


_ATTENTION = r"model\.layers\.{}\.attn"
NETWORK = Network(
    "modernbert",
    reference,
    port,
    {
        "base": Truth(
            modules=(_ATTENTION.format("[13]"), r"model\.rotary_emb"),
            within=(r"mixers\.[13]", _ATTENTION.format("[13]"), r"model\.rotary_emb"),
            readers=(r"mixers\.[13](\.merge)?", _ATTENTION.format("[13]") + r"\.Wo"),
        ),
        "near": Truth(
            modules=(_ATTENTION.format("[13]"),),
            within=(r"mixers\.[13]", _ATTENTION.format("[13]")),
            readers=(r"mixers\.[13](\.merge)?", _ATTENTION.format("[13]") + r"\.Wo"),
        ),
        "padding": Truth(
            modules=(_ATTENTION.format("2"),),
            within=(r"mixers\.2", _ATTENTION.format("2")),
            readers=(r"mixers\.2(\.merge)?", _ATTENTION.format("2") + r"\.Wo"),
        ),
        "halves": Truth(
            modules=(r"gated\.1\.2", r"model\.layers\.1\.mlp(\.act)?"),
            readers=(r"gated\.1\.3", r"model\.layers\.1\.mlp\.Wo"),
        ),
    },
)
