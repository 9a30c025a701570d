"""Patterns for names: a shell glob, or a regular expression after `re:`."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Callable

from ascend_dump.errors import ConfigError

__all__ = ["text_matcher"]


def text_matcher(pattern: str) -> Callable[[str], bool]:
    """Return a function that tests names against a pattern: a case-sensitive shell glob, or `re:` and an expression.

    A glob has to match the whole name, a regular expression any part of it.
    Raises ConfigError for an invalid regular expression. Before Python 3.10.6 it is also raised for a glob with a
    backward range such as [z-a]; later versions treat such a range as empty.
    """
    if pattern.startswith("re:"):
        hint = "drop the `re:` prefix to use a glob such as *conv1*"
        expression = _compile(pattern[3:], f"{pattern!r} is not a regular expression", hint)
        return lambda text: expression.search(text) is not None
    glob = _compile(
        fnmatch.translate(pattern),
        f"{pattern!r} is not a glob",
        "write a range from its lower to its higher end, as in [0-9]",
    )
    return lambda text: glob.match(text) is not None


def _compile(expression: str, problem: str, hint: str) -> re.Pattern[str]:
    try:
        return re.compile(expression)
    except re.error as error:
        raise ConfigError(f"{problem}: {error}", hint=hint, code="AD103") from None
