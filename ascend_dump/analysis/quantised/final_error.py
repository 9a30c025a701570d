"""Measure the share of the final error that a layer causes.

For this the reference is run again with the own error of this layer added to the layer's output.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple, Optional

import numpy as np

from ascend_dump.analysis.operators.operator import Operator
from ascend_dump.analysis.quantised.layer_error import LayerError
from ascend_dump.analysis.quantised.layer_inputs import values_of
from ascend_dump.analysis.quantised.run_operators import ChainRunner
from ascend_dump.analysis.quantised.segments import tensor_key
from ascend_dump.analysis.replay import NotRun
from ascend_dump.reading import Record

__all__ = ["Disturbance", "with_shares"]

#: A share is measured only for layers with a relative error above `_LEAST`, and only until `_MOST_RUNS` operators were
#: run for all layers together.
_LEAST, _MOST_RUNS = 1e-4, 20_000


class Disturbance(NamedTuple):
    """The own error of a layer, as an array.

    key       `tensor_key` of the output of the reference's layer
    recorded  the recorded values of this output
    """

    key: Any
    recorded: np.ndarray
    error: np.ndarray


def with_shares(
    runner: ChainRunner,
    layers: Sequence[LayerError],
    disturbances: Mapping[str, Disturbance],
    reference: Sequence[Operator],
    last: Optional[tuple[Record, Record]],
) -> tuple[list[LayerError], Optional[float], str]:
    """Return the layers with their shares, the relative error of the last output of the program, and a note.

    The note says why shares are missing; "" if nothing failed. Shares are measured in the given order, as long as
    `_MOST_RUNS` allows.

    disturbances  the own errors, by name of the layer
    reference     the operators of the reference in the step
    last          the last output of both sides; None if a side has none, or their sizes differ
    """
    if last is None:
        return list(layers), None, "the two sides have no last outputs of the same size: no share of the final error"
    try:
        expected = values_of(last[1])
        error = values_of(last[0]).reshape(expected.shape) - expected
    except NotRun as reason:
        return list(layers), None, f"no share of the final error: {reason}"
    with np.errstate(all="ignore"):
        energy, signal = float(np.sum(error * error)), float(np.sum(expected * expected))
        final = math.sqrt(energy / signal) if signal else math.inf
    if not energy or not math.isfinite(energy):
        return list(layers), final, ""
    forward = [operator for operator in reference if operator.phase in ("forward", "")]
    budget, note, with_share = _MOST_RUNS, "", []
    for layer in layers:
        disturbance = disturbances[layer.layer]
        is_large = math.inf > layer.numbers.relative > _LEAST
        if is_large and budget >= len(forward) and not note:
            budget -= len(forward)
            try:
                share = _share(runner, forward, disturbance, last[1], expected) / energy
                layer = replace(layer, share=share)
            except NotRun as reason:
                note = f"no share of the final error: {reason}"
        with_share.append(layer)
    return with_share, final, note


def _share(
    runner: ChainRunner, forward: Sequence[Operator], disturbance: Disturbance, last: Record, expected: np.ndarray
) -> float:
    """Run the reference with the error of one layer added. Return the sum of squares of the last output's change.

    Raises NotRun.
    """
    positions = [
        number
        for number, operator in enumerate(forward)
        if any(tensor_key(record) == disturbance.key for record in operator.outputs)
    ]
    after = forward[positions[-1] + 1 :] if positions else forward
    changed = runner.run(after, {disturbance.key: disturbance.recorded + disturbance.error}, None)
    result = changed.get(tensor_key(last))
    if result is None:
        return 0.0  # the last output does not depend on this layer
    with np.errstate(all="ignore"):
        change = np.asarray(result, np.float64).reshape(expected.shape) - expected
        return float(np.sum(change * change))
