"""Choose which records of two dumps are compared with each other: of the same step and rank, or of several ranks."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import islice
from types import MappingProxyType
from typing import Any, NamedTuple, Optional

from ascend_dump.analysis.alignment.rank_parts.tensors import RanksOfSide
from ascend_dump.analysis.alignment.shard_notation import ShardLayouts
from ascend_dump.analysis.alignment.shards import NO_LAYOUTS, Portion, Portions, hold_parts
from ascend_dump.analysis.operators.layer_names import layers_of_other_names, with_names_of
from ascend_dump.analysis.operators.operator import Operator, operators
from ascend_dump.reading import Batch, MadeOf, Record, world_size_of

__all__ = [
    "Key",
    "RankGroup",
    "ReadMadeOf",
    "Steps",
    "by_key",
    "joined_steps",
    "may_be_parts",
    "numbered_alike",
    "operators_in",
]

Key = tuple[Optional[int], Optional[int]]  # rank, step
Steps = list[tuple[Key, list[Batch], list[Batch]]]  # of actual, of the reference
ReadMadeOf = Callable[[Record], MadeOf]


def may_be_parts(count: int, other_count: int, layouts: ShardLayouts) -> bool:
    """Return True if ranks may contain parts of the tensors of the other side; else one side merely lacks ranks.

    This is possible if one side has a multiple of the number of ranks of the other side, or if the user gave layouts.
    """
    smaller, larger = sorted((count, other_count))
    return larger != smaller and smaller > 0 and (larger % smaller == 0 or bool(layouts))


class RankGroup(NamedTuple):
    """The ranks of the side with more ranks. Their tensors are parts of the tensors of the other side.

    of_actual    True if this side is actual
    numbers      numbers of the ranks, in order
    batches      records of these ranks, by rank and step
    made_of      `Dump.made_of` of this side
    counterpart  the ranks of the other side, if it has several ranks too
    layouts      the layouts that the user gave
    over_ranks   sums and means over ranks that were found so far, by contents
    layers       by rank: the paths of modules that have another path on the other side
    """

    of_actual: bool
    numbers: tuple[Optional[int], ...]
    batches: dict[Key, list[Batch]]
    made_of: ReadMadeOf
    counterpart: Optional[RankGroup] = None
    layouts: ShardLayouts = NO_LAYOUTS
    over_ranks: Optional[dict[Any, Portion]] = None
    layers: Mapping[Optional[int], Mapping[str, str]] = MappingProxyType({})

    @classmethod
    def of(
        cls,
        a: dict[Key, list[Batch]],
        b: dict[Key, list[Batch]],
        made_of: tuple[ReadMadeOf, ReadMadeOf],
        layouts: ShardLayouts = NO_LAYOUTS,
    ) -> Optional[RankGroup]:
        """Return the group of ranks; None if neither numbers of ranks, layouts, placements nor shapes show parts."""
        ranks = [tuple(sorted({rank for rank, _ in side}, key=_number)) for side in (a, b)]
        if not may_be_parts(len(ranks[0]), len(ranks[1]), layouts):
            return None
        sides = [cls(i == 0, ranks[i], side, made_of[i], None, layouts, {}) for i, side in enumerate((a, b))]
        several, few = sides if len(ranks[0]) > len(ranks[1]) else sides[::-1]
        group = several._replace(counterpart=few if len(few.numbers) > 1 else None)
        if group.counterpart is None:
            group = group._replace(layers=_own_layers(several, few))
        if layouts or _are_of_other_worlds(a, b):
            return group
        for (rank, step), batches in few.batches.items():
            first = several.batches.get((several.numbers[0], step))
            if rank == few.numbers[0] and first is not None:
                operators = operators_in(first, several.made_of), operators_in(batches, few.made_of)
                counts = len(several.numbers), len(few.numbers)
                return group if hold_parts(*operators, counts) else None
        return None

    def joined(self, few: dict[Key, list[Batch]]) -> Steps:
        """Pair the steps of each rank with the steps of a rank of the other side, like `joined_steps`.

        Each rank of the other side gets equally many ranks of this side. few: the records of the other side
        """
        other_ranks = tuple(sorted({rank for rank, _ in few}, key=_number))
        steps = sorted({step for _, step in (*few, *self.batches)}, key=_number)
        rows = [
            ((rank, step), self.batches.get((rank, step), []), few.get((other_ranks[self._partner(rank)], step), []))
            for rank in self.numbers
            for step in steps
        ]
        return rows if self.of_actual else [(key, whole, part) for key, part, whole in rows]

    def _partner(self, rank: Optional[int]) -> int:
        """Return the position of the rank of the other side with which a rank is compared."""
        count = 1 if self.counterpart is None else len(self.counterpart.numbers)
        return self.numbers.index(rank) * count // len(self.numbers)

    def operators(self, rank: Optional[int], batches: Iterable[Batch]) -> list[Operator]:
        """Return the operators of a rank of this side, with the paths of modules of the other side."""
        return with_names_of(operators_in(batches, self.made_of), self.layers.get(rank, {}))

    def shards(self, key: Key, parts: Sequence[Operator], whole: Sequence[Operator]) -> Portions:
        """Return the `Portions` of one rank in one step.

        key    the rank and the step
        parts  the operators of this rank
        whole  the operators of the rank of the other side with which this rank is compared
        """
        rank, step = key
        position = self.numbers.index(rank)
        partner = None
        if self.counterpart is not None:
            partner = self.counterpart._portions(self._partner(rank), step, whole, None)
        return self._portions(position, step, parts, partner, whole)

    def _portions(
        self,
        position: int,
        step: Optional[int],
        parts: Sequence[Operator],
        counterpart: Optional[Portions],
        whole: Sequence[Operator] = (),
    ) -> Portions:
        def operators_of(index: int) -> list[Operator]:
            rank = self.numbers[index]
            return self.operators(rank, self.batches.get((rank, step), []))

        return Portions(
            RanksOfSide(parts, operators_of, self.numbers, position, self.layouts),
            of_actual=self.of_actual,
            counterpart=counterpart,
            over_ranks=self.over_ranks,
            whole=whole,
        )


def _own_layers(several: RankGroup, few: RankGroup) -> dict[Optional[int], dict[str, str]]:
    """Return for each rank the modules that have another path on the other side, by the weights of its first step."""
    layers: dict[Optional[int], dict[str, str]] = {}
    for rank, step in sorted(several.batches, key=lambda key: _number(key[1])):
        whole = few.batches.get((few.numbers[0], step))
        if rank not in layers and whole:
            parts = several.batches[rank, step]
            layers[rank] = layers_of_other_names(operators_in(parts, None), operators_in(whole, None))
    return {rank: paths for rank, paths in layers.items() if paths}


def _are_of_other_worlds(*sides: dict[Key, list[Batch]]) -> bool:
    """Return True if the sides ran on different numbers of ranks, and all ranks are present in both dumps."""
    sizes = [
        {
            None if record.path is None else world_size_of(record.path.parts)
            for batches in side.values()
            for batch in batches[:1]
            for record in islice(batch, 1)
        }
        for side in sides
    ]
    worlds = [size.pop() if len(size) == 1 else None for size in sizes]
    present = [len({rank for rank, _ in side}) for side in sides]
    return None not in worlds and worlds[0] != worlds[1] and worlds == present


def _number(value: Optional[int]) -> int:
    return -1 if value is None else value


def numbered_alike(a: dict[Key, list[Batch]], b: dict[Key, list[Batch]]) -> dict[Key, list[Batch]]:
    """Return `a` with the step number of `b` if each side has a single step; else return `a`."""
    steps = [{step for _, step in side} for side in (a, b)]
    if any(len(numbers) != 1 for numbers in steps):
        return a
    [step] = steps[1]
    return {(rank, step): batches for (rank, _), batches in a.items()}


def joined_steps(a: dict[Key, list[Batch]], b: dict[Key, list[Batch]]) -> Steps:
    """Return (rank and step, records of actual, records of the reference), rank by rank in the order of steps.

    If each side has a single rank, or a single step of a single rank, these are paired even if their numbers differ.
    """
    rank_a, rank_b = {rank for rank, _ in a}, {rank for rank, _ in b}
    if len(rank_a) == len(rank_b) == 1 and rank_a != rank_b:
        [only_a], [only_b] = rank_a, rank_b
        a = {(only_b, step): records for (_, step), records in a.items() if only_a is not only_b}
    if len(a) == len(b) == 1:
        [(key, batches_b)] = b.items()
        [batches_a] = a.values()
        return [(key, batches_a, batches_b)]

    return by_key(a, b)


def by_key(a: dict[Key, list[Batch]], b: dict[Key, list[Batch]]) -> Steps:
    """Pair each rank and step with the same rank and step of the other side; empty lists stand for missing ones."""
    keys = sorted({*a, *b}, key=lambda key: (_number(key[0]), _number(key[1])))
    return [(key, a.get(key, []), b.get(key, [])) for key in keys]


def operators_in(batches: Iterable[Batch], made_of: Optional[ReadMadeOf]) -> list[Operator]:
    return operators((record for batch in batches for record in batch), made_of)
