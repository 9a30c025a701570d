"""RoBERTa of transformers for padded sequences, and a port with one projection and a fused attention kernel."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers import RobertaConfig, RobertaForSequenceClassification

from port_programs.program import (
    Network,
    Program,
    Truth,
    generator,
    parameter_of,
    train_clearing_first,
    train_clearing_last,
    with_state,
)

_SETTINGS = {
    "vocab_size": 40,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 48,
    "max_position_embeddings": 20,
    "hidden_dropout_prob": 0.0,
    "attention_probs_dropout_prob": 0.0,
    "num_labels": 3,
    "pad_token_id": 1,
    "type_vocab_size": 1,
}


def _data() -> tuple[Tensor, Tensor]:
    drawn = generator()
    tokens = torch.randint(2, 40, (3, 9), generator=drawn)
    tokens[1, 6:] = 1
    tokens[2, 4:] = 1
    return tokens, torch.randint(0, 3, (3,), generator=drawn)


def _source() -> nn.Module:
    model = RobertaForSequenceClassification(RobertaConfig(**_SETTINGS, attn_implementation="eager"))
    for parameter in model.parameters():
        if parameter.ndim == 1:
            parameter.data.add_(0.1 * torch.randn_like(parameter))
    return model.train()


def reference() -> Program:
    model = _source()
    tokens, labels = _data()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)

    def loss_of() -> Tensor:
        return model(input_ids=tokens, attention_mask=(tokens != 1).long(), labels=labels).loss

    return Program(model, train_clearing_first(optimizer, loss_of))


def _linear(source: nn.Linear) -> nn.Module:
    return with_state(nn.Linear(source.in_features, source.out_features), source)


def _norm(source: nn.LayerNorm, eps: float = 0.0) -> nn.Module:
    return with_state(nn.LayerNorm(source.normalized_shape, eps=eps or source.eps), source)


class Encoder(nn.Module):
    """One layer."""

    def __init__(self, layer: nn.Module, fault: str) -> None:
        super().__init__()
        self.fault = fault
        attention = layer.attention
        projections = (attention.self.query, attention.self.key, attention.self.value)
        self.enter = nn.Linear(32, 96)
        self.enter.weight.data = torch.cat([each.weight for each in projections]).detach().clone()
        self.enter.bias.data = torch.cat([each.bias for each in projections]).detach().clone()
        self.out = _linear(attention.output.dense)
        self.norm1 = _norm(attention.output.LayerNorm, 1e-4 if fault == "eps" else 0.0)
        self.expand, self.contract = _linear(layer.intermediate.dense), _linear(layer.output.dense)
        self.norm2 = _norm(layer.output.LayerNorm)

    def _attend(self, query: Tensor, key: Tensor, value: Tensor, keep: Tensor) -> Tensor:
        if self.fault == "mask":
            return functional.scaled_dot_product_attention(query, key, value, scale=8**-0.5)  # planted: roberta_mask
        return functional.scaled_dot_product_attention(query, key, value, keep[:, None, None, :], scale=8**-0.5)

    def forward(self, hidden: Tensor, keep: Tensor) -> Tensor:
        batch, length, _ = hidden.shape
        query, key, value = self.enter(hidden).view(batch, length, 3, 4, 8).permute(2, 0, 3, 1, 4)
        mixed = self._attend(query, key, value, keep).transpose(1, 2).flatten(2)
        if self.fault == "bias":
            mixed = functional.linear(mixed, self.out.weight)  # planted: roberta_bias
        else:
            mixed = self.out(mixed)
        hidden = self.norm1(mixed + hidden)
        inner = self.expand(hidden)
        if self.fault == "gelu":
            inner = functional.gelu(inner, approximate="tanh")  # planted: roberta_gelu
        else:
            inner = functional.gelu(inner)
        return self.norm2(self.contract(inner) + hidden)


class Port(nn.Module):
    """The port; it returns logits."""

    def __init__(self, source: nn.Module, fault: str) -> None:
        super().__init__()
        self.fault = fault
        embeddings = source.roberta.embeddings
        self.words = parameter_of(embeddings.word_embeddings.weight)
        self.positions = parameter_of(embeddings.position_embeddings.weight)
        self.types = parameter_of(embeddings.token_type_embeddings.weight)
        self.norm = _norm(embeddings.LayerNorm)
        layers = source.roberta.encoder.layer
        self.layers = nn.ModuleList(Encoder(layer, fault if layer is layers[1] else "") for layer in layers)
        self.dense, self.classes = _linear(source.classifier.dense), _linear(source.classifier.out_proj)

    def forward(self, tokens: Tensor) -> Tensor:
        keep = tokens != 1
        positions = torch.cumsum(keep, 1) * keep
        if self.fault == "pos":
            positions = positions + 0  # planted: roberta_pos
        else:
            positions = positions + 1
        position_vectors = self.positions[positions]  # place: roberta_pos
        hidden = self.norm(self.words[tokens] + position_vectors + self.types[0])
        for layer in self.layers:
            hidden = layer(hidden, keep)
        return self.classes(torch.tanh(self.dense(hidden[:, 0])))


def port(fault: str) -> Program:
    model = Port(_source(), fault)
    tokens, labels = _data()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    return Program(model, train_clearing_last(optimizer, lambda: functional.cross_entropy(model(tokens), labels)))


_LAYER = r"roberta\.encoder\.layer\.1\."
NETWORK = Network(
    "roberta",
    reference,
    port,
    {
        "mask": Truth(
            modules=(_LAYER + r"attention\.self",),
            readers=(r"layers\.1\.out", _LAYER + r"attention\.output\.dense"),
        ),
        "bias": Truth(modules=(r"layers\.1\.out", _LAYER + r"attention\.output\.dense")),
        "pos": Truth(
            modules=(r"roberta\.embeddings\.position_embeddings",),
            operators=(r"roberta\.embeddings:aten::(add|cumsum|mul).*",),
            readers=("norm", r"roberta\.embeddings(\.LayerNorm)?"),
        ),
        "gelu": Truth(
            modules=(_LAYER + r"intermediate(\.intermediate_act_fn)?",),
            readers=(r"layers\.1\.contract", _LAYER + r"output\.dense"),
        ),
        "eps": Truth(modules=(r"layers\.1\.norm1", _LAYER + r"attention\.output\.LayerNorm")),
    },
)
