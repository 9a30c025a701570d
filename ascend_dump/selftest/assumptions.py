"""Assumptions about devices that no run on a device has confirmed.

Code that relies on an assumption names its id in a comment or docstring, as in `(assumption cann.file_name)`. An
assumption has either a probe in `ascend_dump.selftest.probes`, which tests it on a device, or instructions for a
person who can confirm it.
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
    """An assumption about devices, as listed in `assumptions.json`.

    source        the document or the public source file that states the assumption
    relied_on_by  the code that relies on it, as `path:symbol`; `path` alone means the docstring of that file
    probe         name of the probe that tests it, "" if there is none
    by_hand       if there is no probe: instructions for a person who can test it
    confirmed     devices and software versions on which it was confirmed

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
    """The result of a probe.

    state  "unknown" if the probe had no evidence to decide
    seen   text of the evidence; for "unknown" the reason

    >>> Outcome("refuted", "the header says 3.0").state
    'refuted'
    """

    state: State
    seen: str


def load_assumptions() -> tuple[Assumption, ...]:
    """Return all assumptions in the order of `assumptions.json`."""
    return tuple(
        Assumption(**{**entry, "relied_on_by": tuple(entry["relied_on_by"]), "confirmed": tuple(entry["confirmed"])})
        for entry in json.loads(FILE.read_text(encoding="utf-8"))
    )


def merge_outcomes(outcomes: Iterable[Mapping[str, Outcome]]) -> dict[str, Outcome]:
    """Merge the outcomes of several frameworks, and return one outcome by the name of each probe.

    A refutation by one framework outranks a confirmation by another, and both outrank "unknown".
    """
    rank = {"refuted": 2, "confirmed": 1, "unknown": 0}
    merged: dict[str, Outcome] = {}
    for framework_outcomes in outcomes:
        for name, outcome in framework_outcomes.items():
            if name not in merged or rank[outcome.state] > rank[merged[name].state]:
                merged[name] = outcome
    return merged
