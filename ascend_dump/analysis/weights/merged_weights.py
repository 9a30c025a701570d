"""Find the weights of one side into which a low-rank adapter of the other side was merged."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple, Optional

from ascend_dump.analysis.numerics.float_types import narrower
from ascend_dump.analysis.numerics.merged_adapters import LowRankAdapter, adapters_in, merged_factor
from ascend_dump.analysis.operators.operator import is_same_name
from ascend_dump.analysis.weights.sides import Side

__all__ = ["MergedWeight", "merged_weights"]


class MergedWeight(NamedTuple):
    """A weight that is, up to rounding, the sum of a weight of the other side and its adapter.

    side    the side with the merged weight: 0 for actual
    number  the merged weight
    parts   on the other side: the weight without the adapter, and the matrices of the adapter
    text    the sum in words
    """

    side: int
    number: int
    parts: tuple[int, ...]
    text: str


def merged_weights(sides: tuple[Side, Side], unpaired: Sequence[Iterable[int]]) -> Iterator[MergedWeight]:
    """Yield the weights into which an adapter of the other side was merged. unpaired: for each side its weights."""
    names = [[side.names[number] for number in numbers] for side, numbers in zip(sides, unpaired)]
    for apart, (side, whole) in enumerate((sides, sides[::-1])):
        for adapter in adapters_in(names[apart]):
            # A wrapper adds words to the beginning of a name.
            name = next((name for name in names[1 - apart] if is_same_name(name, adapter.merged)), None)
            factor = None if name is None else _factor(whole, name, side, adapter)
            if name is not None and factor is not None:
                parts = tuple(side.number_of[part] for part in (adapter.base, adapter.down, adapter.up))
                yield MergedWeight(1 - apart, whole.number_of[name], parts, adapter.formula(factor))


def _factor(whole: Side, name: str, side: Side, adapter: LowRankAdapter) -> Optional[float]:
    tensors = [whole.tensors[whole.number_of[name]]]
    tensors += [side.tensors[side.number_of[part]] for part in (adapter.base, adapter.down, adapter.up)]
    if tensors[0].shape != tensors[1].shape:
        return None
    weight, base, down, up = (tensor.elements().reshape(tensor.shape) for tensor in tensors)
    return merged_factor(weight, base, down, up, functools.reduce(narrower, (tensor.dtype for tensor in tensors)))
