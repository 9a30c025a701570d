"""Select the operators whose NaN and Inf the user wants to ignore (`--ignore`), by operator, module or line."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Optional

from ascend_dump.common.patterns import text_matcher

__all__ = ["IgnoredOperators"]

_LINE = re.compile(r".+:[0-9]+$")


class IgnoredOperators:
    """The ignored operators, given by patterns.

    A pattern is a glob of the operator's name or type, the path of a module (which selects all operators below it), or
    FILE:LINE. used: the patterns that have selected an operator so far; unused: the other patterns.
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
        """Return True if a pattern selects this operator. source: its line of the program, `/path/to/train.py:14`."""
        for pattern, matches in self._matchers.items():
            names = (op_name, op_type, op_type.rpartition("::")[2])
            is_below = bool(module) and (module == pattern or str(module).startswith(f"{pattern}."))
            if is_below or self.selects_line(source, pattern) or any(matches(name) for name in names if name):
                self._used.add(pattern)
                return True
        return False

    def selects_line(self, source: Optional[str], pattern: Optional[str] = None) -> bool:
        """Return True if a pattern FILE:LINE selects a line of the program. FILE may lack its leading directories.

        pattern: the only pattern to test; None for all patterns
        """
        if not source:
            return False
        for tested in self._patterns if pattern is None else (pattern,):
            if _LINE.match(tested) and (source == tested or source.endswith(f"/{tested}")):
                self._used.add(tested)
                return True
        return False
