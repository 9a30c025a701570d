"""The pages that explain error codes, shipped with the package."""

from __future__ import annotations

from difflib import get_close_matches
from importlib.resources import files
from typing import NamedTuple

from ascend_dump._errors import ConfigError

__all__ = ["Page", "all_pages", "page"]


class Page(NamedTuple):
    """One page: Markdown whose first line is `# CODE: title`."""

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
        near = get_close_matches(wanted, codes, n=1, cutoff=0.5)
        guess = f"did you mean {near[0]}? " if near else ""
        raise ConfigError(f"no error has the code {code!r}", hint=f"{guess}`ascend-dump explain` lists all codes")
    text = (files("ascend_dump") / "pages" / f"{wanted}.md").read_text(encoding="utf-8")
    title = text.partition("\n")[0].lstrip("# ").partition(":")[2].strip()
    return Page(wanted, title, text)


def _codes() -> list[str]:
    found = (item.name for item in (files("ascend_dump") / "pages").iterdir())
    return sorted(name[: -len(".md")] for name in found if name.endswith(".md"))
