"""Swin v2 of timm, and a port of its blocks: rolls by index, separate projections, cosine attention by hand."""

from __future__ import annotations

import torch
from timm.models.swin_transformer_v2 import SwinTransformerV2
from torch import Tensor, nn
from torch.nn import functional

from port_programs.program import Network, Program, Truth, generator, train_clearing_first


def _source() -> nn.Module:
    model = SwinTransformerV2(
        img_size=16,
        patch_size=2,
        window_size=4,
        embed_dim=16,
        depths=(2, 1),
        num_heads=(2, 4),
        num_classes=5,
        drop_path_rate=0.0,
    )
    for name, parameter in model.named_parameters():
        if "norm" in name:
            parameter.data.fill_(1.0 if "weight" in name else 0.1)
    return model.train()


def _unit(x: Tensor) -> Tensor:
    return x / x.norm(dim=-1, keepdim=True).clamp_min(1e-12)


class Attention(nn.Module):
    """Cosine attention in windows, with the parameters of the source."""

    def __init__(self, source: nn.Module, fault: str) -> None:
        super().__init__()
        self.source, self.fault = source, fault

    def _bias(self, length: int) -> Tensor:
        table = self.source.cpb_mlp(self.source.relative_coords_table).view(-1, self.source.num_heads)
        rows = table[self.source.relative_position_index.flatten()]
        bias = rows.view(length, length, self.source.num_heads).permute(2, 0, 1)
        if self.fault == "sig":
            return 8 * torch.sigmoid(bias)  # planted: swin_sig
        return 16 * torch.sigmoid(bias)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        batch, length, width = x.shape
        weights, biases = self.source.qkv.weight.split(width), (self.source.q_bias, None, self.source.v_bias)
        query, key, value = (
            functional.linear(x, weight, bias).reshape(batch, length, self.source.num_heads, -1)
            for weight, bias in zip(weights, biases)
        )
        if self.fault != "cos":
            query, key = _unit(query), _unit(key)
        scores = torch.einsum("bnhd,bmhd->bhnm", query, key)  # place: swin_cos
        scores = scores * self.source.logit_scale.clamp(max=4.605170185988092).exp()
        scores = scores + self._bias(length)  # place: swin_sig
        if mask is not None:
            scores = (scores.unflatten(0, (-1, mask.shape[0])) + mask[None, :, None]).flatten(0, 1)
        probabilities = scores.softmax(-1)  # place: swin_mask
        mixed = torch.einsum("bhnm,bmhd->bnhd", probabilities, value).reshape(batch, length, width)
        return self.source.proj(mixed)


class Block(nn.Module):
    """A block, with the parameters of the source."""

    def __init__(self, source: nn.Module, fault: str) -> None:
        super().__init__()
        self.source, self.fault = source, fault
        self.attention = Attention(source.attn, fault)

    def forward(self, x: Tensor) -> Tensor:
        source = self.source
        batch, height, width, channels = x.shape
        window, shift = source.window_size[0], source.shift_size[0]
        rows = height // window
        parts = x
        if shift:
            offset = -shift if self.fault == "roll" else shift
            indices = (torch.arange(height) + offset) % height  # planted: swin_roll
            parts = parts[:, indices][:, :, indices]  # planted: swin_roll
        parts = parts.view(batch, rows, window, rows, window, channels)
        parts = parts.transpose(2, 3).reshape(-1, window * window, channels)
        mask = source.attn_mask if shift and self.fault != "mask" else None
        parts = self.attention(parts, mask)  # planted: swin_mask
        parts = parts.view(batch, rows, rows, window, window, channels)
        parts = parts.transpose(2, 3).reshape(batch, height, width, channels)
        if shift:
            indices = (torch.arange(height) - offset) % height  # place: swin_roll
            parts = parts[:, indices][:, :, indices]  # place: swin_roll
        x = (x + source.norm1(parts)).flatten(1, 2)
        x = x + source.norm2(source.mlp(x))
        return x.view(batch, height, width, channels)


def _program(model: nn.Module) -> Program:
    drawn = generator()
    images = torch.randn(2, 3, 16, 16, generator=drawn, dtype=torch.float32).to(torch.get_default_dtype())
    labels = torch.randint(0, 5, (2,), generator=drawn)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    return Program(model, train_clearing_first(optimizer, lambda: functional.cross_entropy(model(images), labels)))


def reference() -> Program:
    return _program(_source())


def port(fault: str) -> Program:
    model = _source()
    stages = model.layers
    for stage in stages:
        blocks = list(stage.blocks)
        stage.blocks = nn.Sequential(
            *(Block(block, fault if stage is stages[0] and block is blocks[1] else "") for block in blocks)
        )
    return _program(model)


_BLOCK = r"layers\.0\.blocks\.1"
_READERS = (_BLOCK + r"(\.source)?\.attn\.proj", _BLOCK + r"\.attention(\.source\.proj)?")
_WITHIN = (_BLOCK + r"(\.attention|\.attn)?",)
NETWORK = Network(
    "swin",
    reference,
    port,
    {
        "mask": Truth(
            modules=(_BLOCK + r"\.attn\.softmax",),
            operators=(_BLOCK + r"\.attn:aten::(add|_?softmax)",),
            readers=_READERS,
            within=_WITHIN,
        ),
        "sig": Truth(operators=(_BLOCK + r"\.attn:aten::(sigmoid|mul|add)_?",), readers=_READERS, within=_WITHIN),
        "roll": Truth(
            operators=(_BLOCK + r":aten::roll",),
            within=_WITHIN,
            readers=(_BLOCK + r"(\.attention|\.attn)?(\.source)?(\.attn)?(\.qkv|\.norm1)?",),
        ),
        "cos": Truth(
            operators=(_BLOCK + r"\.attn:aten::(linalg_vector_norm|norm|clamp_min|div|matmul|bmm).*",),
            readers=_READERS,
            within=_WITHIN,
        ),
    },
)
