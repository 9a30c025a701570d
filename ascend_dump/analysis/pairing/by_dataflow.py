"""Pair operators by their inputs: outputs of operators that are already paired, and tensors with equal bytes.

The storage of a tensor in memory, and its version, identify the operator that made it. So the name, order and values of
an operator may differ: after a fault, in renamed modules, and in branches that run in another order.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import Callable, NamedTuple, Optional

from ascend_dump.analysis.operators.operator import Operator, storage_of

__all__ = ["pairs_by_flow"]

#: Number of operators that are checked for recorded storages.
_CHECKED = 64
_Key = Callable[[Operator], Hashable]


class _Input(NamedTuple):
    """An input: the operator that made it and the index of its output, else its bytes; both None if unknown."""

    input_index: int
    maker: Optional[tuple[int, int]]
    content: Optional[Hashable]


class _Flow:
    """The inputs of the operators of one step, and the readers of their outputs, by position."""

    def __init__(self, operators: Sequence[Operator]) -> None:
        self.operators = operators
        self.modules = {operator.module_path for operator in operators}
        self.inputs: list[list[_Input]] = []
        self.readers: list[set[int]] = [set() for _ in operators]
        makers: dict[tuple[int, int], tuple[int, int]] = {}
        # Storages of several tensors: an operator that wrote to one tensor did not make the others.
        shared: set[int] = set()
        for position, operator in enumerate(operators):
            inputs = []
            for record in operator.inputs:
                storage = storage_of(record)
                maker = None if storage is None or storage[0] in shared else makers.get(storage)
                if maker is not None:
                    self.readers[maker[0]].add(position)
                inputs.append(_Input(record.index, maker, None if maker is not None else record.content))
            self.inputs.append(inputs)
            numbers = Counter(storage[0] for storage in map(storage_of, operator.outputs) if storage is not None)
            shared.update(number for number, count in numbers.items() if count > 1)
            for record in operator.outputs:
                storage = storage_of(record)
                if storage is not None:
                    makers[storage] = (position, record.index)

    def key(self, position: int, numbers: Mapping[int, int], kind: _Key) -> Optional[Hashable]:
        """Return the inputs and the kind of an operator; None if unknown. numbers: of the pairs, by operator."""
        sources: list[Hashable] = []
        for read in self.inputs[position]:
            number = None if read.maker is None else numbers.get(read.maker[0])
            if read.maker is not None and number is not None:
                sources.append((read.input_index, number, read.maker[1]))
            elif read.content is not None:
                sources.append((read.input_index, read.content))
            else:
                return None
        return (kind(self.operators[position]), tuple(sources)) if sources else None


def pairs_by_flow(
    actual: Sequence[Operator], reference: Sequence[Operator], pairs: Iterable[tuple[int, int]], kind: _Key
) -> list[tuple[int, int]]:
    """Return more pairs of positions: the only operators of their kind that read the same tensors.

    pairs: the pairs that are known. kind: the properties that both operators of a pair share. Operators of different
    modules are no pair if both programs have these modules: their names contradict it.
    """
    if not all(
        any(storage_of(record) for operator in side[:_CHECKED] for record in operator.records)
        for side in (actual, reference)
    ):
        return []
    flows = _Flow(actual), _Flow(reference)
    numbers: tuple[dict[int, int], dict[int, int]] = ({}, {})
    for position_a, position_b in pairs:
        numbers[0][position_a] = numbers[1][position_b] = len(numbers[0])
    discovered: list[tuple[int, int]] = []
    waiting: tuple[Iterable[int], Iterable[int]] = (range(len(actual)), range(len(reference)))
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


def _unique(flow: _Flow, positions: Iterable[int], numbers: Mapping[int, int], kind: _Key) -> dict[Hashable, int]:
    unique: dict[Hashable, int] = {}
    repeated = set()
    for position in positions:
        key = None if position in numbers else flow.key(position, numbers, kind)
        if key is None:
            continue
        if key in unique:
            repeated.add(key)
        unique[key] = position
    return {key: position for key, position in unique.items() if key not in repeated}


def _contradict(flows: tuple[_Flow, _Flow], position_a: int, position_b: int) -> bool:
    module_a, module_b = flows[0].operators[position_a].module_path, flows[1].operators[position_b].module_path
    return module_a != module_b and module_a in flows[1].modules and module_b in flows[0].modules
