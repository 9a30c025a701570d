"""Recognise caches of a fixed length: new keys and values are written into them.

They have room for all tokens, or for a window of tokens, so that new ones take the places of the oldest ones.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Optional

from ascend_dump.analysis.alignment.model_calls import ModelCall
from ascend_dump.analysis.numerics.float_types import float_kind
from ascend_dump.analysis.operators.operator import Operator
from ascend_dump.analysis.operators.properties import operator_class

__all__ = ["keeps_window", "room_of"]

_WRITES = frozenset({"index_copy", "index_copy_", "index_put", "index_put_"})


def room_of(calls: Sequence[ModelCall], operators: Mapping[int, Operator]) -> int:
    """Return the number of tokens that a cache has room for, if an operator writes new tokens into it; else 0.

    The first floating-point input of such an operator is the cache, the second one the keys or values of the new
    tokens. Their shapes differ only in the axis of tokens, and maybe in that of the rows: a cache may have more rows
    than a call.

    operators: the same operator in each call, by index of the call
    """
    rooms = set()
    for index, operator in operators.items():
        if operator_class(operator.op_type) not in _WRITES:
            continue  # an operator that was paired wrongly
        tensors, call = _cache_and_new(operator), calls[index]
        if tensors is None:
            return 0
        axes = [axis for axis, (room, new) in enumerate(zip(*tensors)) if room != new]
        if not axes and call.width in tensors[0]:
            rooms.add(call.width)  # the prompt fills the cache
        elif len(axes) == 1 and tensors[1][axes[0]] == call.width:
            rooms.add(tensors[0][axes[0]])
        elif len(axes) == 2 and tensors[1][axes[0]] == call.rows and tensors[1][axes[1]] == call.width:
            rooms.add(tensors[0][axes[1]])
        else:
            return 0
    [room] = rooms if len(rooms) == 1 else {0}
    return room if room > max((calls[index].width for index in operators), default=0) else 0


def keeps_window(calls: Sequence[ModelCall], operators: Mapping[int, Operator]) -> bool:
    """Return True if an operator writes the last tokens into a cache that has no room for all tokens of a call.

    operators: the same operator in each call, by index of the call
    """
    widest = max((calls[index].width for index in operators), default=0)
    windows: Optional[set[int]] = None
    is_part = False
    for index, operator in operators.items():
        tensors, call = _cache_and_new(operator), calls[index]
        if operator_class(operator.op_type) not in _WRITES or tensors is None:
            return False
        sizes = list(zip(*tensors))
        rooms = {
            room
            for axis, (room, new) in enumerate(sizes)
            if new == min(call.width, room)
            and all(a == b or b == call.rows for a, b in sizes[:axis] + sizes[axis + 1 :])
        }
        windows = rooms if windows is None else windows & rooms
        is_part |= any(new < room for room, new in sizes if room in windows)
    return is_part and any(window < widest for window in windows or ())


def _cache_and_new(operator: Operator) -> Optional[tuple[tuple[int, ...], tuple[int, ...]]]:
    """Return the shapes of a cache and of what is written into it, with as many axes; None for other operators."""
    tensors = [record.shape or () for record in operator.inputs if float_kind(record.dtype or "") is not None]
    if len(tensors) != 2 or len(tensors[0]) < len(tensors[1]):
        return None
    # PyTorch leaves out first axes of size 1, such as that of a single token or row.
    return tensors[0], (*[1] * (len(tensors[0]) - len(tensors[1])), *tensors[1])
