"""Which records of two dumps are compared with each other: step by step, rank by rank, or several ranks with one."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple, Optional

from ascend_dump.analysis.compare._operators import Operator, operators
from ascend_dump.analysis.compare._shards import Portions, hold_parts
from ascend_dump.reading import Batch, MadeOf, Record

__all__ = ["Key", "Made", "RankGroup", "Steps", "by_key", "joined_steps", "operators_in"]

Key = tuple[Optional[int], Optional[int]]  # rank, step
Steps = list[tuple[Key, list[Batch], list[Batch]]]  # of actual, of the reference
Made = Callable[[Record], MadeOf]


class RankGroup(NamedTuple):
    """The ranks of the side that has several, which hold parts of what the one rank of the other side has.

    numbers     of the ranks, in order
    batches     of these ranks
    made_of     as that of the dump of this side
    """

    of_actual: bool
    numbers: tuple[Optional[int], ...]
    batches: dict[Key, list[Batch]]
    made_of: Made

    @classmethod
    def of(
        cls, a: dict[Key, list[Batch]], b: dict[Key, list[Batch]], made_of: tuple[Made, Made]
    ) -> Optional[RankGroup]:
        """None where both sides have as many ranks, or where shapes do not tell of parts."""
        counts = [len({rank for rank, _ in side}) for side in (a, b)]
        if min(counts) != 1 or counts[0] == counts[1]:
            return None
        place = 0 if counts[0] > 1 else 1
        several, one = (a, b) if place == 0 else (b, a)
        numbers = tuple(sorted({rank for rank, _ in several}, key=_number))
        found = cls(place == 0, numbers, several, made_of[place])
        for (_, step), batches in one.items():
            own = several.get((numbers[0], step))
            if own is not None:
                whole = operators_in(batches, made_of[1 - place])
                return found if hold_parts(operators_in(own, found.made_of), whole, len(numbers)) else None
        return None

    def joined(self, other: dict[Key, list[Batch]]) -> Steps:
        """As `joined_steps`: each rank beside the one of the other side."""
        of_other = {step: batches for (_, step), batches in other.items()}
        steps = sorted({*of_other, *(step for _, step in self.batches)}, key=_number)
        rows = [
            ((rank, step), self.batches.get((rank, step), []), of_other.get(step, []))
            for rank in self.numbers
            for step in steps
        ]
        return rows if self.of_actual else [(key, whole, own) for key, own, whole in rows]

    def shards(self, key: Key, own: Sequence[Operator]) -> Portions:
        """The other ranks in the step of one."""
        rank, step = key

        def operators_of(place: int) -> list[Operator]:
            return operators_in(self.batches.get((self.numbers[place], step), []), self.made_of)

        count, place = len(self.numbers), self.numbers.index(rank)
        return Portions(own, operators_of, count, place, of_actual=self.of_actual)


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
    """Each rank and step beside the same one of the other side."""
    keys = sorted({*a, *b}, key=lambda key: (_number(key[0]), _number(key[1])))
    return [(key, a.get(key, []), b.get(key, [])) for key in keys]


def operators_in(batches: Iterable[Batch], made_of: Optional[Made]) -> list[Operator]:
    return operators((record for batch in batches for record in batch), made_of)
