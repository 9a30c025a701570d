"""Find in manifests what surrounds the records: versions, environment variables, settings, operators not recorded."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import islice
from typing import NamedTuple, Optional

from ascend_dump.reading import Dump

__all__ = ["Surrounding", "differing_surroundings"]

#: Maximum number of manifests that are read of each side: ranks of one program have the same surroundings.
_MOST_RUNS = 16
#: A name that is in every manifest which records environment variables and settings.
_RECORDED = "surroundings"
#: Names that are not compared, because they do not belong to the program: the version of this tool, and the mark above.
_OWN = ("ascend_dump", _RECORDED)


class Surrounding(NamedTuple):
    """A version, a variable or a setting that differs: its text on each side, None where it is not set or not known."""

    name: str
    actual: Optional[str]
    reference: Optional[str]


def differing_surroundings(actual: Dump, reference: Dump) -> tuple[Surrounding, ...]:
    """Return the differences; none unless both sides have manifests with versions."""
    sides = [_surroundings_of(dump) for dump in (actual, reference)]
    if not all(sides):
        return ()
    names = [name for name in dict.fromkeys([*sides[0], *sides[1]]) if name not in _OWN]
    both = (Surrounding(name, *(_text(side, name) for side in sides)) for name in names)
    are_recorded = all(_RECORDED in side for side in sides)
    return tuple(pair for pair in both if pair.actual != pair.reference and _is_certain(pair, are_recorded))


def _surroundings_of(dump: Dump) -> Mapping[str, list[str]]:
    """Return, by name, the texts of all runs."""
    texts: dict[str, list[str]] = {}
    for run in islice(dump.runs(), _MOST_RUNS):
        for name, text in run.surroundings:
            texts.setdefault(name, []).append(text)
    return texts


def _text(side: Mapping[str, Iterable[str]], name: str) -> Optional[str]:
    texts = sorted(set(side.get(name, ())))
    return " or ".join(texts) if texts else None


def _is_certain(pair: Surrounding, are_recorded: bool) -> bool:
    """Return False if the name may only be unknown on one side: another framework, for example, has other settings."""
    is_variable = pair.name.isupper() and "_" in pair.name
    return (is_variable and are_recorded) or (pair.actual is not None and pair.reference is not None)
