"""The languages of dump configurations, for `check --against` and `config --for`.

A language is an object. The languages of this package are in the tuples `LANGUAGES` of
`native/<framework>/config/language.py`; other distributions register theirs in the entry point group
`ascend_dump.languages`.
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
#: Certainty that a content is in a language: shared keys; shared keys with typical values; keys of its own.
POSSIBLE, LIKELY, CERTAIN = 1, 2, 3

log = logging.getLogger("ascend_dump")


class Surroundings(NamedTuple):
    """Facts about the use of a file. on: a runtime of the language. graph: the file of the model's graph."""

    situation: Situation
    on: Optional[str] = None
    graph: Optional[Path] = None


class ConfigLanguage(ABC):
    """A language of dump configurations."""

    #: Its name for `--for` and `--against`.
    name: str = ""
    #: The suffix of its files, if the framework requires one.
    suffix: str = ""
    #: True if a file also has settings of other subjects; they are preserved when the dump is written into it.
    shared: bool = False
    #: True if it can select the ranks that dump, and the amount of data.
    selects_ranks: bool = False
    #: Names of the runtimes of the framework, for `--on`.
    runtimes: Sequence[str] = ()
    #: Styles of Python programs with the settings, for `--style`; empty if there are none.
    styles: Sequence[str] = ()
    #: A Python file that reads the settings if ascend_dump cannot be imported.
    standalone: Optional[Path] = None

    @abstractmethod
    def recognise(self, value: Any, suffix: str) -> int:
        """Return the certainty that a content is in this language: 0, POSSIBLE, LIKELY or CERTAIN.

        value: the decoded content, None if it is no JSON. suffix: of the file, empty for standard input.
        """

    @abstractmethod
    def check(self, source: Union[Path, bytes], around: Surroundings) -> list[Problem]:
        """Return the settings that are refused, or accepted without effect; errors first."""

    @abstractmethod
    def build(self, request: DumpRequest, names: Optional[Iterable[str]] = None) -> Mapping[str, Any]:
        """Return the content of a file for this request. Raises ConfigError and NotSupported."""

    def python(self, built: Mapping[str, Any], style: str, ranks: Steps) -> str:
        """Return the result of `build` as lines of a program in one of `styles`, on these ranks only."""
        raise NotImplementedError(f"{self.name} has styles and does not write them")

    def left_out(self, request: DumpRequest) -> list[Problem]:
        """Return the settings of the request that the file does not contain, without those that `build` refuses."""
        return []

    def usage(self, built: Mapping[str, Any], file: str) -> str:
        """Return how to pass the result of `build` to the framework, in one sentence; "" if there is only one way.

        file: the written file, or "".
        """
        return ""

    def operators(self, graph: Path) -> list[Node]:
        """Return the operators of the graph of the model. Raises ReadError."""
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
        except Exception as error:  # the import of a foreign module may raise any error
            log.warning("the configuration language %s cannot be loaded: %s", name, error)
            continue
        by_name.setdefault(language.name, language)
    return by_name


def recognise(candidates: Iterable[ConfigLanguage], value: Any, suffix: str = "") -> list[ConfigLanguage]:
    """Return the possible languages of a content, the likeliest first; only one if it is certain."""
    scores = [(language.recognise(value, suffix), language) for language in candidates]
    likely = sorted((score for score in scores if score[0]), key=lambda score: -score[0])
    return [language for _, language in likely[: 1 if likely and likely[0][0] == CERTAIN else None]]


def refuse_runtime(language: ConfigLanguage, on: Optional[str]) -> None:
    """Raise ConfigError when `--on` is no runtime of this language."""
    if on is None or on.lower() in map(str.lower, language.runtimes):
        return
    if language.runtimes:
        raise ConfigError(
            f"{on!r} is not a runtime of {language.name}", hint=f"choose from {', '.join(language.runtimes)}"
        )
    raise ConfigError(f"--on {on} has no meaning for {language.name}, which has only one runtime", hint="omit --on")
