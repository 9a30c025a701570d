"""The step language `0|3-5|10`: one class to read it, test it and write it in each dialect.

Sources of the dialects' limits: CANN dump JSON and GE options, `dump_step` (at most 100
intervals; GE refuses a range whose ends are equal); torchair hands its text to GE unchanged;
MindSpore `iteration` takes no spaces and the word `all`.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Optional, Union

from ascend_dump._errors import ConfigError

__all__ = ["Steps", "StepsLike"]

StepsLike = Union[None, str, int, range, Iterable[int], "Steps"]

#: CANN and GE refuse more; see adump `dump_step` and GE `dump_properties`.
_MAX_INTERVALS = 100
_INT32_MAX = 2**31 - 1
_MAX_DIGITS = 18


class Steps:
    """An immutable set of non-negative integers, or all of them.

    Built from `"0|3-5|10"`, `"all"`, an int, a range, an iterable of ints, or None (all).
    Ranges include both ends. Raises ConfigError with the offending part marked.
    """

    __slots__ = ("_ranges", "_name")

    def __init__(self, value: StepsLike = None, *, name: str = "steps") -> None:
        self._name = name
        self._ranges: Optional[tuple[tuple[int, int], ...]] = _parse(value, name)

    @property
    def all(self) -> bool:
        return self._ranges is None

    @property
    def last(self) -> Optional[int]:
        """The highest selected step, None when every step is selected."""
        return None if self._ranges is None else self._ranges[-1][1]

    @property
    def count(self) -> Optional[int]:
        """How many steps are selected, None when every step is."""
        return None if self._ranges is None else sum(high - low + 1 for low, high in self._ranges)

    def __contains__(self, step: object) -> bool:
        if self._ranges is None:
            return True
        if not isinstance(step, int):
            return False
        return any(low <= step <= high for low, high in self._ranges)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Steps) and self._ranges == other._ranges

    def __hash__(self) -> int:
        return hash(self._ranges)

    def __str__(self) -> str:
        return "all" if self._ranges is None else _join(self._ranges)

    def __repr__(self) -> str:
        return f"Steps({str(self)!r})"

    def to_cann(self) -> str:
        """For `dump_step` of CANN's dump JSON, `""` for all."""
        return "" if self._ranges is None else _join(self._limited("CANN's dump_step"))

    def to_ge_option(self) -> str:
        """For `ge.exec.dumpStep`, whose numbers are int32."""
        ranges = () if self._ranges is None else self._limited("GE's dumpStep")
        for _, high in ranges:
            if high > _INT32_MAX:
                raise ConfigError(
                    f"{self._name}: step {high} does not fit GE's int32 step counter",
                    hint=f"select steps up to {_INT32_MAX}",
                    code="AD102",
                )
        return _join(ranges)

    def to_mindspore(self) -> str:
        """For `iteration` of MindSpore's dump JSON, where all steps are the word `all`."""
        return "all" if self._ranges is None else _join(self._ranges)

    def _limited(self, who: str) -> tuple[tuple[int, int], ...]:
        ranges = self._ranges or ()
        if len(ranges) > _MAX_INTERVALS:
            raise ConfigError(
                f"{self._name}: {len(ranges)} intervals, but {who} takes at most {_MAX_INTERVALS}",
                hint="join neighbouring steps into ranges such as 0-99, or use several captures",
                code="AD102",
            )
        return ranges


def _join(ranges: Iterable[tuple[int, int]]) -> str:
    return "|".join(str(low) if low == high else f"{low}-{high}" for low, high in ranges)


def _parse(value: StepsLike, name: str) -> Optional[tuple[tuple[int, int], ...]]:
    if value is None:
        return None
    if isinstance(value, Steps):
        return value._ranges
    if isinstance(value, str):
        return _from_text(value, name)
    if isinstance(value, bool):
        raise _bad(name, value, "a truth value is not a step")
    if isinstance(value, int):
        return _merge([(value, value)], name, value)
    if isinstance(value, range) and value.step == 1:
        return _merge([(value.start, value.stop - 1)] if value.start < value.stop else [], name, value)
    try:
        if isinstance(value, (bytes, bytearray)):
            raise TypeError("bytes would iterate as numbers")
        items = list(value)
    except TypeError:
        raise _bad(
            name, value, f"a {type(value).__name__} is neither text nor a number nor a list of numbers"
        ) from None
    for item in items:
        if isinstance(item, bool) or not isinstance(item, int):
            raise _bad(name, value, f"{item!r} is not an int")
    return _merge([(item, item) for item in items], name, value)


def _from_text(text: str, name: str) -> Optional[tuple[tuple[int, int], ...]]:
    if text.strip().lower() == "all":
        return None
    ranges = []
    position = 0
    for part in text.split("|"):
        low, dash, high = (piece.strip() for piece in part.partition("-"))
        if not part.strip():
            raise _marked(name, text, position, max(len(part), 1), "an empty part")
        for piece in (low, high) if dash else (low,):
            # str.isdigit accepts digits of other scripts, which no framework reads.
            if not (piece.isascii() and piece.isdigit()):
                raise _marked(name, text, position, len(part), f"{part.strip()!r} is neither a number nor a range")
            # Beyond int64 nothing counts steps, and beyond 4300 digits int() itself refuses.
            if len(piece) > _MAX_DIGITS:
                raise _marked(name, text, position, len(part), f"a number of {len(piece)} digits")
        first, last = int(low), int(high if dash else low)
        if first > last:
            raise _marked(name, text, position, len(part), "the range runs backwards")
        ranges.append((first, last))
        position += len(part) + 1
    return _merge(ranges, name, text)


def _merge(ranges: list[tuple[int, int]], name: str, value: object) -> tuple[tuple[int, int], ...]:
    if not ranges:
        raise _bad(name, value, "it selects nothing")
    merged: list[tuple[int, int]] = []
    for low, high in sorted(ranges):
        if low < 0:
            raise _bad(name, value, "a negative number is no step")
        if high >= 10**_MAX_DIGITS:
            raise _bad(name, value, f"a number of more than {_MAX_DIGITS} digits")
        if merged and low <= merged[-1][1] + 1:
            merged[-1] = (merged[-1][0], max(merged[-1][1], high))
        else:
            merged.append((low, high))
    return tuple(merged)


def _bad(name: str, value: object, reason: str) -> ConfigError:
    try:
        shown = repr(value)
    except ValueError:  # an int of more digits than Python writes
        shown = f"<{type(value).__name__}>"
    return ConfigError(
        f"{name}={shown}: {reason}",
        hint=f'give {name}="0|3-5|10", "all", an int, a range or a list of ints',
        code="AD102",
    )


def _marked(name: str, text: str, start: int, length: int, reason: str) -> ConfigError:
    lead = f"{name}="
    # An empty part at the end has no place of its own: point at the bar before it.
    start = min(start, max(len(text) - 1, 0))
    shown = len(repr(text[start : start + length])) - 2
    pointer = " " * (len(lead) + len(repr(text[:start])) - 1) + "^" * max(shown, 1)
    return ConfigError(
        f"{reason} in\n{lead}{text!r}\n{pointer}",
        hint='write numbers and ranges joined by "|", such as "0|3-5|10", or "all"',
        code="AD102",
    )
