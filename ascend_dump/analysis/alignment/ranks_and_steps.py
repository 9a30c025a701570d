"""Which records of two dumps are compared with each other: step by step, rank by rank, or several ranks with fewer."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple, Optional

from ascend_dump.analysis.alignment.shard_notation import GivenShards
from ascend_dump.analysis.alignment.shards import NOT_GIVEN, Portions, hold_parts
from ascend_dump.analysis.operators.operator import Operator, operators
from ascend_dump.reading import Batch, MadeOf, Record

__all__ = ["Key", "Made", "RankGroup", "Steps", "by_key", "joined_steps", "may_be_parts", "operators_in"]

Key = tuple[Optional[int], Optional[int]]  # rank, step
Steps = list[tuple[Key, list[Batch], list[Batch]]]  # of actual, of the reference
Made = Callable[[Record], MadeOf]


def may_be_parts(count: int, other: int, given: GivenShards) -> bool:
    """Whether ranks of both sides may hold different parts; else the smaller side just lacks ranks.

    They may if one side has a multiple of the ranks of the other, or if the user says so.
    """
    more, fewer = max(count, other), min(count, other)
    return more != fewer and fewer > 0 and (more % fewer == 0 or bool(given))


class RankGroup(NamedTuple):
    """The ranks of the side that has more of them, whose tensors are parts of those of the other side's ranks.

    numbers     numbers of the ranks, in order
    batches     of these ranks
    made_of     `Dump.made_of` of this side
    other       the ranks of the other side, if it has several too
    given       the layouts that the user gave
    """

    of_actual: bool
    numbers: tuple[Optional[int], ...]
    batches: dict[Key, list[Batch]]
    made_of: Made
    other: Optional[RankGroup] = None
    given: GivenShards = NOT_GIVEN

    @classmethod
    def of(
        cls,
        a: dict[Key, list[Batch]],
        b: dict[Key, list[Batch]],
        made_of: tuple[Made, Made],
        given: GivenShards = NOT_GIVEN,
    ) -> Optional[RankGroup]:
        """None if neither the numbers of ranks, nor the user, nor shapes indicate parts."""
        ranks = [tuple(sorted({rank for rank, _ in side}, key=_number)) for side in (a, b)]
        if not may_be_parts(len(ranks[0]), len(ranks[1]), given):
            return None
        sides = [cls(place == 0, ranks[place], side, made_of[place], None, given) for place, side in enumerate((a, b))]
        several, few = sides if len(ranks[0]) > len(ranks[1]) else sides[::-1]
        found = several._replace(other=few if len(few.numbers) > 1 else None)
        if given:
            return found
        for (rank, step), batches in few.batches.items():
            own = several.batches.get((several.numbers[0], step))
            if rank == few.numbers[0] and own is not None:
                operators = operators_in(own, several.made_of), operators_in(batches, few.made_of)
                counts = len(several.numbers), len(few.numbers)
                return found if hold_parts(*operators, counts) else None
        return None

    def joined(self, few: dict[Key, list[Batch]]) -> Steps:
        """Like `joined_steps`: each rank with one of the other side, each of which gets equally many."""
        others = tuple(sorted({rank for rank, _ in few}, key=_number))
        steps = sorted({step for _, step in (*few, *self.batches)}, key=_number)
        rows = [
            ((rank, step), self.batches.get((rank, step), []), few.get((others[self._partner(rank)], step), []))
            for rank in self.numbers
            for step in steps
        ]
        return rows if self.of_actual else [(key, whole, own) for key, own, whole in rows]

    def _partner(self, rank: Optional[int]) -> int:
        """The position of the rank of the other side that one of this side is compared with."""
        count = 1 if self.other is None else len(self.other.numbers)
        return self.numbers.index(rank) * count // len(self.numbers)

    def shards(self, key: Key, own: Sequence[Operator], whole: Sequence[Operator]) -> Portions:
        """The other ranks in the step of one rank with these operators, and of the rank that it is compared with."""
        rank, step = key
        place = self.numbers.index(rank)
        other = None if self.other is None else self.other._portions(self._partner(rank), step, whole, None)
        return self._portions(place, step, own, other)

    def _portions(
        self, place: int, step: Optional[int], own: Sequence[Operator], other: Optional[Portions]
    ) -> Portions:
        def operators_of(at: int) -> list[Operator]:
            return operators_in(self.batches.get((self.numbers[at], step), []), self.made_of)

        return Portions(own, operators_of, self.numbers, place, of_actual=self.of_actual, given=self.given, other=other)


def _number(value: Optional[int]) -> int:
    return -1 if value is None else value


def joined_steps(a: dict[Key, list[Batch]], b: dict[Key, list[Batch]]) -> Steps:
    """(rank and step, records of actual, records of the reference), rank by rank in the order of steps."""
    rank_a, rank_b = {rank for rank, _ in a}, {rank for rank, _ in b}
    if len(rank_a) == len(rank_b) == 1 and rank_a != rank_b:
        [only_a], [only_b] = rank_a, rank_b
        a = {(only_b, step): records for (_, step), records in a.items() if only_a is not only_b}
    if len(a) == len(b) == 1:
        [(key, right)] = b.items()
        [left] = a.values()
        return [(key, left, right)]

    return by_key(a, b)


def by_key(a: dict[Key, list[Batch]], b: dict[Key, list[Batch]]) -> Steps:
    """Pairs each rank and step with the same one of the other side."""
    keys = sorted({*a, *b}, key=lambda key: (_number(key[0]), _number(key[1])))
    return [(key, a.get(key, []), b.get(key, [])) for key in keys]


def operators_in(batches: Iterable[Batch], made_of: Optional[Made]) -> list[Operator]:
    return operators((record for batch in batches for record in batch), made_of)
