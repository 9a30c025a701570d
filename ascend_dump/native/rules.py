"""Rules for configurations that a framework refuses, or accepts and ignores, each with two test cases.

All configuration languages use this module. A table converts a configuration to the subject of its rules; each rule is
a function that yields its hits, with a decorator for its description and test cases:

    RULES = RuleTable(read_subject)

    @RULES.rule(
        "step-too-large", "AD112", "a step beyond 64 bits is accepted by the host and refused by the device",
        "aicpu_schedule dump_task_manager", where="dump.dump_step",
        trips=Example({"dump": {"dump_path": "$DIR", "dump_step": "99999999999999999999"}}),
        passes=Example({"dump": {"dump_path": "$DIR", "dump_step": "0"}}),
    )
    def _step_too_large(subject: Subject) -> Iterator[Hit]: ...

A rule cannot be defined without its cases, and one test runs the cases of all tables.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import Any, Callable, Generic, NamedTuple, TypeVar, Union

from ascend_dump.common.problem import Problem

__all__ = ["Example", "Hit", "Rule", "RuleTable"]

SubjectT = TypeVar("SubjectT")
_NO_FACTS: Mapping[str, Any] = MappingProxyType({})
_DIRECTORY = "$DIR"


class Hit(NamedTuple):
    """A path in a configuration, and the message of a rule about it. Severity and codes override the rule's.

    arguments: the arguments of the framework's own message, by name.
    """

    where: str
    message: str
    hint: str
    severity: str = ""
    code: str = ""
    native: str = ""
    arguments: Mapping[str, str] = _NO_FACTS


class Example(NamedTuple):
    """A test case of a rule.

    config: the decoded configuration, or its text. facts: facts about the environment, named as the arguments of the
    language. "$DIR" in either stands for an existing writable directory.
    """

    config: Any
    facts: Mapping[str, Any] = _NO_FACTS

    def given(self, **facts: Any) -> Example:
        """Return the same configuration with these facts."""
        return self._replace(facts={**self.facts, **facts})

    def inside(self, directory: Union[str, os.PathLike[str]]) -> Example:
        """Return the same with "$DIR" replaced by a directory."""
        escaped = json.dumps(os.fspath(directory))[1:-1]
        if isinstance(self.config, str):
            config = self.config.replace(_DIRECTORY, escaped)
        else:
            config = json.loads(json.dumps(self.config).replace(_DIRECTORY, escaped))
        return Example(config, json.loads(json.dumps(dict(self.facts)).replace(_DIRECTORY, escaped)))


class Rule(NamedTuple):
    """A mistake in a configuration that the framework refuses or ignores.

    about: its effect, in one sentence. source: the file or document that defines it. where: the path that is
    reported for the case `trips`. native: the code of the framework itself, if any.
    """

    id: str
    code: str
    severity: str
    about: str
    source: str
    find: Callable[[Any], Iterable[Hit]]
    where: str
    trips: Example
    passes: Example
    native: str = ""

    def hits(self, subject: Any) -> Iterator[Hit]:
        """Yield the hits of the rule in a subject, with severity and codes."""
        for hit in self.find(subject):
            yield hit._replace(
                severity=hit.severity or self.severity, code=hit.code or self.code, native=hit.native or self.native
            )

    def problems(self, subject: Any) -> Iterator[Problem]:
        """Yield the hits of the rule in a subject as problems."""
        for hit in self.hits(subject):
            yield Problem(hit.code, hit.severity, hit.message, hit.hint, hit.where, hit.native)


class RuleTable(Mapping[str, Rule], Generic[SubjectT]):
    """Rules by id, in the order of their application; ids are stable.

    read: converts an example to a subject. parts: tables of the same subject with rules that are applied first.
    """

    def __init__(self, read: Callable[[Example], SubjectT], *parts: RuleTable[SubjectT]) -> None:
        self.read = read
        self._rules: dict[str, Rule] = {}
        for part in parts:
            for rule in part.values():
                self._add(rule)

    def __getitem__(self, id: str) -> Rule:
        return self._rules[id]

    def __iter__(self) -> Iterator[str]:
        return iter(self._rules)

    def __len__(self) -> int:
        return len(self._rules)

    def rule(
        self,
        id: str,
        code: str,
        about: str,
        source: str,
        *,
        where: str,
        trips: Example,
        passes: Example,
        severity: str = "silent",
        native: str = "",
    ) -> Callable[[Callable[[SubjectT], Iterable[Hit]]], Callable[[SubjectT], Iterable[Hit]]]:
        """Return a decorator that adds a function to this table; arguments as the fields of `Rule`."""

        def add(find: Callable[[SubjectT], Iterable[Hit]]) -> Callable[[SubjectT], Iterable[Hit]]:
            self._add(Rule(id, code, severity, about, source, find, where, trips, passes, native))
            return find

        return add

    def hits(self, subject: SubjectT) -> Iterator[Hit]:
        """Yield the hits of all rules, in the order of the table."""
        for rule in self._rules.values():
            yield from rule.hits(subject)

    def problems(self, subject: SubjectT) -> Iterator[Problem]:
        """Yield the problems of all rules, in the order of the table."""
        for rule in self._rules.values():
            yield from rule.problems(subject)

    def _add(self, rule: Rule) -> None:
        if rule.id in self._rules:
            raise ValueError(f"two rules are called {rule.id!r}")
        self._rules[rule.id] = rule
