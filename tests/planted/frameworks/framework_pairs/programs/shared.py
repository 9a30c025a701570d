"""Weights, data and settings of the networks, made by numpy: the same for every framework."""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import numpy as np

STEPS = 3
WIDTH, LENGTH, HEADS, TOKENS, CLASSES = 16, 6, 2, 30, 5
Arrays = dict[str, np.ndarray]


class Settings:
    """The settings of a program; a planted fault changes one of them."""

    learning_rate = 0.1
    momentum = 0.9
    weight_decay = 0.0
    nesterov = False
    reduction = "mean"
    #: The stage whose output passes no gradient.
    detached = ""
    #: The parameter that the optimizer does not update.
    frozen = ""
    #: The layer without its bias.
    without_bias = ""
    #: Names of weights, and how they are wrong: "transposed", "rolled" or "scaled".
    weights: Mapping[str, str] = MappingProxyType({})
    activation = "gelu"
    eps = 1e-3
    eps_of = ""
    training = True
    symmetric_padding = False
    last_relu = True
    flat_order = "chw"
    pool = "max"
    residual = ""
    shortcut = True
    scale = True
    mask_value = -1e9
    mask_offset = 1
    axis = -1
    swapped = False
    merged_heads = True
    reset_after = True
    update_swapped = False
    last_state = -1
    embedding_scale = True
    position_offset = 0
    label_shift = 1
    ids_offset = 0
    keeps_gradients = False

    def __init__(self, **changed: Any) -> None:
        unknown = [name for name in changed if not hasattr(self, name)]
        if unknown:
            raise ValueError(f"unknown settings {unknown}")
        vars(self).update(changed)

    def eps_at(self, stage: str, right: float) -> float:
        """Return the epsilon of a norm; the wrong one if `eps_of` names the stage."""
        return self.eps if self.eps_of == stage else right

    def array(self, name: str, *shape: int, scale: float = 0.0, offset: float = 0.0) -> np.ndarray:
        """Return the weights with this name; `scale` 0 is that of a linear layer."""
        random = np.random.RandomState(zlib.crc32(name.encode()) & 0x7FFFFFFF)
        width = int(np.prod(shape[1:])) if len(shape) > 1 else shape[-1]
        value = np.asarray(random.standard_normal(shape) * (scale or 1 / np.sqrt(width)) + offset, "f4")
        change = self.weights.get(name, "")
        if change == "transposed":
            value = value.swapaxes(0, 1)
        elif change == "rolled":
            value = np.roll(value, 1, 0)
        elif change == "scaled":
            value = value * np.float32(1.05)
        return np.ascontiguousarray(value)


def data(network: str, step: int) -> Arrays:
    """Return the inputs and labels of a step; images are NCHW."""
    random = np.random.RandomState(100 + step)
    if network in ("cnn", "resnet"):
        return {
            "x": random.standard_normal((4, 3, 8, 8)).astype("f4"),
            "y": random.randint(0, CLASSES, 4).astype("i4"),
        }
    if network == "lm":
        return {"x": random.randint(0, TOKENS, (3, LENGTH + 1)).astype("i4")}
    if network == "tower":
        return {
            "x": random.randint(0, 20, (8, 2)).astype("i4"),
            "dense": random.standard_normal((8, 4)).astype("f4"),
            "y": random.randint(0, 2, 8).astype("f4"),
        }
    if network == "block":
        return {name: random.standard_normal((2, LENGTH, WIDTH)).astype("f4") for name in ("x", "y")}
    if network == "gru":
        return {
            "x": random.standard_normal((3, 4, 8)).astype("f4"),
            "y": random.randint(0, CLASSES, 3).astype("i4"),
        }
    return {"x": random.standard_normal((8, 12)).astype("f4"), "y": random.randint(0, CLASSES, 8).astype("i4")}


def mask(settings: Settings) -> np.ndarray:
    """Return the causal mask that is added to scores."""
    return np.triu(np.full((LENGTH, LENGTH), settings.mask_value, "f4"), settings.mask_offset)
