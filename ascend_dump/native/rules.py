"""Rules: what a framework refuses in a configuration or accepts without doing it, each with two cases that prove it.

The one mechanism of every configuration language. A table knows how to read a configuration into the subject of its
rules; each rule is a function that yields the places it applies to, and a decorator that says the rest:

    RULES = RuleTable(read_subject)

    @RULES.rule(
        "step-too-large", "AD112", "a step beyond 64 bits is accepted by the host and refused by the device",
        "aicpu_schedule dump_task_manager", where="dump.dump_step",
        trips=Example({"dump": {"dump_path": "$DIR", "dump_step": "99999999999999999999"}}),
        passes=Example({"dump": {"dump_path": "$DIR", "dump_step": "0"}}),
    )
    def _step_too_large(subject: Subject) -> Iterator[Hit]: ...

No rule can be written without its cases: one test goes through every table there is.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import Any, Callable, Generic, NamedTuple, TypeVar, Union

from ascend_dump._problem import Problem

__all__ = ["Example", "Hit", "Rule", "RuleTable"]

SubjectT = TypeVar("SubjectT")
_NO_FACTS: Mapping[str, Any] = MappingProxyType({})
_DIRECTORY = "$DIR"


class Hit(NamedTuple):
    """One place that a rule applies to. A severity, a code or a native code overrides the rule's.

    arguments: what the framework's own message is filled in with, by its own names.
    """

    where: str
    message: str
    hint: str
    severity: str = ""
    code: str = ""
    native: str = ""
    arguments: Mapping[str, str] = _NO_FACTS


class Example(NamedTuple):
    """A configuration that a rule is tried on.

    config: its decoded content, or its text. facts: what is known of the surroundings, under the names of the
    language's own arguments. "$DIR" in either is an existing directory that can be written.
    """

    config: Any
    facts: Mapping[str, Any] = _NO_FACTS

    def given(self, **facts: Any) -> Example:
        """The same configuration in these surroundings."""
        return self._replace(facts={**self.facts, **facts})

    def inside(self, directory: Union[str, os.PathLike[str]]) -> Example:
        """The same with a directory of the caller's in place of "$DIR"."""
        place = json.dumps(os.fspath(directory))[1:-1]
        if isinstance(self.config, str):
            config = self.config.replace(_DIRECTORY, place)
        else:
            config = json.loads(json.dumps(self.config).replace(_DIRECTORY, place))
        return Example(config, json.loads(json.dumps(dict(self.facts)).replace(_DIRECTORY, place)))


class Rule(NamedTuple):
    """One thing that a configuration language refuses, or does not do.

    about: what happens, in one sentence. source: the file or document that decides it. where: the place at which
    the case `trips` is found. native: the framework's own code, where it has one.
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
        """Where the rule applies in a subject of its table, with severity and codes filled in."""
        for hit in self.find(subject):
            yield hit._replace(
                severity=hit.severity or self.severity, code=hit.code or self.code, native=hit.native or self.native
            )

    def problems(self, subject: Any) -> Iterator[Problem]:
        """What the rule finds in a subject of its table."""
        for hit in self.hits(subject):
            yield Problem(hit.code, hit.severity, hit.message, hit.hint, hit.where, hit.native)


class RuleTable(Mapping[str, Rule], Generic[SubjectT]):
    """Rules by their ids, in the order in which they are looked for; ids are stable.

    read: gives the subject of an example, whose directory is filled in. parts: tables of the same subject whose
    rules come first.
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
        """Make the function below a rule of this table; arguments as the fields of `Rule`."""

        def add(find: Callable[[SubjectT], Iterable[Hit]]) -> Callable[[SubjectT], Iterable[Hit]]:
            self._add(Rule(id, code, severity, about, source, find, where, trips, passes, native))
            return find

        return add

    def hits(self, subject: SubjectT) -> Iterator[Hit]:
        """Every place that a rule applies to, in the order of the table."""
        for rule in self._rules.values():
            yield from rule.hits(subject)

    def problems(self, subject: SubjectT) -> Iterator[Problem]:
        """Everything that the rules find, in the order of the table."""
        for rule in self._rules.values():
            yield from rule.problems(subject)

    def _add(self, rule: Rule) -> None:
        if rule.id in self._rules:
            raise ValueError(f"two rules are called {rule.id!r}")
        self._rules[rule.id] = rule
