"""The tables of every setting CANN accepts without doing what it says, and the search through them.

`SILENT` is about the dump JSON, `SILENT_OPTIONS` about GE's session options. Both are data: id,
code, severity, what happens, and the source that decides it, with one function per rule that
finds the places. Ids are stable: tests and the simulated device use them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import MappingProxyType

from ascend_dump._problem import Problem
from ascend_dump.native.cann.config import _silent_ignored, _silent_nothing, _silent_options, _silent_surroundings
from ascend_dump.native.cann.config._silent_rule import Options, Rule, Subject

__all__ = ["SILENT", "SILENT_OPTIONS", "Options", "Rule", "Subject", "find_ignored_options", "find_silent"]

SILENT: Mapping[str, Rule] = MappingProxyType(
    {
        rule.id: rule
        for table in (_silent_nothing.RULES, _silent_ignored.RULES, _silent_surroundings.RULES)
        for rule in table
    }
)
SILENT_OPTIONS: Mapping[str, Rule] = MappingProxyType({rule.id: rule for rule in _silent_options.RULES})


def find_silent(subject: Subject) -> Iterator[Problem]:
    """Everything the table finds in a dump JSON, in the order of the table."""
    for rule in SILENT.values():
        yield from rule.problems(subject)


def find_ignored_options(options: Options) -> Iterator[Problem]:
    """Everything the table finds in session options, in the order of the table."""
    for rule in SILENT_OPTIONS.values():
        yield from rule.problems(options)
