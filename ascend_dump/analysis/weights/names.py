"""Split names of weights into templates and numbers, and pair names by similarity."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from typing import NamedTuple

__all__ = ["WeightName", "likeness", "numbers_text", "paired_by_name", "parsed"]

_NUMBER = re.compile(r"(?<![A-Za-z0-9])[0-9]{1,9}(?![A-Za-z0-9])")
_WORD = re.compile(r"[A-Za-z]+|[0-9]+")
#: Maximum number of names of a side that are compared with those of the other side. More names are paired in their
#: order.
_MOST_COMPARED = 300


class WeightName(NamedTuple):
    """The name of a weight, split.

    template  the name with {} in place of each number
    numbers   the numbers in the name, such as those of the layer and of the expert
    """

    template: str
    numbers: tuple[int, ...]

    def shifted(self, distance: int) -> str:
        """Return the name of the same weight in another layer: the first number plus `distance`."""
        numbers = [number + (distance if position == 0 else 0) for position, number in enumerate(self.numbers)]
        return self.template.format(*numbers)


def parsed(name: str) -> WeightName:
    """Split a name into its template and its numbers.

    >>> parsed("model.layers.3.mlp.w1.weight")
    WeightName(template='model.layers.{}.mlp.w1.weight', numbers=(3,))
    """
    escaped = name.replace("{", "{{").replace("}", "}}")
    return WeightName(_NUMBER.sub("{}", escaped), tuple(int(text) for text in _NUMBER.findall(name)))


def likeness(name: str, candidate: str) -> float:
    """Return how alike two names are, up to 3: the share of common words, +1 for the same last word or numbers each."""
    words, other_words = _WORD.findall(name.lower()), _WORD.findall(candidate.lower())
    common = len({*words} & {*other_words}) / max(len({*words} | {*other_words}), 1)
    return common + (words[-1:] == other_words[-1:]) + (parsed(name).numbers == parsed(candidate).numbers)


def paired_by_name(names: Collection[str], candidates: Collection[str]) -> list[tuple[str, str]]:
    """Pair each name with the most similar candidate. Equal names are paired first."""
    pairs = [(name, name) for name in names if name in set(candidates)]
    same = {name for name, _ in pairs}
    unpaired, unpaired_candidates = ([name for name in side if name not in same] for side in (names, candidates))
    if max(len(unpaired), len(unpaired_candidates)) > _MOST_COMPARED:
        return [*pairs, *zip(unpaired, unpaired_candidates)]
    ranked = sorted(
        (
            (-likeness(name, candidate), x, y)
            for x, name in enumerate(unpaired)
            for y, candidate in enumerate(unpaired_candidates)
        )
    )
    taken: set[tuple[int, int]] = set()
    for _, x, y in ranked:
        if (0, x) not in taken and (1, y) not in taken:
            taken |= {(0, x), (1, y)}
            pairs.append((unpaired[x], unpaired_candidates[y]))
    return pairs


def numbers_text(numbers: Iterable[int]) -> str:
    """Return numbers as ranges.

    >>> numbers_text([0, 1, 2, 5])
    '0-2, 5'
    """
    ranges: list[list[int]] = []
    for number in sorted({*numbers}):
        if ranges and number == ranges[-1][1] + 1:
            ranges[-1][1] = number
        else:
            ranges.append([number, number])
    return ", ".join(str(first) if first == last else f"{first}-{last}" for first, last in ranges)
