"""Pair operators that read the same tensors: outputs of operators that are already paired, or tensors of equal bytes.

The storage of a tensor in memory identifies the operator that made it. So operators are paired even if their names,
order and values differ: after a fault, in renamed modules, and in branches that run in another order.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping
from typing import Callable, Optional

from ascend_dump.analysis.operators.arguments import are_other_updates, in_any_order
from ascend_dump.analysis.operators.operator import Operator
from ascend_dump.analysis.pairing.data_flow import DataFlow, Flows, InputSource, layout_of

__all__ = ["pairs_by_flow"]

_Key = Callable[[Operator], Hashable]


def pairs_by_flow(flows: Flows, pairs: Iterable[tuple[int, int]], kind: _Key) -> list[tuple[int, int]]:
    """Return more pairs of positions: operators that read the same tensors, if no others of their kind read these.

    Operators of different modules are no pair if both programs have both modules.

    pairs: the known pairs of positions. kind: returns the properties that both operators of a pair must share
    """
    numbers: tuple[dict[int, int], dict[int, int]] = ({}, {})
    for position_a, position_b in pairs:
        numbers[0][position_a] = numbers[1][position_b] = len(numbers[0])
    discovered: list[tuple[int, int]] = []
    waiting: tuple[Iterable[int], Iterable[int]] = (range(len(flows[0].operators)), range(len(flows[1].operators)))
    while True:
        sides = [_unique(flow, positions, paired, kind) for flow, positions, paired in zip(flows, waiting, numbers)]
        new = [(position, sides[1][key]) for key, position in sides[0].items() if key in sides[1]]
        new = [pair for pair in new if not _contradict(flows, *pair)]
        if not new:
            return discovered
        for position_a, position_b in new:
            numbers[0][position_a] = numbers[1][position_b] = len(numbers[0])
        discovered += new
        waiting = (
            sorted(set().union(*(flows[0].readers[position_a] for position_a, _ in new))),
            sorted(set().union(*(flows[1].readers[position_b] for _, position_b in new))),
        )


def _unique(flow: DataFlow, positions: Iterable[int], numbers: Mapping[int, int], kind: _Key) -> dict[Hashable, int]:
    unique: dict[Hashable, int] = {}
    repeated = set()
    for position in positions:
        inputs = None if position in numbers else _known_inputs(flow, position, numbers)
        if inputs is None:
            continue
        key = (kind(flow.operators[position]), inputs)
        if key in unique:
            repeated.add(key)
        unique[key] = position
    return {key: position for key, position in unique.items() if key not in repeated}


def _known_inputs(flow: DataFlow, position: int, numbers: Mapping[int, int]) -> Optional[Hashable]:
    """Return a key of the tensors that an operator reads; None if one of them is unknown, or if it reads none.

    numbers: for each paired operator, by position: the number of its pair
    """
    inputs: list[Hashable] = []
    for source in flow.sources[position]:
        known = _known_source(source, numbers)
        if known is not None:
            inputs.append(known)
        elif source.content is not None:
            inputs.append(source.content)
        else:
            return None
    indices = tuple(source.record.index for source in flow.sources[position])
    return (indices, in_any_order(flow.operators[position], inputs)) if inputs else None


def _known_source(source: InputSource, numbers: Mapping[int, int]) -> Optional[Hashable]:
    """Return a key of an input: the number of the pair that made it, and the index of the output.

    If the maker is a view or copy without a partner: the pair that made the original tensor, the index of the output,
    and the part of the storage that the view covers. None if neither has a partner.
    """
    if source.maker is None:
        return None
    if source.maker.position in numbers:
        return numbers[source.maker.position], source.maker.output
    if source.root is not None and source.root.position in numbers:
        return (numbers[source.root.position], source.root.output, *layout_of(source.record))
    return None


def _contradict(flows: Flows, position_a: int, position_b: int) -> bool:
    a, b = flows[0].operators[position_a], flows[1].operators[position_b]
    is_elsewhere = a.module_path in flows[1].modules and b.module_path in flows[0].modules
    return (a.module_path != b.module_path and is_elsewhere) or are_other_updates(a, b)
