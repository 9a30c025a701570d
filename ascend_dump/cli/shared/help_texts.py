"""Help texts that the package contains: an explanation of each error code, and topics with advice for a task."""

from __future__ import annotations

import os
import re
from importlib.resources import files
from typing import TYPE_CHECKING, NamedTuple

from ascend_dump.common.suggest import did_you_mean
from ascend_dump.errors import ConfigError

if TYPE_CHECKING:
    from importlib.abc import Traversable

__all__ = [
    "LANGUAGES",
    "TOPICS",
    "HelpText",
    "explanation",
    "explanations",
    "topic_text",
    "topics",
    "user_language",
]

_TOPICS = "topics"
#: Languages of the topics. English topics are in `pages/topics/`, the others in `pages/topics/<language>/`.
LANGUAGES = ("en", "zh")
#: The names of all topics, grouped by task. The text is `pages/topics/<topic>.md`.
TOPICS = {
    "Find a fault": ("nan", "diverges", "trends", "different", "suspects", "ranks", "weights", "rollout", "quantised"),
    "Capture": ("frameworks", "pytorch", "trainers", "serving", "settings", "options"),
    "Recipes": (
        "recipes",
        *("recipe-trainer", "recipe-accelerate", "recipe-lightning", "recipe-peft", "recipe-trl", "recipe-deepspeed"),
        *("recipe-megatron", "recipe-ray", "recipe-vllm", "recipe-llamafactory", "recipe-swift", "recipe-slurm"),
        "recipe-kubernetes",
    ),
    "Read": ("reading", "page", "files", "storage"),
    "On an NPU, and without one": ("operator", "test", "converters"),
    "Before you use it": ("costs", "startup", "versions"),
    "For assistants and scripts": ("assistant", "schemas"),
    "Extend it": ("interface", "extend"),
}


class HelpText(NamedTuple):
    """A Markdown text whose first line is `# CODE: title`. CODE is an error code, or the name of a topic."""

    code: str
    title: str
    text: str


def explanations() -> list[HelpText]:
    """Return the explanations of all error codes, sorted by code."""
    return [_read(code) for code in _codes()]


def explanation(code: str) -> HelpText:
    """Return the explanation of an error code in upper or lower case. Raises ConfigError naming the nearest code."""
    name, codes = code.strip().upper(), _codes()
    # Compared with the known codes before it becomes part of a path, because it is user input.
    if name not in codes:
        guess = did_you_mean(name, codes, cutoff=0.5)
        raise ConfigError(f"no error has the code {code!r}", hint=f"{guess}`ascend-dump explain` lists all codes")
    return _read(name)


def topics(language: str = "en") -> list[HelpText]:
    """Return all topics in the order of TOPICS."""
    return [_topic(name, language) for names in TOPICS.values() for name in names]


def topic_text(topic: str, language: str = "en") -> HelpText:
    """Return the text of a topic in this language, or in English if it is not translated.

    Raises ConfigError naming the nearest topic.
    """
    name, names = topic.strip().lower(), [name for names in TOPICS.values() for name in names]
    if name not in names:
        guess = did_you_mean(name, names, cutoff=0.5)
        raise ConfigError(f"there is no topic {topic!r}", hint=f"{guess}topics: {', '.join(names)}")
    return _topic(name, language)


def user_language() -> str:
    """Return the language of the user's locale if it is one of LANGUAGES, else "en"."""
    locale = next(filter(None, map(os.environ.get, ("LC_ALL", "LC_MESSAGES", "LANG"))), "")
    language = re.split(r"[_.@-]", locale.lower())[0]
    return language if language in LANGUAGES else "en"


def _topic(name: str, language: str) -> HelpText:
    is_translated = language != "en" and (_directory(_TOPICS, language) / f"{name}.md").is_file()
    return _read(name, _TOPICS, *([language] if is_translated else []))


def _read(code: str, *subdirectory: str) -> HelpText:
    text = (_directory(*subdirectory) / f"{code}.md").read_text(encoding="utf-8")
    title = text.partition("\n")[0].lstrip("# ").partition(":")[2].strip()
    return HelpText(code, title, text)


def _codes() -> list[str]:
    names = (entry.name for entry in _directory().iterdir())
    return sorted(name[: -len(".md")] for name in names if name.endswith(".md"))


def _directory(*subdirectory: str) -> Traversable:
    directory = files("ascend_dump") / "pages"
    for name in subdirectory:
        directory = directory / name
    return directory
