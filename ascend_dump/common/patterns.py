"""The pattern language for names: a shell glob, or a regular expression after `re:`."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Callable

from ascend_dump.errors import ConfigError

__all__ = ["text_matcher"]


def text_matcher(pattern: str) -> Callable[[str], bool]:
    """Return a test for names: a shell glob (case kept), or a regular expression after `re:`.

    A regular expression is searched, a glob must match the whole name.
    Raises ConfigError for a regular expression that does not compile, and for a glob with a
    backward range such as [z-a] where fnmatch cannot read it (before Python 3.10.6; since then
    such a range is empty).
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
