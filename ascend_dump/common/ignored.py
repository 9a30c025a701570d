"""Operators whose NaN and Inf are known: named by operator, module or line, as the option `--ignore` has them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Optional

from ascend_dump.common.patterns import text_matcher

__all__ = ["IgnoredOperators"]

_LINE = re.compile(r".+:[0-9]+$")


class IgnoredOperators:
    """Operators that are selected by globs of their name or type, by a module with all below it, or by FILE:LINE.

    used    the patterns that have selected something so far; unused: the others
    """

    def __init__(self, patterns: Iterable[str]) -> None:
        self._patterns: Sequence[str] = tuple(patterns)
        self._matchers = {pattern: text_matcher(pattern) for pattern in self._patterns}
        self._used: set[str] = set()

    def __bool__(self) -> bool:
        return bool(self._patterns)

    @property
    def used(self) -> tuple[str, ...]:
        return tuple(pattern for pattern in self._patterns if pattern in self._used)

    @property
    def unused(self) -> tuple[str, ...]:
        return tuple(pattern for pattern in self._patterns if pattern not in self._used)

    def selects(
        self, *, op_name: str = "", op_type: str = "", module: Optional[str] = "", source: Optional[str] = ""
    ) -> bool:
        """Return True if a pattern selects this operator. source: its line, `/path/to/train.py:14`"""
        for pattern, matches in self._matchers.items():
            names = (op_name, op_type, op_type.rpartition("::")[2])
            is_below = bool(module) and (module == pattern or str(module).startswith(f"{pattern}."))
            if is_below or self.selects_line(source, pattern) or any(matches(name) for name in names if name):
                self._used.add(pattern)
                return True
        return False

    def selects_line(self, source: Optional[str], pattern: Optional[str] = None) -> bool:
        """Return True if a pattern of the form FILE:LINE selects a line; FILE may leave out directories before it."""
        if not source:
            return False
        for one in self._patterns if pattern is None else (pattern,):
            if _LINE.match(one) and (source == one or source.endswith(f"/{one}")):
                self._used.add(one)
                return True
        return False
