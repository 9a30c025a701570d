"""DistilBERT of transformers with padded inputs, and a port on the encoder layers of PyTorch."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers import DistilBertConfig, DistilBertForSequenceClassification

from port_programs.program import (
    Network,
    Program,
    Truth,
    generator,
    shaken,
    train_clearing_before_backward,
    train_clearing_first,
    with_state,
)


def _source() -> nn.Module:
    config = DistilBertConfig(
        vocab_size=48,
        dim=32,
        hidden_dim=64,
        n_layers=2,
        n_heads=4,
        max_position_embeddings=16,
        dropout=0.0,
        attention_dropout=0.0,
        seq_classif_dropout=0.0,
        num_labels=3,
        initializer_range=0.2,
        attn_implementation="sdpa",
    )
    return shaken(DistilBertForSequenceClassification(config)).train()


def _data() -> tuple[Tensor, Tensor, Tensor]:
    drawn = generator()
    tokens = torch.randint(1, 48, (3, 10), generator=drawn)
    kept = (torch.arange(10) < torch.tensor([[9], [7], [4]])).long()
    return tokens * kept, kept, torch.randint(0, 3, (3,), generator=drawn)


def reference() -> Program:
    model = _source()
    tokens, kept, labels = _data()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.1)

    def loss_of() -> Tensor:
        return model(input_ids=tokens, attention_mask=kept, labels=labels).loss

    return Program(model, train_clearing_first(optimizer, loss_of))


def _encoder_layer(source: nn.Module, fault: str) -> nn.Module:
    attention = source.attention
    settings = {"dropout": 0.0, "activation": "gelu", "batch_first": True}
    if fault == "dropout":
        del settings["dropout"]
    if fault == "activation":
        del settings["activation"]
    layer = nn.TransformerEncoderLayer(32, 4, 64, layer_norm_eps=1e-12, **settings)
    names = ("q_lin", "k_lin", "v_lin")
    with torch.no_grad():
        layer.self_attn.in_proj_weight.copy_(torch.cat([getattr(attention, name).weight for name in names]))
        layer.self_attn.in_proj_bias.copy_(torch.cat([getattr(attention, name).bias for name in names]))
    with_state(layer.self_attn.out_proj, attention.out_lin)
    with_state(layer.linear1, source.ffn.lin1)
    with_state(layer.linear2, source.ffn.lin2)
    with_state(layer.norm1, source.sa_layer_norm)
    with_state(layer.norm2, source.output_layer_norm)
    return layer


class Port(nn.Module):
    """The port; it returns logits."""

    def __init__(self, source: nn.Module, fault: str) -> None:
        super().__init__()
        self.fault = fault
        embeddings = source.distilbert.embeddings
        self.words = with_state(nn.Embedding(48, 32, padding_idx=0), embeddings.word_embeddings)
        self.places = with_state(nn.Embedding(16, 32), embeddings.position_embeddings)
        self.norm = with_state(nn.LayerNorm(32, eps=1e-5 if fault == "eps" else 1e-12), embeddings.LayerNorm)
        layers = source.distilbert.transformer.layer
        self.layers = nn.ModuleList(_encoder_layer(layer, fault) for layer in layers)
        self.classes = nn.Sequential(
            with_state(nn.Linear(32, 32), source.pre_classifier),
            nn.ReLU(),
            with_state(nn.Linear(32, 3), source.classifier),
        )

    def forward(self, tokens: Tensor, kept: Tensor) -> Tensor:
        x = self.norm(self.words(tokens) + self.places.weight[: tokens.shape[1]])  # planted: distilbert_eps
        for index, layer in enumerate(self.layers):
            ignored = kept == 0
            if self.fault == "inverted" and index == 1:
                ignored = kept == 1  # planted: distilbert_inverted
            x = layer(x, src_key_padding_mask=ignored)  # place: distilbert_inverted
        return self.classes(x[:, 0])


def port(fault: str) -> Program:
    model = Port(_source(), fault).train()
    tokens, kept, labels = _data()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.1)

    def loss_of() -> Tensor:
        return functional.cross_entropy(model(tokens, kept), labels)

    return Program(model, train_clearing_before_backward(optimizer, loss_of))


_ATTENTION = r"distilbert\.transformer\.layer\.{}\.attention"
NETWORK = Network(
    "distilbert",
    reference,
    port,
    {
        "eps": Truth(modules=("norm", r"distilbert\.embeddings\.LayerNorm")),
        "activation": Truth(
            modules=(r"distilbert\.transformer\.layer\.\d\.ffn\.activation",),
            operators=(r"layers\.\d:aten::(relu|gelu)_?",),
            readers=(r"layers\.\d(\.linear2)?", r"distilbert\.transformer\.layer\.\d\.ffn(\.lin2)?"),
        ),
        "inverted": Truth(
            modules=(r"layers\.1\.self_attn", _ATTENTION.format("1")),
            within=("", r"layers\.1(\.self_attn)?", _ATTENTION.format("1")),
            readers=(r"layers\.1(\.self_attn\.out_proj|\.dropout1)?", _ATTENTION.format("1") + r"\.out_lin"),
        ),
        "dropout": Truth(
            modules=(r"layers\.\d\.(dropout|dropout1|dropout2|self_attn)", _ATTENTION.format(r"\d")),
            readers=(r"layers\.\d(\.norm1|\.self_attn\.out_proj)?", _ATTENTION.format(r"\d") + r"\.out_lin"),
        ),
    },
)
