"""Help texts in the package: explanations of error codes, and topics."""

from __future__ import annotations

from importlib.resources import files
from typing import TYPE_CHECKING, NamedTuple

from ascend_dump.common.suggest import did_you_mean
from ascend_dump.errors import ConfigError

if TYPE_CHECKING:
    from importlib.abc import Traversable

__all__ = ["Page", "all_pages", "all_topics", "page", "topic_page"]


class Page(NamedTuple):
    """A help text in Markdown. Its first line is `# CODE: title`; the code of a topic is its name."""

    code: str
    title: str
    text: str


def all_pages() -> list[Page]:
    """Return the explanations of all error codes, sorted by code."""
    return [page(code) for code in _codes()]


def page(code: str) -> Page:
    """Return the explanation of an error code in upper or lower case. Raises ConfigError with the nearest code."""
    key, codes = code.strip().upper(), _codes()
    if key not in codes:  # checked before it is part of a path: a code is user input
        guess = did_you_mean(key, codes, cutoff=0.5)
        raise ConfigError(f"no error has the code {code!r}", hint=f"{guess}`ascend-dump explain` lists all codes")
    return _read(key)


def all_topics() -> list[Page]:
    """Return all topics, sorted by name."""
    return [_read(name, _TOPICS) for name in _codes(_TOPICS)]


def topic_page(name: str) -> Page:
    """Return a topic. Raises ConfigError with the nearest name."""
    key, names = name.strip().lower(), _codes(_TOPICS)
    if key not in names:
        guess = did_you_mean(key, names, cutoff=0.5)
        raise ConfigError(f"there is no topic {name!r}", hint=f"{guess}topics: {', '.join(names)}")
    return _read(key, _TOPICS)


_TOPICS = "topics"


def _read(code: str, *below: str) -> Page:
    text = (_directory(*below) / f"{code}.md").read_text(encoding="utf-8")
    title = text.partition("\n")[0].lstrip("# ").partition(":")[2].strip()
    return Page(code, title, text)


def _codes(*below: str) -> list[str]:
    names = (item.name for item in _directory(*below).iterdir())
    return sorted(name[: -len(".md")] for name in names if name.endswith(".md"))


def _directory(*below: str) -> Traversable:
    directory = files("ascend_dump") / "pages"
    for name in below:
        directory = directory / name
    return directory
