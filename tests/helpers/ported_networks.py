"""Weights and tokens of networks of tokens, made by numpy, so that they are the same for every framework."""

from __future__ import annotations

import zlib

import numpy as np

NETWORKS = ("lstm", "gpt", "llama")
LAYERS = ("h0.", "h1.")


def draw(name: str, *shape: int, scale: float = 0.0, offset: float = 0.0) -> np.ndarray:
    """Return the tensor of this name; `scale` is that of a linear layer unless it is given."""
    random = np.random.RandomState(zlib.crc32(name.encode()) & 0x7FFFFFFF)
    values = random.standard_normal(shape) * (scale or 1 / np.sqrt(shape[-1])) + offset
    return np.asarray(values, "f4")


def tokens(network: str) -> np.ndarray:
    """Return the tokens, as (batch, length)."""
    highest, shape = {"lstm": (20, (3, 6)), "gpt": (30, (2, 8)), "llama": (30, (2, 6))}[network]
    return np.random.RandomState(11).randint(0, highest, shape)


def rotations(base: float = 10000.0) -> tuple[np.ndarray, np.ndarray]:
    """Return the cosines and sines of the positions, each as (length, width of a head)."""
    angles = np.outer(np.arange(6), 1 / base ** (np.arange(0, 4, 2) / 4))
    doubled = np.concatenate([angles, angles], -1)
    return np.asarray(np.cos(doubled), "f4"), np.asarray(np.sin(doubled), "f4")
