"""A network of two layers, and the loss of one batch."""

from __future__ import annotations

import sys
from typing import Any

import jax
import jax.numpy as jnp


def parameters() -> dict[str, Any]:
    first, second = jax.random.split(jax.random.key(0))
    return {
        "hidden": jax.random.normal(first, (8, 16)) * 0.3,
        "bias": jnp.zeros(16),
        "out": jax.random.normal(second, (16, 4)) * 0.3,
    }


def batch() -> Any:
    return jnp.linspace(-1, 1, 24).reshape(3, 8)


def loss(weights: dict[str, Any], inputs: Any) -> Any:
    hidden = jax.nn.relu(inputs @ weights["hidden"] + weights["bias"])
    logits = hidden @ weights["out"]
    return -jnp.log(jax.nn.softmax(logits, axis=-1)[:, 0]).mean()


def main(path: str, scale: float) -> None:
    from ascend_dump_jax import Recordable

    import ascend_dump

    weights, inputs = parameters(), batch()
    weights["out"] = weights["out"] * scale
    step = Recordable(loss)
    with ascend_dump.capture(step, path=path, steps="0-1", quiet=True):
        for number in range(3):
            print(f"step {number}: loss {float(step(weights, inputs)):.4f}")


if __name__ == "__main__":
    main(sys.argv[1], float(sys.argv[2]) if len(sys.argv) > 2 else 1.0)
