"""The sequence of pairs of a comparison. Pairs of a step that is identical on both sides are created on access."""

from __future__ import annotations

from abc import abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import accumulate, zip_longest
from typing import TYPE_CHECKING, Optional, Union, overload

from ascend_dump.analysis.explaining.results import Pair
from ascend_dump.analysis.explaining.walk import Divergence
from ascend_dump.analysis.judging.verdict import Rules
from ascend_dump.analysis.operators.operator import operators
from ascend_dump.analysis.pairing.matches import Match

if TYPE_CHECKING:
    from ascend_dump.reading import Batch, Record

__all__ = ["EqualLater", "EqualStep", "Pairs", "PairsLater", "are_equal"]


def are_equal(actual: Sequence[Batch], reference: Sequence[Batch]) -> bool:
    """Return True if both have the same records in the same order, with equal bytes in every tensor."""
    if sum(map(len, actual)) != sum(map(len, reference)):
        return False
    sides = ((identity for batch in side for identity in batch.identities()) for side in (actual, reference))
    return all(a is not None and a == b for a, b in zip_longest(*sides))


class LazyPairs(Sequence[Pair]):
    """A sequence of pairs that are created when one of them is accessed."""

    def __init__(self) -> None:
        self._pairs: Optional[list[Pair]] = None

    @overload
    def __getitem__(self, index: int) -> Pair: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Pair]: ...
    def __getitem__(self, index: Union[int, slice]) -> Union[Pair, Sequence[Pair]]:
        return self._created()[index]

    def __iter__(self) -> Iterator[Pair]:
        return iter(self._created())

    def _created(self) -> list[Pair]:
        if self._pairs is None:
            self._pairs = self._create()
        return self._pairs

    @abstractmethod
    def _create(self) -> list[Pair]: ...


class EqualStep(LazyPairs):
    """The pairs of a step for which `are_equal` holds."""

    def __init__(self, actual: Sequence[Batch], reference: Sequence[Batch]) -> None:
        super().__init__()
        self._sides = (actual, reference)
        self._count = sum(map(len, actual))

    @property
    def sides(self) -> tuple[Sequence[Batch], Sequence[Batch]]:
        """The batches of actual and of the reference; empty after the pairs were created."""
        return self._sides

    def __len__(self) -> int:
        return self._count

    def _create(self) -> list[Pair]:
        actual, reference = (operators(_records(side)) for side in self._sides)
        walk = Divergence(Rules()).walk
        pairs = [pair for a, b in zip(actual, reference) for pair in walk(Match(a, b, "content", 1.0))]
        self._sides = ((), ())
        return pairs


class EqualLater(EqualStep):
    """An equal step whose batches are looked up when its pairs are accessed."""

    def __init__(self, count: int, sides: Callable[[], tuple[Sequence[Batch], Sequence[Batch]]]) -> None:
        super().__init__((), ())
        self._count = count
        self._look_up = sides

    def _create(self) -> list[Pair]:
        self._sides = self._look_up()
        return super()._create()


class PairsLater(LazyPairs):
    """Pairs whose verdicts are known. The pairs themselves are created when one of them is accessed."""

    def __init__(self, verdicts: Sequence[str], create: Callable[[], list[Pair]]) -> None:
        super().__init__()
        self.verdicts = verdicts
        self._creator = create

    def __len__(self) -> int:
        return len(self.verdicts)

    def _create(self) -> list[Pair]:
        return self._creator()


def _records(batches: Sequence[Batch]) -> Iterator[Record]:
    return (record for batch in batches for record in batch)


class Pairs(Sequence[Pair]):
    """All pairs, as a sequence of parts: lists of pairs, and steps that are equal throughout."""

    def __init__(self, parts: Sequence[Sequence[Pair]]) -> None:
        self._parts = [part for part in parts if part]
        self._ends = list(accumulate(map(len, self._parts)))

    @classmethod
    def joined(cls, several: Iterable[Pairs]) -> Pairs:
        """Return the pairs of several sequences, one after the other."""
        return cls([part for pairs in several for part in pairs._parts])

    def __len__(self) -> int:
        return self._ends[-1] if self._ends else 0

    @overload
    def __getitem__(self, index: int) -> Pair: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[Pair, ...]: ...
    def __getitem__(self, index: Union[int, slice]) -> Union[Pair, tuple[Pair, ...]]:
        from bisect import bisect_right

        if isinstance(index, slice):
            return tuple(self[number] for number in range(*index.indices(len(self))))
        number = range(len(self))[index]
        part = bisect_right(self._ends, number)
        return self._parts[part][number - self._ends[part]]

    def __iter__(self) -> Iterator[Pair]:
        for part in self._parts:
            yield from part

    def looked_at(self) -> Iterator[Pair]:
        """Yield the pairs whose records were compared one by one; all others are equal."""
        for part in self._parts:
            if not isinstance(part, EqualStep):
                yield from part

    def replaced(self, change: Callable[[Pair], Pair]) -> Pairs:
        """Return the pairs after `change` was applied to those that were compared one by one."""
        return Pairs([part if isinstance(part, EqualStep) else list(map(change, part)) for part in self._parts])

    def without_unmatched(self) -> Pairs:
        """Return the pairs without those that have the verdict "unmatched"."""
        if not self.verdicts()["unmatched"]:
            return self
        return Pairs(
            [
                part if isinstance(part, EqualStep) else [pair for pair in part if pair.verdict != "unmatched"]
                for part in self._parts
            ]
        )

    def verdicts(self) -> Counter[str]:
        """Return the number of pairs with each verdict."""
        counts: Counter[str] = Counter()
        for part in self._parts:
            if isinstance(part, PairsLater):
                counts.update(part.verdicts)
            elif not isinstance(part, EqualStep):
                counts.update(pair.verdict for pair in part)
        equal = len(self) - sum(counts.values())
        return counts + Counter({"equal": equal}) if equal else counts
