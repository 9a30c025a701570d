"""BLOOM of transformers with clipped gradients, and a port with a fused kernel and clipping by hand."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers import BloomConfig, BloomForCausalLM

from port_programs.program import Network, Program, Truth, generator, shaken, with_state

_HEADS, _LIMIT = 4, 0.5


def _source() -> nn.Module:
    config = BloomConfig(
        vocab_size=48, hidden_size=32, n_layer=2, n_head=_HEADS, initializer_range=0.2, attn_implementation="eager"
    )
    return shaken(BloomForCausalLM(config)).train()


def _tokens() -> Tensor:
    return torch.randint(0, 48, (2, 9), generator=generator())


def reference() -> Program:
    model, tokens = _source(), _tokens()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.3)

    def train(steps: int) -> list[float]:
        losses = []
        for _ in range(steps):
            optimizer.zero_grad()
            logits = model(input_ids=tokens).logits
            loss = functional.cross_entropy(logits[:, :-1].flatten(0, 1), tokens[:, 1:].flatten())
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), _LIMIT)  # place: bloom_clip
            optimizer.step()
            losses.append(loss.item())
        return losses

    return Program(model, train)


def _linear(source: nn.Linear) -> nn.Linear:
    return with_state(nn.Linear(source.in_features, source.out_features), source)


class Sublayer(nn.Module):
    """A norm, and what follows it; the residual is added by `forward` of the layer."""

    def __init__(self, norm: nn.Module) -> None:
        super().__init__()
        self.norm = with_state(nn.LayerNorm(32), norm)


class Attending(Sublayer):
    """Attention whose bias grows with the distance."""

    def __init__(self, source: nn.Module, fault: str) -> None:
        super().__init__(source.input_layernorm)
        self.fault = fault
        fused = source.self_attention.query_key_value
        weights = fused.weight.view(_HEADS, 3, 8, 32).transpose(0, 1).reshape(3, 32, 32)
        biases = fused.bias.view(_HEADS, 3, 8).transpose(0, 1).reshape(3, 32)
        self.projections = nn.ModuleList(nn.Linear(32, 32) for _ in range(3))
        for projection, weight, bias in zip(self.projections, weights, biases):
            projection.weight.data.copy_(weight)
            projection.bias.data.copy_(bias)
        self.out = _linear(source.self_attention.dense)

    def _bias(self, length: int, dtype: torch.dtype) -> Tensor:
        first = 0 if self.fault == "slopes" else 1
        slopes = 2.0 ** (-8 / _HEADS * torch.arange(first, first + _HEADS))  # planted: bloom_slopes
        positions = torch.arange(length)
        distances = positions - positions[:, None]
        bias = slopes[:, None, None] * distances  # planted: bloom_slopes
        return bias.masked_fill(distances > 0, -torch.inf).to(dtype)  # place: bloom_slopes

    def forward(self, x: Tensor) -> Tensor:
        normed = self.norm(x)
        query, key, value = (
            projection(normed).view(*x.shape[:2], _HEADS, 8).transpose(1, 2) for projection in self.projections
        )
        bias = self._bias(x.shape[1], x.dtype)
        mixed = functional.scaled_dot_product_attention(query, key, value, bias)  # place: bloom_slopes
        return self.out(mixed.transpose(1, 2).flatten(2))


class Expanding(Sublayer):
    """Feed-forward with the GELU that takes tanh."""

    def __init__(self, source: nn.Module, fault: str) -> None:
        super().__init__(source.post_attention_layernorm)
        self.fault = fault
        self.enter, self.leave = _linear(source.mlp.dense_h_to_4h), _linear(source.mlp.dense_4h_to_h)

    def forward(self, x: Tensor) -> Tensor:
        approximation = "none" if self.fault == "erf" else "tanh"
        return self.leave(functional.gelu(self.enter(self.norm(x)), approximate=approximation))  # planted: bloom_erf


class Port(nn.Module):
    """The port: sublayers in one list. It returns logits."""

    def __init__(self, source: nn.Module, fault: str) -> None:
        super().__init__()
        self.fault = fault
        body = source.transformer
        self.words = with_state(nn.Embedding(48, 32), body.word_embeddings)
        self.norms = nn.ModuleList(
            with_state(nn.LayerNorm(32), norm) for norm in (body.word_embeddings_layernorm, body.ln_f)
        )
        self.sublayers = nn.ModuleList()
        for layer in body.h:
            self.sublayers.append(Attending(layer, fault))
            self.sublayers.append(Expanding(layer, fault))

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.norms[0](self.words(tokens))
        for index, sublayer in enumerate(self.sublayers):
            y = sublayer(x)
            if self.fault == "residual" and index == 2:
                x = sublayer.norm(x) + y  # planted: bloom_residual
            else:
                x = x + y
        return functional.linear(self.norms[1](x), self.words.weight)


def port(fault: str) -> Program:
    model, tokens = Port(_source(), fault), _tokens()
    parameters = list(model.parameters())

    def train(steps: int) -> list[float]:
        losses = []
        for _ in range(steps):
            loss = functional.cross_entropy(model(tokens)[:, :-1].mT, tokens[:, 1:])
            gradients = torch.autograd.grad(loss, parameters)
            with torch.no_grad():
                norm = torch.stack([gradient.norm() for gradient in gradients]).norm()
                for parameter, gradient in zip(parameters, gradients):
                    if fault == "clip":
                        norm = gradient.norm()  # planted: bloom_clip
                    factor = torch.clamp(_LIMIT / (norm + 1e-6), max=1.0)  # planted: bloom_clip
                    parameter.sub_(0.3 * factor * gradient)  # place: bloom_clip
            losses.append(loss.item())
        return losses

    return Program(model, train)


_ATTENTION = r"transformer\.h\.\d\.self_attention"
NETWORK = Network(
    "bloom",
    reference,
    port,
    {
        "slopes": Truth(
            modules=(_ATTENTION,),
            operators=(r"transformer:aten::(pow|mul|arange|reshape|_?to.*)",),
            readers=(r"sublayers\.[02](\.out)?", _ATTENTION + r"\.dense"),
        ),
        "erf": Truth(
            modules=(r"transformer\.h\.\d\.mlp\.gelu_impl",),
            readers=(r"sublayers\.[13](\.leave)?", r"transformer\.h\.\d\.mlp(\.dense_4h_to_h)?"),
        ),
        "residual": Truth(
            operators=(r"transformer\.h\.1\.self_attention:aten::add_?",),
            readers=(r"sublayers\.3(\.norm)?", r"transformer\.h\.1(\.self_attention|\.post_attention_layernorm)?"),
        ),
        "clip": Truth(visible=False),
    },
)
