"""The tiny network that the programs of several frameworks run: its shapes and weights, and the input of each step."""

from __future__ import annotations

from typing import Callable

import numpy as np

from ascend_dump.selftest.program import StepSeen

__all__ = ["HIDDEN", "IN", "OUT", "ROWS", "run_step", "weights"]

ROWS, IN, HIDDEN, OUT = 4, 64, 48, 8


def weights() -> tuple[np.ndarray, np.ndarray]:
    """Return the float32 weights of the two layers, of shape (IN, HIDDEN) and (HIDDEN, OUT); the same in each call."""
    draw = np.random.default_rng(0).standard_normal
    return draw((IN, HIDDEN)).astype("f4"), draw((HIDDEN, OUT)).astype("f4")


def run_step(run: Callable[[np.ndarray], np.ndarray], number: int, overflow: bool) -> StepSeen:
    """Call `run` with the input of step `number`, of shape (ROWS, IN), and return this input and the result.

    overflow: use an input near the largest float32, so that the first layer overflows.
    """
    if overflow:
        x = np.full((ROWS, IN), 3e38, "f4")
    else:
        x = np.random.default_rng(number).standard_normal((ROWS, IN)).astype("f4")
    y = run(x)
    return StepSeen([x], [y], [y])
