"""Operators that return a part of the elements of their input."""

from __future__ import annotations

import math

from ascend_dump.analysis.operators.names import is_view
from ascend_dump.analysis.operators.operator import Operator
from ascend_dump.analysis.operators.properties import operator_class

__all__ = ["may_pick", "picks_elements"]

_PICKING = frozenset(
    {
        *("index", "index_select", "gather", "take_along_dim", "masked_select", "select", "slice", "narrow"),
        *("split", "split_with_sizes", "chunk", "tensor_split", "unbind"),
    }
)


def may_pick(operator: Operator) -> bool:
    """Return True for an operator whose type returns a part of the elements."""
    return operator_class(operator.op_type) in _PICKING


def picks_elements(operator: Operator) -> bool:
    """Return True for an operator that returns a part of the elements, as no select on an axis of size 1 does."""
    if not may_pick(operator):
        return False
    is_gather = not is_view(operator.op_type)
    return is_gather or math.prod(operator.outputs[0].shape or ()) != math.prod(operator.inputs[0].shape or ())
