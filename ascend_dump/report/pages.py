"""The pages that explain error codes and say what to do in a situation, shipped with the package."""

from __future__ import annotations

from importlib.resources import files
from typing import TYPE_CHECKING, NamedTuple

from ascend_dump.common.suggest import did_you_mean
from ascend_dump.errors import ConfigError

if TYPE_CHECKING:
    from importlib.abc import Traversable

__all__ = ["Page", "all_pages", "all_topics", "page", "topic_page"]


class Page(NamedTuple):
    """One page: Markdown whose first line is `# CODE: title`; of a topic its name is the code."""

    code: str
    title: str
    text: str


def all_pages() -> list[Page]:
    """Every page, by code."""
    return [page(code) for code in _codes()]


def page(code: str) -> Page:
    """The page of a code, upper or lower case. Raises ConfigError naming the nearest code."""
    wanted = code.strip().upper()
    codes = _codes()
    # Compared before it becomes part of a path: a code is user input.
    if wanted not in codes:
        guess = did_you_mean(wanted, codes, cutoff=0.5)
        raise ConfigError(f"no error has the code {code!r}", hint=f"{guess}`ascend-dump explain` lists all codes")
    return _read(wanted)


def all_topics() -> list[Page]:
    """Every page of what to do in a situation, by name."""
    return [_read(name, _TOPICS) for name in _codes(_TOPICS)]


def topic_page(name: str) -> Page:
    """The page of a topic. Raises ConfigError naming the nearest one."""
    wanted, names = name.strip().lower(), _codes(_TOPICS)
    if wanted not in names:
        guess = did_you_mean(wanted, names, cutoff=0.5)
        raise ConfigError(f"there is no topic {name!r}", hint=f"{guess}topics: {', '.join(names)}")
    return _read(wanted, _TOPICS)


_TOPICS = "topics"


def _read(code: str, *below: str) -> Page:
    text = (_directory(*below) / f"{code}.md").read_text(encoding="utf-8")
    title = text.partition("\n")[0].lstrip("# ").partition(":")[2].strip()
    return Page(code, title, text)


def _codes(*below: str) -> list[str]:
    found = (item.name for item in _directory(*below).iterdir())
    return sorted(name[: -len(".md")] for name in found if name.endswith(".md"))


def _directory(*below: str) -> Traversable:
    found = files("ascend_dump") / "pages"
    for name in below:
        found = found / name
    return found
