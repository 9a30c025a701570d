"""`ported_networks` in PyTorch, with faults as they are made when a network is ported."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Optional

import numpy as np
import torch
from ported_networks import LAYERS, draw, rotations, tokens
from torch.nn import functional

import ascend_dump

__all__ = ["dump"]


class Settings:
    """The settings of a network that a fault may change."""

    attention_scale: Optional[float] = None
    mask_offset = 0
    residual = True
    rotation_base = 10000.0
    swaps_gate = False
    last_step = 5
    axis = -1
    weights: Callable[[str, np.ndarray], np.ndarray] = staticmethod(lambda name, value: value)

    def __init__(self, **changed: Any) -> None:
        vars(self).update(changed)

    def tensor(self, name: str, *shape: int, **how: float) -> Any:
        return torch.from_numpy(np.ascontiguousarray(self.weights(name, draw(name, *shape, **how))))


def dense(f: Settings, name: str, x: Any, inputs: int, outputs: int, bias: bool = True) -> Any:
    matrix = f.tensor(f"{name}.w", outputs, inputs)
    return functional.linear(x, matrix, f.tensor(f"{name}.b", outputs, scale=0.3) if bias else None)


def norm(f: Settings, name: str, x: Any) -> Any:
    affine = f.tensor(f"{name}.w", 16, scale=0.2, offset=1), f.tensor(f"{name}.b", 16, scale=0.2)
    return functional.layer_norm(x, (16,), *affine, 1e-5)


def lstm(f: Settings, ids: Any) -> Any:
    rows = functional.embedding(ids, f.tensor("emb.w", 20, 8, scale=1))
    h, c, states = torch.zeros(3, 10), torch.zeros(3, 10), []
    input_weights, state_weights = f.tensor("cell.wi", 40, 8), f.tensor("cell.wh", 40, 10)
    input_bias, state_bias = f.tensor("cell.b", 40, scale=0.3), f.tensor("cell.bh", 40, scale=0.3)
    for step in range(6):
        gates = functional.linear(rows[:, step], input_weights, input_bias)
        i, forget, g, o = (gates + functional.linear(h, state_weights, state_bias)).chunk(4, 1)
        c = torch.sigmoid(forget) * c + torch.sigmoid(i) * torch.tanh(g)
        h = torch.sigmoid(o) * torch.tanh(c)
        states.append(h)
    return dense(f, "head", states[f.last_step], 10, 4)


def gpt(f: Settings, ids: Any) -> Any:
    table = f.tensor("wte.w", 30, 16, scale=0.5)
    x = functional.embedding(ids, table)
    x = x + functional.embedding(torch.arange(8), f.tensor("wpe.w", 8, 16, scale=0.5))
    for layer in LAYERS:
        q, k, v = dense(f, f"{layer}qkv", norm(f, f"{layer}n1", x), 16, 48).split(16, 2)
        q, k, v = (part.view(2, 8, 2, 8).transpose(1, 2) for part in (q, k, v))
        scale = f.attention_scale if layer == LAYERS[1] else None
        mask = torch.ones(8, 8, dtype=torch.bool).tril(f.mask_offset) if f.mask_offset else None
        mixed = functional.scaled_dot_product_attention(q, k, v, mask, is_causal=mask is None, scale=scale)
        mixed = dense(f, f"{layer}proj", mixed.transpose(1, 2).reshape(2, 8, 16), 16, 16)
        x = x + mixed if f.residual or layer == LAYERS[0] else mixed
        up = functional.gelu(dense(f, f"{layer}up", norm(f, f"{layer}n2", x), 16, 64), approximate="tanh")
        x = x + dense(f, f"{layer}down", up, 64, 16)
    return functional.linear(norm(f, "lnf", x), table)


def rms_norm(f: Settings, name: str, x: Any) -> Any:
    scaled = x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6)
    return f.tensor(f"{name}.w", 16, scale=0.2, offset=1) * scaled


def rotated(x: Any, cos: Any, sin: Any) -> Any:
    return x * cos + torch.cat((-x[..., 2:], x[..., :2]), -1) * sin


def llama(f: Settings, ids: Any) -> Any:
    x = functional.embedding(ids, f.tensor("emb.w", 30, 16, scale=1))
    y = rms_norm(f, "n1", x)
    sizes = (("q", 16), ("k", 8), ("v", 8))
    parts = [dense(f, name, y, 16, size, False).view(2, 6, size // 4, 4).transpose(1, 2) for name, size in sizes]
    cos, sin = map(torch.from_numpy, rotations(f.rotation_base))
    q, k, v = rotated(parts[0], cos, sin), rotated(parts[1], cos, sin), parts[2]
    k, v = k.repeat_interleave(2, 1), v.repeat_interleave(2, 1)
    scores = q @ k.transpose(-1, -2) / 2 + torch.full((6, 6), -1e9).triu(1)
    mixed = torch.softmax(scores, f.axis) @ v
    mixed = dense(f, "o", mixed.transpose(1, 2).reshape(2, 6, 16), 16, 16, False)
    x = x + mixed if f.residual else mixed
    y = rms_norm(f, "n2", x)
    gate, up = dense(f, "gate", y, 16, 40, False), dense(f, "up", y, 16, 40, False)
    gate, up = (up, gate) if f.swaps_gate else (gate, up)
    x = x + dense(f, "down", functional.silu(gate) * up, 40, 16, False)
    return dense(f, "lm", rms_norm(f, "nf", x), 16, 30, False)


def dump(network: str, path: Path, **changed: Any) -> Path:
    """Run a network on the host, and dump its ATen operators. changed: settings that a fault changes."""
    run = {"lstm": lstm, "gpt": gpt, "llama": llama}[network]
    with torch.no_grad(), ascend_dump.capture(path=path, framework="torch", steps="0"):
        run(Settings(**changed), torch.from_numpy(tokens(network)))
    return path
