"""What the project believes of a device although no run on one has proved it.

Each belief has an id that the code which relies on it names, as `(assumption cann.file_name)`, and a probe of
`ascend_dump.selftest.probes` that proves or refutes it, or says what a person has to do for that.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Optional

__all__ = ["FILE", "Assumption", "Outcome", "State", "load_assumptions", "merge_outcomes"]

FILE = Path(__file__).with_name("assumptions.json")

State = Literal["confirmed", "refuted", "unknown"]


@dataclass(frozen=True)
class Assumption:
    """One belief.

    source        the document or the file of public code that says so
    relied_on_by  `path:symbol` of the code that would be wrong without it; no symbol: what the file says of itself
    probe         the function of `probes` that proves or refutes it; "" where none can
    by_hand       what a person has to do where there is no probe
    confirmed     where it was seen: devices and versions

    >>> next(one.id for one in load_assumptions() if one.probe == "file_modes")
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
    """What a probe found: the state, and what it saw.

    >>> Outcome("refuted", "the header says 3.0").state
    'refuted'
    """

    state: State
    seen: str


def load_assumptions() -> tuple[Assumption, ...]:
    """All of them, in the order of the file."""
    return tuple(
        Assumption(**{**one, "relied_on_by": tuple(one["relied_on_by"]), "confirmed": tuple(one["confirmed"])})
        for one in json.loads(FILE.read_text(encoding="utf-8"))
    )


def merge_outcomes(outcomes: Iterable[Mapping[str, Outcome]]) -> dict[str, Outcome]:
    """By probe, what several frameworks showed together: refuted by one is refuted."""
    rank = {"refuted": 2, "confirmed": 1, "unknown": 0}
    merged: dict[str, Outcome] = {}
    for found in outcomes:
        for name, outcome in found.items():
            known: Optional[Outcome] = merged.get(name)
            if known is None or rank[outcome.state] > rank[known.state]:
                merged[name] = outcome
    return merged
