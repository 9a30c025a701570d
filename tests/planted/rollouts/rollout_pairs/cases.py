"""A case: how two programs run, and the places where an engineer would look for the planted fault."""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, Optional

from rollout_pairs.hf import Record
from rollout_pairs.mutation import MARK

Scores = Sequence[Sequence[float]]

#: Runs both programs, and returns the log-probabilities that each has for the same tokens.
Run = Callable[[Record, Record, Path], tuple[Scores, Scores]]


class Place(NamedTuple):
    """An accepted operator: regular expressions of its module, of its name without the number, and of its line."""

    module: str
    operator: str
    text: str = ""

    def fits(self, module: str, operator: str, text: str) -> bool:
        return all(re.search(*pair) for pair in ((self.module, module), (self.operator, operator), (self.text, text)))


@dataclass(frozen=True)
class Case:
    """A pair of programs.

    bound   correct pairs: the largest difference of log-probabilities; faults: the smallest
    sides   the two dumps that are compared, behind @ a step
    options of `compare`
    places  accepted origins besides the lines that are marked as planted
    """

    name: str
    run: Run
    bound: float
    sides: tuple[str, str] = ("actual", "reference")
    options: Mapping[str, Any] = field(default_factory=dict)
    places: tuple[Place, ...] = ()

    def accepts(self, op_name: str, module: Optional[str], source: Optional[str]) -> bool:
        """Return True if an origin is where the fault was planted."""
        text = line_of(source or "")
        if text.rstrip().endswith(MARK):
            return True
        own, _, name = op_name.rpartition("/")
        operator = re.sub(r"_\d+$", "", name)
        # The module of a call that only one side makes is its caller; the name has the module that is called.
        return any(place.fits(path, operator, text) for place in self.places for path in (module or "", own))


def line_of(source: str) -> str:
    """Return the text of a call site, `file:line`."""
    path, _, number = source.rpartition(":")
    try:
        return Path(path).read_text(encoding="utf-8").splitlines()[int(number) - 1]
    except (OSError, ValueError, IndexError):
        return ""


def places(*texts: str) -> tuple[Place, ...]:
    """Return places that are written as "module operator" or, for operators of a line, "~line"."""
    return tuple(
        Place("", "", text.removeprefix("~")) if text.startswith("~") else Place(*text.split(" ")) for text in texts
    )


def unique(cases: Iterable[Case]) -> list[Case]:
    """Return the cases as a list; no two have one name."""
    result = list(cases)
    names = [case.name for case in result]
    double = {name for name in names if names.count(name) > 1}
    if double:
        raise ValueError(f"cases with one name: {sorted(double)}")
    return result
