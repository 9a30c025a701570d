"""Whisper of transformers, and a port with one attention function and embeddings as plain tensors."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers import WhisperConfig, WhisperForConditionalGeneration

from port_programs.program import (
    Network,
    Program,
    Truth,
    generator,
    normal,
    parameter_of,
    shaken,
    train_clearing_before_backward,
    train_clearing_first,
    with_state,
)


def _source() -> nn.Module:
    config = WhisperConfig(
        vocab_size=48,
        d_model=32,
        encoder_layers=2,
        decoder_layers=2,
        encoder_attention_heads=4,
        decoder_attention_heads=4,
        encoder_ffn_dim=48,
        decoder_ffn_dim=48,
        num_mel_bins=6,
        max_source_positions=8,
        max_target_positions=12,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
        decoder_start_token_id=1,
        init_std=0.15,
        attn_implementation="eager",
    )
    return shaken(WhisperForConditionalGeneration(config)).train()


def _data() -> tuple[Tensor, Tensor]:
    drawn = generator()
    sounds = normal(drawn, 2, 6, 16)
    labels = torch.randint(3, 48, (2, 7), generator=drawn)
    labels[1, 5:] = -100
    return sounds, labels


def reference() -> Program:
    model = _source()
    sounds, labels = _data()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    return Program(model, train_clearing_first(optimizer, lambda: model(input_features=sounds, labels=labels).loss))


class Heads(nn.Module):
    """Queries of one sequence, keys and values of another one."""

    def __init__(self, source: nn.Module, fault: str = "") -> None:
        super().__init__()
        self.fault = fault
        self.query = with_state(nn.Linear(32, 32), source.q_proj)
        self.pair = parameter_of(torch.cat([source.k_proj.weight, source.v_proj.weight]))
        self.bias = parameter_of(source.v_proj.bias)
        self.out = with_state(nn.Linear(32, 32), source.out_proj)

    def forward(self, x: Tensor, context: Tensor, is_causal: bool = False) -> Tensor:
        key, value = (context @ self.pair.T).tensor_split(2, 2)  # place: whisper_bias
        if self.fault != "bias":
            value = value + self.bias
        query = self.query(x)
        query, key, value = (
            part.unflatten(2, (4, 8)).transpose(1, 2) for part in (query, key, value)
        )  # place: whisper_bias
        mixed = functional.scaled_dot_product_attention(query, key, value, is_causal=is_causal)  # planted: whisper_bias
        return self.out(mixed.transpose(1, 2).flatten(2))


class Layer(nn.Module):
    """A layer of either side; the one of the decoder has a second attention."""

    def __init__(self, source: nn.Module, fault: str) -> None:
        super().__init__()
        self.own, self.own_norm = Heads(source.self_attn), source.self_attn_layer_norm
        self.is_decoder = hasattr(source, "encoder_attn")
        if self.is_decoder:
            self.other, self.other_norm = Heads(source.encoder_attn, fault), source.encoder_attn_layer_norm
        self.dense = nn.Sequential(source.final_layer_norm, source.fc1, nn.GELU(), source.fc2)

    def forward(self, x: Tensor, context: Tensor | None = None) -> Tensor:
        normed = self.own_norm(x)
        x = x + self.own(normed, normed, self.is_decoder)
        if self.is_decoder:
            x = x + self.other(self.other_norm(x), context)
        return x + self.dense(x)


class Port(nn.Module):
    """The port; it returns logits. `previous` has a first token."""

    def __init__(self, source: nn.Module, fault: str) -> None:
        super().__init__()
        self.fault = fault
        encoder, decoder = source.model.encoder, source.model.decoder
        strides = (2, 1) if fault == "strides" else (1, 2)
        self.ears = nn.ModuleList(
            with_state(nn.Conv1d(channels, 32, 3, stride, 1), convolution)
            for channels, stride, convolution in zip((6, 32), strides, (encoder.conv1, encoder.conv2))
        )
        self.register_buffer("times", encoder.embed_positions.weight.detach().clone())
        self.listening = nn.ModuleList(Layer(layer, "") for layer in encoder.layers)
        self.heard = with_state(nn.LayerNorm(32), encoder.layer_norm)
        self.words = parameter_of(decoder.embed_tokens.weight)
        self.orders = parameter_of(decoder.embed_positions.weight)
        self.writing = nn.ModuleList(
            Layer(layer, fault if layer is decoder.layers[1] else "") for layer in decoder.layers
        )
        self.written = with_state(nn.LayerNorm(32), decoder.layer_norm)
        if fault == "tied":
            self.copy_of_words = parameter_of(decoder.embed_tokens.weight)

    def forward(self, sounds: Tensor, previous: Tensor) -> Tensor:
        x = sounds
        for convolution in self.ears:
            x = functional.gelu(convolution(x))
        x = x.mT + self.times
        for layer in self.listening:
            x = layer(x)
        context = self.heard(x)
        first = 1 if self.fault == "orders" else 0
        y = (
            self.words[previous] + self.orders[first : first + previous.shape[1]]
        )  # planted: whisper_orders whisper_tied
        for layer in self.writing:
            y = layer(y, context)
        matrix = self.copy_of_words if self.fault == "tied" else self.words
        return self.written(y) @ matrix.T  # planted: whisper_tied


def port(fault: str) -> Program:
    model = Port(_source(), fault)
    sounds, labels = _data()
    previous = torch.cat([torch.ones(2, 1, dtype=torch.long), labels[:, :-1].clamp(min=0)], 1)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)

    def loss_of() -> Tensor:
        return functional.cross_entropy(model(sounds, previous).mT, labels)

    return Program(model, train_clearing_before_backward(optimizer, loss_of))


_ATTENTION = r"model\.decoder\.layers\.1\.encoder_attn"
NETWORK = Network(
    "whisper",
    reference,
    port,
    {
        "bias": Truth(
            modules=(_ATTENTION + r"\.v_proj",),
            within=(r"writing\.1\.other", _ATTENTION + r".*"),
            readers=(_ATTENTION + r"(\.out_proj)?", r"writing\.1\.other(\.out)?"),
        ),
        "strides": Truth(modules=(r"ears\.0", r"model\.encoder\.conv1")),
        "orders": Truth(
            modules=(r"model\.decoder\.embed_positions", r"model\.decoder\.layers\.0\.self_attn_layer_norm"),
            operators=(r"model\.decoder:aten::add",),
            readers=(r"writing\.0(\.own_norm)?",),
        ),
        "tied": Truth(
            modules=("proj_out", r"model\.decoder\.embed_tokens"),
            operators=(r".*:aten::(embedding_dense_backward|_?index_put.*)",),
            parameters=(r"(.* of )?(words|copy_of_words|model\.decoder\.embed_tokens\.weight)(\.grad)?",),
            visible=False,
        ),
    },
)
