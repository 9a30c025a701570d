"""The table of every setting CANN accepts without doing what it says, and the search through it.

`SILENT` is data: id, code, severity, what happens, and the source that decides it, with one
function per rule that finds the places. Ids are stable: tests and the simulated device use them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import MappingProxyType

from ascend_dump._problem import Problem
from ascend_dump.cann.config import _silent_ignored, _silent_nothing, _silent_surroundings
from ascend_dump.cann.config._silent_rule import Rule, Subject

__all__ = ["SILENT", "Rule", "Subject", "find"]

SILENT: Mapping[str, Rule] = MappingProxyType(
    {rule.id: rule for module in (_silent_nothing, _silent_ignored, _silent_surroundings) for rule in module.RULES}
)


def find(subject: Subject) -> Iterator[Problem]:
    """Everything the table finds in a configuration, in the order of the table."""
    for rule in SILENT.values():
        yield from rule.problems(subject)
