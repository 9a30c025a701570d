"""LoRA of peft on GPT-2, and a port that adds both factors to the frozen weight."""

from __future__ import annotations

import torch
from peft import LoraConfig, get_peft_model
from torch import Tensor, nn
from torch.nn import functional
from transformers import GPT2Config, GPT2LMHeadModel

from port_programs.program import (
    Network,
    Program,
    Truth,
    generator,
    parameter_of,
    train_clearing_first,
    train_clearing_last,
)


def _tokens() -> Tensor:
    return torch.randint(1, 40, (2, 8), generator=generator())


def _source() -> nn.Module:
    config = GPT2Config(
        vocab_size=40,
        n_positions=16,
        n_embd=32,
        n_layer=2,
        n_head=4,
        resid_pdrop=0,
        embd_pdrop=0,
        attn_pdrop=0,
        bos_token_id=0,
        eos_token_id=0,
    )
    factors = LoraConfig(r=4, lora_alpha=8, target_modules=["c_attn", "c_proj"], lora_dropout=0.0, fan_in_fan_out=True)
    model = get_peft_model(GPT2LMHeadModel(config), factors)
    for name, parameter in model.named_parameters():
        if "lora_B" in name:
            parameter.data.normal_(0, 0.2)
        elif "lora_A" not in name and parameter.ndim > 1:
            parameter.data.mul_(5)
    return model.train()


def _optimizer(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW([each for each in model.parameters() if each.requires_grad], lr=1e-2)


def reference() -> Program:
    model = _source()
    tokens = _tokens()
    return Program(model, train_clearing_first(_optimizer(model), lambda: model(input_ids=tokens, labels=tokens).loss))


class Adapted(nn.Module):
    """A frozen layer and its factors as one product."""

    def __init__(self, source: nn.Module, fault: str = "") -> None:
        super().__init__()
        self.fault = fault
        self.register_buffer("weight", source.base_layer.weight.detach().clone())
        self.register_buffer("bias", source.base_layer.bias.detach().clone())
        self.down = parameter_of(source.lora_A["default"].weight)
        self.up = parameter_of(source.lora_B["default"].weight)

    def forward(self, x: Tensor) -> Tensor:
        scale = 4.0 if self.fault == "scale" else 2.0
        return torch.matmul(x, self.weight + scale * (self.up @ self.down).T) + self.bias  # planted: lora_scale


class Block(nn.Module):
    """One layer of GPT-2."""

    def __init__(self, source: nn.Module, fault: str) -> None:
        super().__init__()
        self.fault = fault
        self.norm1, self.norm2 = source.ln_1, source.ln_2
        self.attention_in, self.attention_out = Adapted(source.attn.c_attn), Adapted(source.attn.c_proj, fault)
        self.expand, self.contract = source.mlp.c_fc, Adapted(source.mlp.c_proj)

    def forward(self, hidden: Tensor) -> Tensor:
        length = hidden.shape[1]
        parts = self.attention_in(self.norm1(hidden)).split(32, -1)
        query, key, value = (part.unflatten(-1, (4, 8)).transpose(1, 2) for part in parts)
        scale = 1.0 if self.fault == "qk" else 8**-0.5
        scores = (query * scale) @ key.mT + torch.full((length, length), -1e9).triu(1)  # planted: lora_qk
        hidden = hidden + self.attention_out((scores.softmax(-1) @ value).transpose(1, 2).flatten(2))
        return hidden + self.contract(functional.gelu(self.expand(self.norm2(hidden)), approximate="tanh"))


class Port(nn.Module):
    """The port; it returns the loss."""

    def __init__(self, source: nn.Module, fault: str) -> None:
        super().__init__()
        self.fault = fault
        transformer = source.base_model.model.transformer
        self.register_buffer("words", transformer.wte.weight.detach().clone())
        self.register_buffer("positions", transformer.wpe.weight.detach().clone())
        layers = transformer.h
        self.blocks = nn.ModuleList(Block(layer, fault if layer is layers[1] else "") for layer in layers)
        self.norm = transformer.ln_f

    def forward(self, tokens: Tensor) -> Tensor:
        hidden = self.words[tokens] + self.positions[: tokens.shape[1]]
        for block in self.blocks:
            hidden = block(hidden)
        logits = self.norm(hidden) @ self.words.T
        if self.fault == "shift":
            return functional.cross_entropy(
                logits[:, :-2].flatten(0, 1), tokens[:, 2:].flatten()
            )  # planted: lora_shift
        return functional.cross_entropy(logits[:, :-1].flatten(0, 1), tokens[:, 1:].flatten())


def port(fault: str) -> Program:
    model = Port(_source(), fault)
    tokens = _tokens()
    return Program(model, train_clearing_last(_optimizer(model), lambda: model(tokens)))


_ATTENTION = r"base_model\.model\.transformer\.h\.1\.attn"
_PROJECTION = _ATTENTION + r"\.c_proj(\.base_layer|\.lora_[AB]\.default)?"
NETWORK = Network(
    "lora",
    reference,
    port,
    {
        "scale": Truth(
            modules=(r"blocks\.1\.attention_out", _PROJECTION), within=(r"blocks\.1\.attention_out", _PROJECTION)
        ),
        "qk": Truth(
            modules=(_ATTENTION,), within=(r"blocks\.1", _ATTENTION), readers=(r"blocks\.1\.attention_out", _PROJECTION)
        ),
        "shift": Truth(modules=(r"base_model\.model",), readers=("",)),
    },
)
