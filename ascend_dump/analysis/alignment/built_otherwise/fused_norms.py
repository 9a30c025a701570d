"""Compute what a fused norm has inside: another program may run an operator for each of these tensors.

The normalised elements before the weight are no result of such an operator, so no tensor of its program shows that the
other program computes them rightly.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from ascend_dump.analysis.operators.arguments import arguments_of
from ascend_dump.analysis.operators.operator import Operator
from ascend_dump.analysis.operators.properties import operator_class

if TYPE_CHECKING:
    import numpy as np

__all__ = ["is_fused_norm", "results_inside"]

_WITH_MEAN, _WITHOUT_MEAN = "native_layer_norm", "_fused_rms_norm"


def is_fused_norm(operator: Operator) -> bool:
    """Return True for an operator that computes a whole norm over the last axes of a tensor."""
    return operator_class(operator.op_type) in (_WITH_MEAN, _WITHOUT_MEAN) and bool(operator.inputs)


def results_inside(operator: Operator, values: np.ndarray) -> list[np.ndarray]:
    """Return the tensors inside of a fused norm, [tokens, elements]; none if its arguments are not recorded.

    values: the elements of each token that the norm reads, [tokens, elements]
    """
    arguments = arguments_of(operator)
    eps = None if arguments is None else arguments.values.get("eps")
    weight = operator.inputs[1] if len(operator.inputs) > 1 else None
    shape = operator.inputs[0].shape or ()
    size = math.prod(shape[-1:] if weight is None else weight.shape or ())
    if not size or values.shape[1] % size or not isinstance(eps, float):
        return []
    of_rows = values.reshape(len(values), -1, size)
    has_mean = operator_class(operator.op_type) == _WITH_MEAN
    centred = of_rows - of_rows.mean(axis=-1, keepdims=True) if has_mean else of_rows
    squares = centred**2
    variance = squares.mean(axis=-1, keepdims=True)
    normed = centred / (variance + eps) ** 0.5
    results = [centred, squares, variance, variance + eps, (variance + eps) ** 0.5, (variance + eps) ** -0.5, normed]
    if weight is not None:
        results.append(normed * weight.numpy().astype(normed.dtype).reshape(-1))
    return [result.reshape(len(values), -1) for result in results]
