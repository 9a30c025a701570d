"""The problems that the check before a run finds."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

__all__ = ["SEVERITIES", "Problem", "worst_first"]

#: In descending order of severity, see `Problem.severity`.
SEVERITIES = ("error", "silent", "warning")


class Problem(NamedTuple):
    """A setting that a framework would refuse, silently ignore, or apply in an unexpected way.

    code: our code of the problem, such as `AD103`, which has a help page.
    severity: "error" = the framework refuses it; "silent" = it is accepted and has no effect or
    another effect; "warning" = it works, with a side effect.
    where: the key or object that has the problem, e.g. `dump.dump_list[0].layer[1]`.
    native: the framework's own error code, e.g. `EP0001`; "" if it has none.
    """

    code: str
    severity: str
    message: str
    hint: str = ""
    where: str = ""
    native: str = ""

    def __str__(self) -> str:
        location = f"{self.where}: " if self.where else ""
        native = f" ({self.native})" if self.native else ""
        text = f"{self.severity}: {location}{self.message} [{self.code}]{native}"
        return f"{text}\n  hint: {self.hint}" if self.hint else text


def worst_first(problems: Iterable[Problem]) -> list[Problem]:
    """Return the problems by severity, errors first; problems of equal severity keep their order."""
    return sorted(problems, key=lambda problem: SEVERITIES.index(problem.severity))
