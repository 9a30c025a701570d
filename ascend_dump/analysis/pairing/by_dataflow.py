"""Pair operators by what they read: outputs of operators that are paired already, and tensors with equal bytes.

The place of a tensor in memory, its storage and the version of that, tells which operator made it. Names, order and
values of an operator may differ then: after a fault, in renamed modules, and in branches that run in another order.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import Callable, NamedTuple, Optional

from ascend_dump.analysis.operators.operator import Operator, storage_of

__all__ = ["pairs_by_flow"]

#: So many operators tell whether a dump says where its tensors were.
_LOOKED_AT = 64
_Key = Callable[[Operator], Hashable]


class _Input(NamedTuple):
    """An input: which operator made it, as which output, or its bytes where none did; both None: nothing tells."""

    number: int
    maker: Optional[tuple[int, int]]
    content: Optional[Hashable]


class _Flow:
    """What the operators of one step read, and who reads what they made, by their places."""

    def __init__(self, operators: Sequence[Operator]) -> None:
        self.operators = operators
        self.modules = {one.place for one in operators}
        self.inputs: list[list[_Input]] = []
        self.readers: list[set[int]] = [set() for _ in operators]
        made: dict[tuple[int, int], tuple[int, int]] = {}
        # Several tensors lie in these: who wrote to one of them did not make the others.
        shared: set[int] = set()
        for place, operator in enumerate(operators):
            found = []
            for record in operator.inputs:
                at = storage_of(record)
                maker = None if at is None or at[0] in shared else made.get(at)
                if maker is not None:
                    self.readers[maker[0]].add(place)
                found.append(_Input(record.index, maker, None if maker is not None else record.content))
            self.inputs.append(found)
            places = [at for at in map(storage_of, operator.outputs) if at is not None]
            shared.update(storage for storage, count in Counter(at[0] for at in places).items() if count > 1)
            for record in operator.outputs:
                at = storage_of(record)
                if at is not None:
                    made[at] = (place, record.index)

    def key(self, place: int, numbers: Mapping[int, int], kind: _Key) -> Optional[Hashable]:
        """What it reads and what it is; None where that is not known. numbers: of the pairs that operators are in."""
        told: list[Hashable] = []
        for one in self.inputs[place]:
            number = None if one.maker is None else numbers.get(one.maker[0])
            if one.maker is not None and number is not None:
                told.append((one.number, number, one.maker[1]))
            elif one.content is not None:
                told.append((one.number, one.content))
            else:
                return None
        return (kind(self.operators[place]), tuple(told)) if told else None


def pairs_by_flow(
    actual: Sequence[Operator], reference: Sequence[Operator], pairs: Iterable[tuple[int, int]], kind: _Key
) -> list[tuple[int, int]]:
    """More pairs of places of operators: those that are the only ones of their kind to read what they read.

    pairs: those that are known. kind: what both of a pair have in common. Operators of different modules are no pair
    where both programs have these modules: the names contradict then.
    """
    if not all(
        any(storage_of(one) for operator in side[:_LOOKED_AT] for one in operator.records)
        for side in (actual, reference)
    ):
        return []
    flows = _Flow(actual), _Flow(reference)
    numbers: tuple[dict[int, int], dict[int, int]] = ({}, {})
    for left, right in pairs:
        numbers[0][left] = numbers[1][right] = len(numbers[0])
    found: list[tuple[int, int]] = []
    waiting: tuple[Iterable[int], Iterable[int]] = (range(len(actual)), range(len(reference)))
    while True:
        sides = [_unique(flow, places, known, kind) for flow, places, known in zip(flows, waiting, numbers)]
        new = [(left, sides[1][key]) for key, left in sides[0].items() if key in sides[1]]
        new = [(left, right) for left, right in new if not _contradict(flows, left, right)]
        if not new:
            return found
        for left, right in new:
            numbers[0][left] = numbers[1][right] = len(numbers[0])
        found += new
        waiting = (
            sorted(set().union(*(flows[0].readers[left] for left, _ in new))),
            sorted(set().union(*(flows[1].readers[right] for _, right in new))),
        )


def _unique(flow: _Flow, places: Iterable[int], numbers: Mapping[int, int], kind: _Key) -> dict[Hashable, int]:
    found: dict[Hashable, int] = {}
    several = set()
    for place in places:
        key = None if place in numbers else flow.key(place, numbers, kind)
        if key is None:
            continue
        if key in found:
            several.add(key)
        found[key] = place
    return {key: place for key, place in found.items() if key not in several}


def _contradict(flows: tuple[_Flow, _Flow], left: int, right: int) -> bool:
    one, other = flows[0].operators[left].place, flows[1].operators[right].place
    return one != other and one in flows[1].modules and other in flows[0].modules
