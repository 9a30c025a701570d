"""Find the heads whose elements the two programs have in another order, as rotary embeddings need them.

A rotary embedding turns pairs of elements: neighbours, or elements of the two halves of a head. An engine interleaves
the rows of the weights of queries and keys, so that the elements of their products have another order than in the other
program, from these products to the scores of attention. This order alone is no difference.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Optional

from ascend_dump.analysis.alignment.built_otherwise.products import NarrowPart
from ascend_dump.analysis.alignment.token_parts import distance, token_part
from ascend_dump.analysis.pairing.matches import RecordPair

if TYPE_CHECKING:
    import numpy as np

__all__ = ["in_order_of_heads", "orders_of_heads"]

#: Tensors agree up to this relative distance.
_AGREE = 1e-3


def orders_of_heads(wide: Iterable[Sequence[NarrowPart]]) -> list[tuple[int, ...]]:
    """Return the orders of the elements of a head of actual in which the reference has them. wide: parts of products"""
    orders = []
    for part in (part for parts in wide for part in parts):
        numbers = [number for piece in part.outputs for number in range(piece.start, piece.stop)]
        first = min(numbers, default=0)
        order = _order_of_head([number - first for number in numbers])
        if order is not None and order not in orders:
            orders.append(order)
    return orders


def _order_of_head(numbers: Sequence[int]) -> Optional[tuple[int, ...]]:
    """Return the order of one head if all heads have their halves interleaved, or their neighbours apart.

    >>> _order_of_head([0, 2, 1, 3, 4, 6, 5, 7]), _order_of_head([0, 1, 2, 3]), _order_of_head([2, 3, 0, 1])
    ((0, 2, 1, 3), None, None)
    """
    for size in range(4, len(numbers) + 1, 2):
        if len(numbers) % size:
            continue
        apart = [*range(0, size, 2), *range(1, size, 2)]
        interleaved = [start + half for start in range(size // 2) for half in (0, size // 2)]
        for order in (apart, interleaved):
            if [*numbers] == [begin + number for begin in range(0, len(numbers), size) for number in order]:
                return tuple(order)
    return None


def in_order_of_heads(pair: RecordPair, orders: Iterable[tuple[int, ...]]) -> None:
    """Read the values of actual in the order of the reference if they agree in one of the orders of a head only.

    pair: records with the values of common tokens
    """
    import numpy as np

    actual, reference = pair
    part = token_part(actual)
    if actual is None or reference is None or part is None or actual.shape is None or actual.shape != reference.shape:
        return
    size = math.prod(actual.shape[1:])
    fitting = [order for order in orders if size % len(order) == 0 and part.may_reorder]
    if not size or not fitting or distance(actual, reference) <= _AGREE:
        return
    for order in fitting:
        starts: np.ndarray = np.arange(0, size, len(order))[:, None]
        part.order = (starts + np.array(order)).reshape(-1)
        if distance(actual, reference) <= _AGREE:
            return
    part.order = None
