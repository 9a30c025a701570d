"""The languages in which a dump is configured: what `check --against` and `config --for` know of each.

A language is an object. Those of this package stand in the tuple `LANGUAGES` of
`native/<framework>/config/language.py`; other distributions register theirs under the entry point group
`ascend_dump.languages`. Nothing else lists them.
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
#: How surely a content is of a language: words that others have too; its own reading of them; keys of its alone.
POSSIBLE, LIKELY, CERTAIN = 1, 2, 3

log = logging.getLogger("ascend_dump")


class Surroundings(NamedTuple):
    """What is known beside a file. on: one of the language's runtimes. graph: of the model."""

    situation: Situation
    on: Optional[str] = None
    graph: Optional[Path] = None


class ConfigLanguage(ABC):
    """One way of writing down what is dumped."""

    #: Of `--for` and `--against`.
    name: str = ""
    #: How the name of a file must end, where the framework takes no other.
    suffix: str = ""
    #: Whether a file holds other subjects beside the dump, which are kept when the dump is written into it.
    shared: bool = False
    #: Whether it can say which ranks dump, and how much.
    selects_ranks: bool = False
    #: Names of where the framework may run, among which `--on` chooses.
    runtimes: Sequence[str] = ()
    #: How a program may be written that has the settings as lines of Python, for `--style`; empty if there are none.
    styles: Sequence[str] = ()
    #: A file of Python that reads the settings where ascend_dump cannot be imported.
    standalone: Optional[Path] = None

    @abstractmethod
    def recognise(self, value: Any, suffix: str) -> int:
        """How surely this decoded content is of this language: 0, or one of POSSIBLE, LIKELY, CERTAIN.

        value: None where the content is no JSON. suffix: of the file, empty for standard input.
        """

    @abstractmethod
    def check(self, source: Union[Path, bytes], around: Surroundings) -> list[Problem]:
        """Everything that would be refused, or accepted without being done; errors first."""

    @abstractmethod
    def build(self, request: DumpRequest, names: Optional[Iterable[str]] = None) -> Mapping[str, Any]:
        """Return the content of a file that asks for what the request says. Raises ConfigError and NotSupported."""

    def python(self, built: Mapping[str, Any], style: str, ranks: Steps) -> str:
        """Return the result of `build` as lines of a program in one of `styles`, on these ranks only."""
        raise NotImplementedError(f"{self.name} has styles and does not write them")

    def left_out(self, request: DumpRequest) -> list[Problem]:
        """What the request says and this language's file will not; what `build` refuses is not among it."""
        return []

    def usage(self, built: Mapping[str, Any], file: str) -> str:
        """How the framework is told of what `build` gave, in one sentence; "" if there is one way only.

        file: where it was written, "" for nowhere.
        """
        return ""

    def operators(self, graph: Path) -> list[Node]:
        """Return the operators of a graph that was given beside the file. Raises ReadError."""
        from ascend_dump.native.cann.graph import read_graph

        return list(read_graph(graph))


def languages() -> dict[str, ConfigLanguage]:
    """Return all that are registered, by name; one that cannot be loaded is left out with a warning."""
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
        except Exception as error:  # whatever the import of a foreign module raises
            log.warning("the configuration language %s cannot be loaded: %s", name, error)
            continue
        by_name.setdefault(language.name, language)
    return by_name


def recognise(candidates: Iterable[ConfigLanguage], value: Any, suffix: str = "") -> list[ConfigLanguage]:
    """Return the languages that a content may be of, the likeliest first; only one where that is certain."""
    sure = [(language.recognise(value, suffix), language) for language in candidates]
    likely = sorted((scored for scored in sure if scored[0]), key=lambda scored: -scored[0])
    return [language for _, language in likely[: 1 if likely and likely[0][0] == CERTAIN else None]]


def refuse_runtime(language: ConfigLanguage, on: Optional[str]) -> None:
    """Raise ConfigError when `--on` is no runtime of this language."""
    if on is None or on.lower() in map(str.lower, language.runtimes):
        return
    if language.runtimes:
        raise ConfigError(
            f"{on!r} is not a runtime of {language.name}", hint=f"give one of {', '.join(language.runtimes)}"
        )
    raise ConfigError(
        f"--on {on} has no meaning for {language.name}, which has only one runtime", hint="leave --on out"
    )
