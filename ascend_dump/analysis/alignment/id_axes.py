"""Find the axes of recorded ids, and the padding before them.

The rows of a batch may come before the slots, or behind them, or both are joined in one axis.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Optional

from ascend_dump.analysis.alignment.model_calls import ModelCall
from ascend_dump.analysis.operators.operator import storage_of

if TYPE_CHECKING:
    import numpy as np

__all__ = ["before_known_ids", "set_axes_of_ids"]

#: Minimum number of adjacent ids that both sides have if the axes are read in another order.
_LEAST_ADJACENT = 4
#: Minimum number of ids of a row behind padding that the other side has at the beginning of a request.
_LEAST_BEHIND = 3


def set_axes_of_ids(sides: Sequence[Sequence[ModelCall]]) -> None:
    """Turn the ids of the calls to [rows, slots], where a side records them as [slots, rows] or joined in one axis.

    The order of the axes is that in which most adjacent ids of a request are adjacent on the other side too. If both
    sides had the slots first, ids of one slot would be adjacent on both sides, so that at most one side is turned.
    """
    for calls in sides:
        _divide_joined(calls)
    as_recorded = [_adjacent_ids(calls, turned=False) for calls in sides]
    common = [
        sum((_adjacent_ids(calls, turned=True) & other).values()) for calls, other in zip(sides, as_recorded[::-1])
    ]
    most = max(common)
    if most >= _LEAST_ADJACENT and most > 2 * sum((as_recorded[0] & as_recorded[1]).values()):
        for call in sides[common.index(most)]:
            call.ids, call.slots_first = call.ids.T, True


def _divide_joined(calls: Sequence[ModelCall]) -> None:
    """Divide the ids of a side into rows, if each call looks up a view on ids that have two axes."""
    divided = [(call, ids) for call in calls if (ids := _before_view(call)) is not None]
    if len(divided) == len(calls) and any(min(ids.shape) > 1 for _, ids in divided):
        for call, ids in divided:
            call.ids = ids


def _before_view(call: ModelCall) -> Optional[np.ndarray]:
    """Return the ids of a call with the two axes that they have before a view joins these axes; None without a view."""
    storage = storage_of(call.ids_record)
    if len(call.ids_record.shape or ()) != 1 or storage is None:
        return None
    for operator in call.operators:
        if call.ids_record in operator.inputs:
            break
        for record in operator.inputs:
            shape = record.shape or ()
            if len(shape) == 2 and shape[0] * shape[1] == call.ids.size and storage_of(record) == storage:
                return call.ids.reshape(shape)
    return None


def _adjacent_ids(calls: Sequence[ModelCall], *, turned: bool) -> Counter[tuple[int, int]]:
    """Count the pairs of different ids in adjacent slots of a row. turned: True if the ids are [slots, rows]"""
    pairs = Counter[tuple[int, int]]()
    for call in calls:
        for row in (call.ids.T if turned else call.ids).tolist():
            pairs.update((a, b) for a, b in zip(row, row[1:]) if a != b)
    return pairs


def before_known_ids(ids: np.ndarray, requests: Sequence[Sequence[int]]) -> np.ndarray:
    """Return True for the slots of padding before a request of the other side, [rows, slots].

    A program that leaves out its mask computes with padding as with tokens. Padding has one id, and the longest row has
    none, so that a token which a program adds to each request is none.

    ids: [rows, slots]; requests: the ids of each request of the other side
    """
    import numpy as np

    counts = [_count_before(row, requests) for row in ids.tolist()]
    if 0 not in counts:
        return np.zeros(ids.shape, bool)
    return np.arange(ids.shape[1])[None] < np.array([count or 0 for count in counts])[:, None]


def _count_before(row: Sequence[int], requests: Sequence[Sequence[int]]) -> Optional[int]:
    """Return the number of slots of a row before a known request; None if the row has none."""
    for count in range(len(row) - _LEAST_BEHIND + 1):
        if len({*row[:count]}) > 1:
            break
        behind = row[count:]
        for request in requests:
            length = min(len(behind), len(request))
            if length >= _LEAST_BEHIND and behind[:length] == [*request[:length]] and len({*behind[length:]}) < 2:
                return count
    return None
