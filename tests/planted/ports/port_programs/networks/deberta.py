"""DeBERTa v2 of transformers, and a port of its attention with einsum and gather."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn
from transformers import DebertaV2Config, DebertaV2ForTokenClassification

from port_programs.program import Network, Program, Truth, generator, train_clearing_first

_SETTINGS = {
    "vocab_size": 40,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 48,
    "max_position_embeddings": 32,
    "relative_attention": True,
    "position_buckets": -1,
    "max_relative_positions": 16,
    "pos_att_type": ["c2p", "p2c"],
    "norm_rel_ebd": "layer_norm",
    "share_att_key": True,
    "position_biased_input": False,
    "type_vocab_size": 0,
    "hidden_dropout_prob": 0.0,
    "attention_probs_dropout_prob": 0.0,
    "num_labels": 3,
    "pad_token_id": 0,
}


def _source() -> nn.Module:
    model = DebertaV2ForTokenClassification(DebertaV2Config(**_SETTINGS))
    for parameter in model.parameters():
        if parameter.ndim > 1:
            parameter.data.mul_(5)
        else:
            parameter.data.add_(0.1 * torch.randn_like(parameter))
    return model.train()


def _heads(x: Tensor) -> Tensor:
    return x.view(x.shape[0], -1, 4, 8)


class Attention(nn.Module):
    """Attention by content and by relative positions."""

    def __init__(self, source: nn.Module, fault: str) -> None:
        super().__init__()
        self.fault = fault
        self.query, self.key, self.value = source.query_proj, source.key_proj, source.value_proj

    def forward(
        self, hidden: Tensor, mask: Tensor, *_: Any, rel_embeddings: Tensor | None = None, **__: Any
    ) -> tuple[Tensor, None]:
        batch, length, width = hidden.shape
        query, key, value = _heads(self.query(hidden)), _heads(self.key(hidden)), _heads(self.value(hidden))
        relative = rel_embeddings[:32].unsqueeze(0)
        position_key, position_query = _heads(self.key(relative))[0], _heads(self.query(relative))[0]
        scale = 1 / math.sqrt(8 * (1 if self.fault == "scale" else 3))
        scores = torch.einsum("bthd,bshd->bhts", query, key) * scale  # planted: deberta_scale
        positions = torch.arange(length)
        distances = positions[:, None] - positions[None, :]
        by_key = torch.einsum("bthd,phd->bhtp", query, position_key) * scale  # planted: deberta_scale
        indices = (distances + 16).clamp(0, 31).expand(batch, 4, length, length)
        scores = scores + by_key.gather(-1, indices)
        by_query = torch.einsum("bshd,phd->bhsp", key, position_query) * scale  # planted: deberta_scale
        if self.fault == "p2c":
            indices = (17 + distances).clamp(0, 31).expand(batch, 4, length, length)  # planted: deberta_p2c
        else:
            indices = (16 - distances).clamp(0, 31).expand(batch, 4, length, length)
        scores = scores + by_query.gather(-1, indices).transpose(-1, -2)  # place: deberta_p2c
        scores = scores.masked_fill(~mask.bool(), torch.finfo(hidden.dtype).min)
        return torch.einsum("bhts,bshd->bthd", scores.softmax(-1), value).reshape(batch, length, width), None


def _program(model: nn.Module) -> Program:
    drawn = generator()
    tokens = torch.randint(1, 40, (2, 8), generator=drawn)
    mask = torch.ones_like(tokens)
    mask[1, 5:] = 0
    labels = torch.randint(0, 3, (2, 8), generator=drawn)
    labels[mask == 0] = -100
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)

    def loss_of() -> Tensor:
        return model(input_ids=tokens, attention_mask=mask, labels=labels).loss

    return Program(model, train_clearing_first(optimizer, loss_of))


def reference() -> Program:
    return _program(_source())


def port(fault: str) -> Program:
    model = _source()
    layers = model.deberta.encoder.layer
    for layer in layers:
        layer.attention.self = Attention(layer.attention.self, fault if layer is layers[1] else "")
    return _program(model)


_ATTENTION = Truth(
    modules=(r"deberta\.encoder\.layer\.1\.attention\.self",),
    within=(r"deberta\.encoder\.layer\.1\.attention\.self",),
    readers=(r"deberta\.encoder\.layer\.1\.attention\.output\.dense",),
)
NETWORK = Network("deberta", reference, port, {"scale": _ATTENTION, "p2c": _ATTENTION})
