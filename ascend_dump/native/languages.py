"""The languages of dump configurations, for `check --against` and `config --for`.

A language is a form of configuration of one framework, such as CANN's dump JSON. The languages of this package are in
the tuples `LANGUAGES` of `native/<framework>/config/language.py`. Other packages register theirs in the entry point
group `ascend_dump.languages`.
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from pkgutil import iter_modules
from typing import TYPE_CHECKING, Any, NamedTuple, Optional, Union

from ascend_dump.common.entry_points import entry_points_of
from ascend_dump.errors import ConfigError

if TYPE_CHECKING:
    from ascend_dump.common.problem import Problem
    from ascend_dump.native.cann.config import Situation
    from ascend_dump.native.cann.graph import Node
    from ascend_dump.request import DumpRequest
    from ascend_dump.steps import Steps

__all__ = [
    "CERTAIN",
    "LIKELY",
    "POSSIBLE",
    "ConfigLanguage",
    "Surroundings",
    "languages",
    "recognise",
    "refuse_runtime",
]

GROUP = "ascend_dump.languages"
#: Levels of certainty that a content is in a language. POSSIBLE: it has keys that other languages have too. LIKELY: it
#: has such keys with typical values. CERTAIN: it has keys that only this language has.
POSSIBLE, LIKELY, CERTAIN = 1, 2, 3

log = logging.getLogger("ascend_dump")


class Surroundings(NamedTuple):
    """Facts about the use of a configuration file.

    on     the runtime with which it is used, one of `ConfigLanguage.runtimes`; None: unknown
    graph  the file with the model's graph
    """

    situation: Situation
    on: Optional[str] = None
    graph: Optional[Path] = None


class ConfigLanguage(ABC):
    """A language of dump configurations."""

    #: The name of the language, for `--for` and `--against`.
    name: str = ""
    #: The suffix of files in this language; "" if any suffix is allowed.
    suffix: str = ""
    #: True if a file may also have settings that do not concern dumps. They are preserved when the file is changed.
    shared: bool = False
    #: True if a file can have the settings that a capture implements itself: ranks, max_bytes, keep, until and label.
    selects_ranks: bool = False
    #: Names of the runtimes of the framework, for `--on`; empty if there is only one.
    runtimes: Sequence[str] = ()
    #: Names of the styles of Python programs in which the settings can be written, for `--style`; empty if none.
    styles: Sequence[str] = ()
    #: A Python file that can be copied into a program and reads the settings without ascend_dump.
    standalone: Optional[Path] = None

    @abstractmethod
    def recognise(self, value: Any, suffix: str) -> int:
        """Return the certainty that a content is in this language: 0, POSSIBLE, LIKELY or CERTAIN.

        value: the decoded content; None if it is no JSON. suffix: the suffix of the file; "" for standard input.
        """

    @abstractmethod
    def check(self, source: Union[Path, bytes], around: Surroundings) -> list[Problem]:
        """Return problems: settings that the framework refuses, or accepts without effect; errors first."""

    @abstractmethod
    def build(self, request: DumpRequest, names: Optional[Iterable[str]] = None) -> Mapping[str, Any]:
        """Return the content of a file for a request. Raises ConfigError and NotSupported.

        names: the names of the graph's operators, to which patterns are expanded; None: unknown
        """

    def python(self, built: Mapping[str, Any], style: str, ranks: Steps) -> str:
        """Return lines of Python with the settings of `built`, a result of `build`.

        style: one of `styles`. ranks: the ranks on which the lines turn the dump on
        """
        raise NotImplementedError(f"the language {self.name} has styles, but does not define python()")

    def left_out(self, request: DumpRequest) -> list[Problem]:
        """Return problems: settings of the request that `build` accepts but cannot write into the file."""
        return []

    def usage(self, built: Mapping[str, Any], file: str) -> str:
        """Return a sentence that says how to pass the settings to the framework; "" if none is needed.

        built: the result of `build`. file: the written file, or ""
        """
        return ""

    def operators(self, graph: Path) -> list[Node]:
        """Return the operators in a graph file of this framework. Raises ReadError."""
        from ascend_dump.native.cann.graph import read_graph

        return list(read_graph(graph))


def languages() -> dict[str, ConfigLanguage]:
    """Return the registered languages by name. A language that cannot be loaded is omitted with a warning."""
    import ascend_dump.native as native

    by_name: dict[str, ConfigLanguage] = {}
    for package in iter_modules(native.__path__, f"{native.__name__}."):
        module = f"{package.name}.config"
        if package.ispkg and find_spec(module) is not None and find_spec(f"{module}.language") is not None:
            for language in import_module(f"{module}.language").LANGUAGES:
                by_name[language.name] = language
    for name, entry in entry_points_of(GROUP).items():
        try:
            language = entry.load()
        except Exception as error:  # importing a module of another package may raise anything
            log.warning("the configuration language %s cannot be loaded: %s", name, error)
            continue
        by_name.setdefault(language.name, language)
    return by_name


def recognise(candidates: Iterable[ConfigLanguage], value: Any, suffix: str = "") -> list[ConfigLanguage]:
    """Return the possible languages of a content, the likeliest first. If one is certain, return only that one."""
    scores = [(language.recognise(value, suffix), language) for language in candidates]
    likely = sorted((score for score in scores if score[0]), key=lambda score: -score[0])
    return [language for _, language in likely[: 1 if likely and likely[0][0] == CERTAIN else None]]


def refuse_runtime(language: ConfigLanguage, on: Optional[str]) -> None:
    """Raise ConfigError if the value of `--on` is not a runtime of a language."""
    if on is None or on.lower() in map(str.lower, language.runtimes):
        return
    if language.runtimes:
        raise ConfigError(
            f"{on!r} is not a runtime of {language.name}", hint=f"choose from {', '.join(language.runtimes)}"
        )
    raise ConfigError(f"--on {on} has no meaning for {language.name}, which has only one runtime", hint="omit --on")
