"""Define rules for configurations that a framework refuses, or accepts and ignores. Each rule has two test cases.

All configuration languages use this module. A table has rules for the same kind of subject, which is a configuration
with the facts that the rules need. A rule is a function that yields its findings, called hits. A decorator adds its
description and its test cases:

    RULES = RuleTable(read_subject)

    @RULES.rule(
        "step-too-large", "AD112", "a step beyond 64 bits is accepted by the host and refused by the device",
        "aicpu_schedule dump_task_manager", where="dump.dump_step",
        trips=Example({"dump": {"dump_path": "$DIR", "dump_step": "99999999999999999999"}}),
        passes=Example({"dump": {"dump_path": "$DIR", "dump_step": "0"}}),
    )
    def _step_too_large(subject: Subject) -> Iterator[Hit]: ...

A rule has to have its test cases, and one test runs the cases of all tables.
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
    """A finding of a rule.

    where      the path in the configuration
    severity, code, native  if not empty, these replace the rule's
    arguments  the arguments of the framework's own message, by name
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

    config: the decoded configuration, or its text. facts: facts about the environment, by the names of fields of the
    table's subject. "$DIR" in both is replaced by an existing writable directory.
    """

    config: Any
    facts: Mapping[str, Any] = _NO_FACTS

    def given(self, **facts: Any) -> Example:
        """Return the example with additional facts."""
        return self._replace(facts={**self.facts, **facts})

    def inside(self, directory: Union[str, os.PathLike[str]]) -> Example:
        """Return the example with a directory in place of "$DIR"."""
        escaped = json.dumps(os.fspath(directory))[1:-1]
        if isinstance(self.config, str):
            config = self.config.replace(_DIRECTORY, escaped)
        else:
            config = json.loads(json.dumps(self.config).replace(_DIRECTORY, escaped))
        return Example(config, json.loads(json.dumps(dict(self.facts)).replace(_DIRECTORY, escaped)))


class Rule(NamedTuple):
    """A mistake in a configuration that the framework refuses or ignores.

    about   a sentence about the mistake and its effect
    source  the file or document in which the framework's behaviour is defined
    find    a function from a subject to the hits of the rule
    trips, passes  an example with the mistake, and one without it
    where   the path of the hit in the example `trips`
    native  the framework's own error code; "" if it has none
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
        """Yield the hits of the rule in a subject, with the rule's severity and codes unless a hit has its own."""
        for hit in self.find(subject):
            yield hit._replace(
                severity=hit.severity or self.severity, code=hit.code or self.code, native=hit.native or self.native
            )

    def problems(self, subject: Any) -> Iterator[Problem]:
        """Yield the hits of the rule in a subject as problems."""
        for hit in self.hits(subject):
            yield Problem(hit.code, hit.severity, hit.message, hit.hint, hit.where, hit.native)


class RuleTable(Mapping[str, Rule], Generic[SubjectT]):
    """A mapping from ids to rules, in the order in which they are applied. Ids never change.

    read: a function from an example to a subject. parts: tables for the same kind of subject, whose rules come first.
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
        """Return a decorator that adds a rule with this function to the table. Arguments: as the fields of `Rule`."""

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
