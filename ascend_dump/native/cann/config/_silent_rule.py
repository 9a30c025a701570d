"""What a rule of the table of silent settings is made of."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Callable, NamedTuple, TypeVar

from ascend_dump._problem import Problem
from ascend_dump.native.cann.config._access import text_of
from ascend_dump.native.cann.config.adump import Verdict
from ascend_dump.native.cann.config.ge import GeVerdict
from ascend_dump.native.cann.config.keys import ENABLE_DEBUG, ENABLE_DUMP, EXCEPTION_SCENES
from ascend_dump.native.cann.config.parse import Parsed
from ascend_dump.native.cann.config.situation import Situation
from ascend_dump.native.cann.graph import Node

__all__ = ["Hit", "Options", "Rule", "Subject", "rule_table"]


class Subject(NamedTuple):
    """A configuration with both verdicts on it.

    dump: its object `dump`, or an empty one. nodes: the known operators by every name of theirs.
    """

    parsed: Parsed
    dump: Mapping[str, Any]
    verdict: Verdict
    ge: GeVerdict
    situation: Situation
    nodes: Mapping[str, Sequence[Node]]

    @property
    def overflow(self) -> bool:
        return text_of(self.dump, "dump_debug") == "on" and not self.scene

    @property
    def scene(self) -> str:
        return text_of(self.dump, "dump_scene")

    @property
    def watcher(self) -> bool:
        return self.scene == "watcher"

    @property
    def exception(self) -> bool:
        return self.scene in EXCEPTION_SCENES

    @property
    def selects(self) -> bool:
        """Whether `dump_list` decides what is dumped."""
        return not self.overflow and not self.exception


class Hit(NamedTuple):
    """One place a rule applies to. `severity` overrides the rule's."""

    where: str
    message: str
    hint: str
    severity: str = ""


class Options(NamedTuple):
    """GE session options with text values, and where they are used."""

    options: Mapping[str, str]
    situation: Situation

    @property
    def dump(self) -> bool:
        return self.options.get(ENABLE_DUMP) == "1"

    @property
    def debug(self) -> bool:
        return self.options.get(ENABLE_DEBUG) == "1"


#: Takes the subject of its table.
_Finder = Callable[[Any], Iterable[Hit]]


class Rule(NamedTuple):
    """One way to be accepted without the expected effect.

    about: what happens, in one sentence. native: the code in CANN's log. source: where CANN decides it.
    """

    id: str
    code: str
    severity: str
    about: str
    source: str
    find: _Finder
    native: str = ""

    def problems(self, subject: Any) -> Iterator[Problem]:
        """What the rule finds in the subject its table is about: a Subject or an Options."""
        for hit in self.find(subject):
            yield Problem(self.code, hit.severity or self.severity, hit.message, hit.hint, hit.where, self.native)


_AnyFinder = TypeVar("_AnyFinder", bound=_Finder)


def rule_table() -> tuple[list[Rule], Callable[..., Callable[[_AnyFinder], _AnyFinder]]]:
    """An empty table, and the decorator that appends a finder to it as a rule."""
    table: list[Rule] = []

    def rule(
        name: str, code: str, about: str, source: str, *, severity: str = "silent", native: str = ""
    ) -> Callable[[_AnyFinder], _AnyFinder]:
        def register(find: _AnyFinder) -> _AnyFinder:
            table.append(Rule(name, code, severity, about, source, find, native))
            return find

        return register

    return table, rule
