"""T5 of transformers with padded inputs, and a port with its own buckets and a fused attention kernel."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers import T5Config, T5ForConditionalGeneration

from port_programs.program import (
    Network,
    Program,
    Truth,
    generator,
    parameter_of,
    train_clearing_first,
    train_clearing_last,
)

_SETTINGS = {
    "vocab_size": 40,
    "d_model": 32,
    "d_kv": 8,
    "d_ff": 48,
    "num_layers": 2,
    "num_decoder_layers": 2,
    "num_heads": 4,
    "relative_attention_num_buckets": 8,
    "relative_attention_max_distance": 16,
    "dropout_rate": 0.0,
    "feed_forward_proj": "gated-gelu",
    "decoder_start_token_id": 0,
    "pad_token_id": 0,
    "eos_token_id": 1,
    "tie_word_embeddings": False,
}


def _data() -> tuple[Tensor, Tensor, Tensor]:
    drawn = generator()
    tokens = torch.randint(2, 40, (2, 9), generator=drawn)
    mask = torch.ones_like(tokens)
    mask[1, 6:] = 0
    tokens[1, 6:] = 0
    return tokens, mask, torch.randint(2, 40, (2, 6), generator=drawn)


def _source() -> nn.Module:
    return T5ForConditionalGeneration(T5Config(**_SETTINGS)).train()


def reference() -> Program:
    model = _source()
    tokens, mask, labels = _data()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)

    def loss_of() -> Tensor:
        return model(input_ids=tokens, attention_mask=mask, labels=labels).loss

    return Program(model, train_clearing_first(optimizer, loss_of))


def _buckets(length: int, both_directions: bool) -> Tensor:
    relative = torch.arange(length)[None, :] - torch.arange(length)[:, None]
    count, largest = 8, 16
    first: Tensor | int = 0
    if both_directions:
        count //= 2
        first = (relative > 0).long() * count
        relative = relative.abs()
    else:
        relative = (-relative).clamp(min=0)
    exact = count // 2
    logarithms = torch.log(relative.float().clamp(min=1) / exact) / math.log(largest / exact)
    large = exact + (logarithms * (count - exact)).long()
    return first + torch.where(relative < exact, relative, large.clamp(max=count - 1))


class Norm(nn.Module):
    """Root mean square norm as a library call."""

    def __init__(self, source: nn.Module) -> None:
        super().__init__()
        self.weight = parameter_of(source.weight)

    def forward(self, x: Tensor) -> Tensor:
        return functional.rms_norm(x, (32,), self.weight, 1e-6)


class Attention(nn.Module):
    """Attention of the decoder, the encoder, or between them."""

    def __init__(self, source: nn.Module) -> None:
        super().__init__()
        projections = (source.q, source.k, source.v, source.o)
        self.weights = nn.ParameterList(projection.weight.detach().clone() for projection in projections)

    def forward(self, x: Tensor, context: Tensor, bias: Tensor) -> Tensor:
        query, key, value, out = self.weights

        def heads(y: Tensor, weight: Tensor) -> Tensor:
            return (y @ weight.T).unflatten(-1, (4, 8)).transpose(1, 2)

        mixed = functional.scaled_dot_product_attention(
            heads(x, query), heads(context, key), heads(context, value), bias, scale=1.0
        )
        return mixed.transpose(1, 2).flatten(2) @ out.T


class FeedForward(nn.Module):
    """Gated feed-forward with one entering product."""

    def __init__(self, source: nn.Module) -> None:
        super().__init__()
        dense = source.DenseReluDense
        self.enter = parameter_of(torch.cat([dense.wi_0.weight, dense.wi_1.weight]))
        self.leave = parameter_of(dense.wo.weight)

    def forward(self, x: Tensor) -> Tensor:
        gate, value = functional.linear(x, self.enter).chunk(2, -1)
        return functional.linear(functional.gelu(gate, approximate="tanh") * value, self.leave)


def _encoder_layer(block: nn.Module) -> nn.Module:
    attention, feed = block.layer
    return nn.ModuleList(
        [Norm(attention.layer_norm), Attention(attention.SelfAttention), Norm(feed.layer_norm), FeedForward(feed)]
    )


def _decoder_layer(block: nn.Module) -> nn.Module:
    attention, crossing, feed = block.layer
    return nn.ModuleList(
        [
            Norm(attention.layer_norm),
            Attention(attention.SelfAttention),
            Norm(crossing.layer_norm),
            Attention(crossing.EncDecAttention),
            Norm(feed.layer_norm),
            FeedForward(feed),
        ]
    )


def _bias_table(stack: nn.Module) -> nn.Parameter:
    return parameter_of(stack.block[0].layer[0].SelfAttention.relative_attention_bias.weight)


class Port(nn.Module):
    """The port; it returns the loss. Its head is the embedding: transformers ties both in spite of the setting."""

    def __init__(self, source: nn.Module, fault: str) -> None:
        super().__init__()
        self.fault = fault
        self.embedding = parameter_of(source.shared.weight)
        self.encoder_table, self.decoder_table = _bias_table(source.encoder), _bias_table(source.decoder)
        self.encoder = nn.ModuleList(_encoder_layer(block) for block in source.encoder.block)
        self.encoder_norm = Norm(source.encoder.final_layer_norm)
        self.decoder = nn.ModuleList(_decoder_layer(block) for block in source.decoder.block)
        self.decoder_norm = Norm(source.decoder.final_layer_norm)

    def _decoder_bias(self, length: int) -> Tensor:
        lowest = torch.finfo(self.embedding.dtype).min
        later = torch.full((length, length), lowest).to(self.embedding.dtype).triu(1)
        if self.fault == "bidir":
            buckets = _buckets(length, both_directions=True)  # planted: t5_bidir
        else:
            buckets = _buckets(length, both_directions=False)
        return self.decoder_table[buckets].permute(2, 0, 1)[None] + later  # place: t5_bidir

    def forward(self, tokens: Tensor, mask: Tensor, labels: Tensor) -> Tensor:
        lowest = torch.finfo(self.embedding.dtype).min
        padding = torch.zeros(tokens.shape, dtype=self.embedding.dtype).masked_fill(mask == 0, lowest)[:, None, None]
        bias = self.encoder_table[_buckets(tokens.shape[1], both_directions=True)].permute(2, 0, 1)[None] + padding
        hidden = self.embedding[tokens]
        for norm1, attention, norm2, feed in self.encoder:
            normed = norm1(hidden)
            hidden = hidden + attention(normed, normed, bias)
            hidden = hidden + feed(norm2(hidden))
        context = self.encoder_norm(hidden)
        bias = self._decoder_bias(labels.shape[1])
        hidden = self.embedding[functional.pad(labels[:, :-1], (1, 0))]
        for index, (norm1, attention, norm2, crossing, norm3, feed) in enumerate(self.decoder):
            normed = norm1(hidden)
            hidden = hidden + attention(normed, normed, bias)
            hidden = hidden + crossing(norm2(hidden), context, padding)
            if self.fault == "norm" and index == 1:
                hidden = hidden + feed(hidden)  # planted: t5_norm
            else:
                hidden = hidden + feed(norm3(hidden))
        logits = self.decoder_norm(hidden) @ self.embedding.T
        return functional.cross_entropy(logits.flatten(0, 1), labels.flatten())


def port(fault: str) -> Program:
    model = Port(_source(), fault)
    tokens, mask, labels = _data()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    return Program(model, train_clearing_last(optimizer, lambda: model(tokens, mask, labels)))


_ATTENTION = r"decoder\.block\.0\.layer\.0\.SelfAttention"
_FEED = r"decoder\.block\.1\.layer\.2\."
NETWORK = Network(
    "t5",
    reference,
    port,
    {
        "bidir": Truth(
            modules=(_ATTENTION, _ATTENTION + r"\.relative_attention_bias"),
            readers=(r"decoder\.0\.1", _ATTENTION + r"(\.o)?"),
        ),
        "norm": Truth(
            modules=(_FEED + r"(layer_norm|DenseReluDense\.wi_[01])", r"decoder\.1\.5"),
            readers=(_FEED + "DenseReluDense",),
        ),
    },
)
