"""Differences around two programs: versions, environment variables and settings, as their manifests have them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import islice
from typing import NamedTuple, Optional

from ascend_dump.reading import Dump

__all__ = ["Surrounding", "differing_surroundings"]

#: Manifests that are read of each side: ranks of one program have the same surroundings.
_MOST_RUNS = 16
#: The name that a manifest with variables and settings has in any case.
_RECORDED = "surroundings"
#: The version that writes the manifest is no part of the program.
_OWN = ("ascend_dump", _RECORDED)


class Surrounding(NamedTuple):
    """A version, a variable or a setting that differs: its text on each side, None where it is not set or not known."""

    name: str
    actual: Optional[str]
    reference: Optional[str]


def differing_surroundings(actual: Dump, reference: Dump) -> tuple[Surrounding, ...]:
    """Return what differs; nothing unless both sides have manifests that tell it."""
    sides = [_of_runs(dump) for dump in (actual, reference)]
    if not all(sides):
        return ()
    names = dict.fromkeys(name for side in sides for name in side)
    found = (Surrounding(name, *(_text(side, name) for side in sides)) for name in names if name not in _OWN)
    are_recorded = all(_RECORDED in side for side in sides)
    return tuple(one for one in found if one.actual != one.reference and _tells(one, are_recorded))


def _of_runs(dump: Dump) -> Mapping[str, list[str]]:
    """Return the distinct texts of each name, over the ranks."""
    texts: dict[str, list[str]] = {}
    for run in islice(dump.runs(), _MOST_RUNS):
        for name, text in run.surroundings:
            texts.setdefault(name, []).append(text)
    return texts


def _text(side: Mapping[str, Iterable[str]], name: str) -> Optional[str]:
    texts = sorted(set(side.get(name, ())))
    return " or ".join(texts) if texts else None


def _tells(one: Surrounding, are_recorded: bool) -> bool:
    """Return True unless one side merely does not know it: another framework has other settings."""
    is_variable = one.name.isupper() and "_" in one.name
    return (is_variable and are_recorded) or (one.actual is not None and one.reference is not None)
