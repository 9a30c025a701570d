"""Mixtral of transformers with its balancing loss, and a port that computes all experts by one product."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers import MixtralConfig, MixtralForCausalLM

from port_programs.program import (
    Network,
    Program,
    Truth,
    generator,
    parameter_of,
    shaken,
    train_clearing_before_backward,
    train_clearing_first,
)

_EXPERTS, _CHOSEN = 4, 2


def _source() -> nn.Module:
    config = MixtralConfig(
        vocab_size=48,
        hidden_size=32,
        intermediate_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        num_local_experts=_EXPERTS,
        num_experts_per_tok=_CHOSEN,
        max_position_embeddings=32,
        output_router_logits=True,
        router_aux_loss_coef=0.5,
        initializer_range=0.1,
        experts_implementation="eager",
        attn_implementation="eager",
        rope_parameters={"rope_type": "default", "rope_theta": 1e6},
    )
    return shaken(MixtralForCausalLM(config)).train()


def _tokens() -> Tensor:
    return torch.randint(0, 48, (2, 10), generator=generator())


def reference() -> Program:
    model, tokens = _source(), _tokens()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    return Program(model, train_clearing_first(optimizer, lambda: model(input_ids=tokens, labels=tokens).loss))


class Scale(nn.Module):
    """Division by the root mean square."""

    def __init__(self, source: nn.Module) -> None:
        super().__init__()
        self.gains = parameter_of(source.weight)

    def forward(self, x: Tensor) -> Tensor:
        return x / torch.sqrt((x * x).mean(-1, keepdim=True) + 1e-5) * self.gains


class Mixing(nn.Module):
    """Attention: keys and values are not repeated, queries are grouped instead."""

    def __init__(self, source: nn.Module, fault: str) -> None:
        super().__init__()
        self.fault = fault
        self.to_query = parameter_of(source.q_proj.weight.view(2, 2, 8, 32))
        self.to_key = parameter_of(source.k_proj.weight.view(2, 8, 32))
        self.to_value = parameter_of(source.v_proj.weight.view(2, 8, 32))
        self.to_output = parameter_of(source.o_proj.weight.view(32, 2, 2, 8))

    @staticmethod
    def _turn(x: Tensor, turns: Tensor) -> Tensor:
        low, high = x.chunk(2, -1)
        numbers = torch.view_as_complex(torch.stack([low, high], -1).contiguous()) * turns
        return torch.cat([numbers.real, numbers.imag], -1)

    def forward(self, x: Tensor, turns: Tensor, hidden: Tensor) -> Tensor:
        query = self._turn(torch.einsum("btc,gndc->bgntd", x, self.to_query), turns)
        key = self._turn(torch.einsum("btc,gdc->bgtd", x, self.to_key), turns)
        value = torch.einsum("btc,gdc->bgtd", x, self.to_value)
        if self.fault == "groups":
            scores = torch.einsum("bgntd,bnsd->bgnts", query, key) / 8**0.5  # planted: mixtral_groups
            mixed = torch.einsum("bgnts,bnsd->bgntd", (scores + hidden).softmax(-1), value)  # planted: mixtral_groups
        else:
            scores = torch.einsum("bgntd,bgsd->bgnts", query, key) / 8**0.5
            mixed = torch.einsum("bgnts,bgsd->bgntd", (scores + hidden).softmax(-1), value)
        return torch.einsum("bgntd,cgnd->btc", mixed, self.to_output)  # place: mixtral_groups


class Experts(nn.Module):
    """All experts for all tokens; shares of those that are not chosen are zero."""

    def __init__(self, source: nn.Module, fault: str) -> None:
        super().__init__()
        self.fault = fault
        self.router = parameter_of(source.gate.weight)
        gate, up = source.experts.gate_up_proj.detach().chunk(2, 1)
        self.gate, self.up, self.down = parameter_of(gate), parameter_of(up), parameter_of(source.experts.down_proj)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        probabilities = functional.linear(x, self.router).softmax(-1)
        best, chosen = probabilities.topk(_CHOSEN, -1)
        if self.fault != "shares":
            best = best / best.sum(-1, keepdim=True)
        shares = torch.zeros_like(probabilities).scatter(-1, chosen, best)  # planted: mixtral_shares
        inner = functional.silu(torch.einsum("btc,edc->bted", x, self.gate)) * torch.einsum("btc,edc->bted", x, self.up)
        if self.fault == "transposed":
            made = torch.einsum("bted,edc->btec", inner, self.down)  # planted: mixtral_transposed
        else:
            made = torch.einsum("bted,ecd->btec", inner, self.down)
        output = torch.einsum("btec,bte->btc", made, shares)  # place: mixtral_shares
        return output, probabilities.flatten(0, 1), functional.one_hot(chosen, _EXPERTS).flatten(0, 1)


class Layer(nn.Module):
    """Attention and experts."""

    def __init__(self, source: nn.Module, fault: str, is_last: bool) -> None:
        super().__init__()
        self.before_mixing, self.before_experts = Scale(source.input_layernorm), Scale(source.post_attention_layernorm)
        self.mixing = Mixing(source.self_attn, fault)
        self.experts = Experts(source.mlp, fault if is_last or fault == "shares" else "")

    def forward(self, x: Tensor, turns: Tensor, hidden: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        x = x + self.mixing(self.before_mixing(x), turns, hidden)
        output, probabilities, chosen = self.experts(self.before_experts(x))
        return x + output, probabilities, chosen


class Port(nn.Module):
    """The port; it returns the loss."""

    def __init__(self, source: nn.Module, fault: str) -> None:
        super().__init__()
        self.fault = fault
        self.vocabulary = parameter_of(source.model.embed_tokens.weight)
        layers = source.model.layers
        self.layers = nn.ModuleList(Layer(layer, fault, layer is layers[-1]) for layer in layers)
        self.at_end = Scale(source.model.norm)
        self.to_vocabulary = parameter_of(source.lm_head.weight)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.vocabulary[tokens]
        length = tokens.shape[1]
        angles = torch.outer(torch.arange(length, dtype=torch.float32), 1e6 ** (-torch.arange(4) / 4))
        turns = torch.polar(torch.ones_like(angles), angles)
        hidden = torch.full((length, length), -torch.inf).triu(1)
        probabilities, chosen = [], []
        for layer in self.layers:
            x, of_layer, chosen_of_layer = layer(x, turns, hidden)
            probabilities.append(of_layer)
            chosen.append(chosen_of_layer)
        logits = functional.linear(self.at_end(x), self.to_vocabulary)
        loss = functional.cross_entropy(logits[:, :-1].transpose(1, 2), tokens[:, 1:])
        loads = torch.cat(chosen).sum(1).to(x.dtype).mean(0)
        balance = (loads * torch.cat(probabilities).mean(0)).sum()
        if self.fault != "balance":
            balance = balance * _EXPERTS
        return loss + 0.5 * balance  # planted: mixtral_balance


def port(fault: str) -> Program:
    model, tokens = Port(_source(), fault), _tokens()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    return Program(model, train_clearing_before_backward(optimizer, lambda: model(tokens)))


_ATTENTION = r"model\.layers\.\d\.self_attn"
NETWORK = Network(
    "mixtral",
    reference,
    port,
    {
        "groups": Truth(
            modules=(_ATTENTION,), readers=(r"layers\.\d\.mixing", _ATTENTION + r"\.o_proj", r"model\.layers\.\d")
        ),
        "shares": Truth(
            operators=(r"model\.layers\.\d\.mlp\.gate:aten::(div|sum|topk)_?", r"model\.layers\.\d\.mlp\.experts:.*"),
            readers=(r"layers\.\d\.experts", r"model\.layers\.\d\.mlp(\.gate|\.experts)?"),
        ),
        "transposed": Truth(
            modules=(r"model\.layers\.1\.mlp\.experts",), readers=(r"layers\.1\.experts", r"model\.layers\.1\.mlp")
        ),
        "balance": Truth(operators=(r":aten::mul",), readers=("",), visible=False),
    },
)
