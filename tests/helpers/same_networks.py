"""Inputs and weights of three small networks, made by numpy, so that they are the same for every framework."""

from __future__ import annotations

import numpy as np

NETWORKS = ("mlp", "conv", "transformer")
HEADS = 2


def _draw(seed: int, *shape: int) -> np.ndarray:
    return (np.random.RandomState(seed).standard_normal(shape) / np.sqrt(shape[-1])).astype("f4")


def inputs(network: str) -> np.ndarray:
    """Rows of features; images as NCHW; sequences as (batch, length, width)."""
    shape = {"mlp": (4, 8), "conv": (2, 3, 8, 8), "transformer": (2, 4, 8)}[network]
    return np.random.RandomState(7).standard_normal(shape).astype("f4")


def weights(network: str) -> dict[str, np.ndarray]:
    """Matrices as (outputs, inputs), kernels as OIHW, as PyTorch has them."""
    if network == "mlp":
        return {"up.w": _draw(1, 16, 8), "up.b": _draw(2, 16), "down.w": _draw(3, 3, 16), "down.b": _draw(4, 3)}
    if network == "conv":
        positive = {name: np.abs(_draw(seed, 4)) + 0.5 for name, seed in (("gamma", 2), ("variance", 5))}
        return {
            "kernel": _draw(1, 4, 3, 3, 3),
            **positive,
            "beta": _draw(3, 4),
            "mean": _draw(4, 4),
            "head.w": _draw(6, 3, 4),
            "head.b": _draw(7, 3),
        }
    found = {}
    for seed, name in enumerate(("q", "k", "v", "o")):
        found[f"{name}.w"], found[f"{name}.b"] = _draw(10 + seed, 8, 8), _draw(20 + seed, 8)
    found.update({"up.w": _draw(30, 16, 8), "up.b": _draw(31, 16), "down.w": _draw(32, 8, 16), "down.b": _draw(33, 8)})
    for seed, name in enumerate(("norm1", "norm2")):
        found[f"{name}.w"], found[f"{name}.b"] = _draw(40 + seed, 8) + 1, _draw(50 + seed, 8)
    return found
