"""One finding of a check, made before the run."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

__all__ = ["SEVERITIES", "Problem", "worst_first"]

#: In descending order of severity, see `Problem.severity`.
SEVERITIES = ("error", "silent", "warning")


class Problem(NamedTuple):
    """What a framework would refuse, silently ignore, or do unexpectedly.

    severity: "error" = the framework refuses it; "silent" = it is accepted and nothing or
    something else happens; "warning" = it works, with a consequence worth knowing.
    where: the key path or object the finding is about, e.g. `dump.dump_list[0].layer[1]`.
    native: the framework's own code for it, e.g. `EP0001`, where it has one.
    """

    code: str
    severity: str
    message: str
    hint: str = ""
    where: str = ""
    native: str = ""

    def __str__(self) -> str:
        place = f"{self.where}: " if self.where else ""
        native = f" ({self.native})" if self.native else ""
        text = f"{self.severity}: {place}{self.message} [{self.code}]{native}"
        return f"{text}\n  hint: {self.hint}" if self.hint else text


def worst_first(problems: Iterable[Problem]) -> list[Problem]:
    """Sorted by severity, errors first; problems of one severity keep their order."""
    return sorted(problems, key=lambda problem: SEVERITIES.index(problem.severity))
