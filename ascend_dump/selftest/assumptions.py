"""Assumptions about devices that no run on a device has confirmed.

The code that relies on an assumption names its id, as in `(assumption cann.file_name)`. An assumption has a probe of
`ascend_dump.selftest.probes`, or instructions for a person who can confirm it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

__all__ = ["FILE", "Assumption", "Outcome", "State", "load_assumptions", "merge_outcomes"]

FILE = Path(__file__).with_name("assumptions.json")

State = Literal["confirmed", "refuted", "unknown"]


@dataclass(frozen=True)
class Assumption:
    """An assumption about devices.

    source        the document or the file of public code that states it
    relied_on_by  `path:symbol` of the code that relies on it; no symbol: the docstring of the file
    probe         the name of its probe, "" if there is none
    by_hand       instructions for a person if there is no probe
    confirmed     devices and versions that confirmed it

    >>> next(assumption.id for assumption in load_assumptions() if assumption.probe == "file_modes")
    'cann.file_mode'
    """

    id: str
    statement: str
    source: str
    relied_on_by: tuple[str, ...]
    probe: str
    by_hand: str
    confirmed: tuple[str, ...]


@dataclass(frozen=True)
class Outcome:
    """The result of a probe: the state, and its evidence.

    >>> Outcome("refuted", "the header says 3.0").state
    'refuted'
    """

    state: State
    seen: str


def load_assumptions() -> tuple[Assumption, ...]:
    """Return all assumptions in the order of the file."""
    return tuple(
        Assumption(**{**entry, "relied_on_by": tuple(entry["relied_on_by"]), "confirmed": tuple(entry["confirmed"])})
        for entry in json.loads(FILE.read_text(encoding="utf-8"))
    )


def merge_outcomes(outcomes: Iterable[Mapping[str, Outcome]]) -> dict[str, Outcome]:
    """Merge the outcomes of several frameworks by probe: a refutation outranks a confirmation."""
    rank = {"refuted": 2, "confirmed": 1, "unknown": 0}
    merged: dict[str, Outcome] = {}
    for of_framework in outcomes:
        for name, outcome in of_framework.items():
            if name not in merged or rank[outcome.state] > rank[merged[name].state]:
                merged[name] = outcome
    return merged
