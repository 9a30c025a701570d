"""Find the iterations and operators that a dump JSON selects, exactly like MindSpore.

`iteration` consists of parts separated by `|`. A part that is neither a number nor a range of numbers (`3-5`) selects
nothing, but is no error. Entries of `kernels` are compared as JSON text without blanks, so a backslash counts as two.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any, Optional

__all__ = ["KernelSelector", "iteration_ranges", "kernel_kind", "kernel_text", "regex_refusal", "unused_parts"]

_REGEX = re.compile(r"name-regex\((.*)\)", re.DOTALL)
#: The largest number of an iteration (unsigned 64 bits); a range with a larger one selects nothing.
_LARGEST = 2**64 - 1
_OPEN_BRACE = re.compile(r"(?<!\\)\{(?!\d+(?:,\d*)?\})")
_SET = re.compile(r"\[\^?\]?[^\]]*(?:\]|\Z)")
#: The beginning of a group that Python's expressions have, but not those of C++ (ECMAScript).
_FOREIGN_GROUP = re.compile(r"(?<!\\)\(\?(?![:=!])")


def iteration_ranges(text: str) -> Optional[list[tuple[int, int]]]:
    """Return the iterations that `iteration` selects as (first, last) pairs; None if all are selected."""
    if text == "all":
        return None
    ranges = (_range(part) for part in text.split("|"))
    return [limits for limits in ranges if limits is not None]


def unused_parts(text: str) -> list[str]:
    """Return the parts of `iteration` that select nothing, without empty parts."""
    return [] if text == "all" else [part for part in text.split("|") if part and _range(part) is None]


def _range(part: str) -> Optional[tuple[int, int]]:
    low, dash, high = part.partition("-")
    ends = (low, high if dash else low)
    if not all(end.isascii() and end.isdigit() and len(end) < 4000 for end in ends):
        return None
    first, last = int(ends[0]), int(ends[1])
    return (first, last) if first <= last <= _LARGEST else None


def kernel_text(entry: Any) -> str:
    """Return an entry of `kernels` as MindSpore compares it."""
    text = json.dumps(entry, ensure_ascii=False, separators=(",", ":"))
    return text.replace('"', "").replace(" ", "")


def regex_refusal(entry: str) -> str:
    """Return MindSpore's error for an entry `name-regex(…)` whose expression does not compile; else ""."""
    match = _REGEX.fullmatch(entry)
    if match is None:
        return ""
    if _FOREIGN_GROUP.search(match[1]):
        return "Invalid special open parenthesis."
    if _OPEN_BRACE.search(_SET.sub("", match[1])):
        return "Unexpected end of brace expression."
    try:
        re.compile(_in_python(match[1]))
    except re.error as error:
        if "character set" in str(error) or "character range" in str(error):
            return "Unexpected character in bracket expression."
        return "Mismatched '(' and ')' in regular expression"
    except (OverflowError, RecursionError):
        return "Number of NFA states exceeds limit. Please use shorter regex string, or use smaller brace expression."
    return ""


def _in_python(expression: str) -> str:
    """Return an expression of C++ for Python: `**`, which only C++ accepts, becomes `*`."""
    return re.sub(r"(?<!\\)\*{2,}", "*", expression)


class KernelSelector:
    """The operators that `kernels` selects with dump_mode 1. entries: results of `kernel_text`.

    If there are no entries, or only empty ones, all operators are selected. Names of parameters (`fc.weight`) are
    compared like names of operators.
    """

    def __init__(self, entries: Sequence[str]) -> None:
        self._all = not any(entries)
        self._exact = {entry for entry in entries if kernel_kind(entry) == "name"}
        self._types = [entry.lower() for entry in entries if entry and kernel_kind(entry) == "type"]
        self._regexes = []
        for entry in entries:
            match = _REGEX.fullmatch(entry)
            if match is not None and not regex_refusal(entry):
                self._regexes.append(re.compile(_in_python(match[1])))

    def matches(self, full_name: str) -> bool:
        """Return True if an operator is selected. full_name: with scope, such as `Default/fc-Dense/MatMul-op0`."""
        if self._all or full_name in self._exact:
            return True
        if any(regex.fullmatch(full_name) for regex in self._regexes):
            return True
        last = full_name[full_name.rfind("/") + 1 :]
        kind = last[: last.rfind("-")] if "-" in last else last
        return any(part in kind.lower() for part in self._types)


def kernel_kind(entry: str) -> str:
    """Return how MindSpore compares an entry: "regex", "name" (with the full name) or "type" (with the type)."""
    if _REGEX.fullmatch(entry):
        return "regex"
    return "name" if "/" in entry or "-op" in entry else "type"
