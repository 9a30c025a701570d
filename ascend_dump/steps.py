"""The step language `0|3-5|10|0-10000:1000|4000-`: a class that parses it, tests steps, and writes it for frameworks.

The frameworks have limits. `dump_step` of CANN's dump JSON and of GE's options takes at most 100 intervals, and GE
refuses a range with equal ends. torchair passes the text to GE unchanged. `iteration` of MindSpore accepts the word
`all`, and no spaces.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple, Optional, Union

from ascend_dump.errors import ConfigError

__all__ = ["Steps", "StepsLike"]

StepsLike = Union[None, str, int, range, Iterable[int], "Steps"]

#: Maximum number of intervals that CANN and GE accept; see adump `dump_step` and GE `dump_properties`.
_MAX_INTERVALS = 100
_INT32_MAX = 2**31 - 1
_MAX_DIGITS = 18
#: For frameworks without strides, a range with a stride is expanded into single steps, at most this many.
_MAX_EXPANDED = 10_000

_Ranges = tuple[tuple[int, int], ...]


class _Stride(NamedTuple):
    """Every `stride`-th step from `low` to `high`, both included. high=None: the range has no end."""

    low: int
    high: Optional[int]
    stride: int

    def __contains__(self, step: object) -> bool:
        if not isinstance(step, int) or step < self.low or (self.high is not None and step > self.high):
            return False
        return (step - self.low) % self.stride == 0

    def __str__(self) -> str:
        end = "" if self.high is None else str(self.high)
        return f"{self.low}-{end}" if self.stride == 1 else f"{self.low}-{end}:{self.stride}"

    def first_from(self, step: int) -> Optional[int]:
        """Return the first of these steps that is not before `step`; None if there is none."""
        first = self.low + max(0, -((self.low - step) // self.stride)) * self.stride
        return first if self.high is None or first <= self.high else None

    def steps(self) -> range:
        assert self.high is not None, "the range has no end"
        return range(self.low, self.high + 1, self.stride)


class Steps:
    """An immutable set of step numbers, possibly all of them.

    Built from `"0|3-5|10"`, `"all"`, an int, a range, an iterable of ints, or None (all). Ranges include both ends.
    `"0-10000:1000"` is every 1000th step from 0 to 10000, `"4000-"` has no end. CANN, GE, torchair and MindSpore
    support neither strides nor open ends: for them strides are expanded as far as their limits allow, and open ends
    are refused. Raises ConfigError, whose message marks the wrong part of the text.

    >>> [step for step in range(5000) if step in Steps("0-2000:1000|4998-")]
    [0, 1000, 2000, 4998, 4999]
    """

    __slots__ = ("_ranges", "_strides", "_name", "last")

    def __init__(self, value: StepsLike = None, *, name: str = "steps") -> None:
        self._name = name
        #: The ranges of consecutive steps, sorted and with gaps between them; None for all steps.
        self._ranges: Optional[_Ranges]
        #: The ranges that have a stride or an open end.
        self._strides: tuple[_Stride, ...]
        self._ranges, self._strides = _parse(value, name)
        #: The highest selected step, None if there is no end. Not a property, because each step of a program reads it.
        self.last = _last(self._ranges, self._strides)

    @property
    def all(self) -> bool:
        return self._ranges is None

    @property
    def count(self) -> Optional[int]:
        """Return the number of selected steps, None if there is no end.

        Overlaps of ranges with strides are not subtracted: a step in two of them counts twice.
        """
        if self._ranges is None or self.last is None:
            return None
        return sum(high - low + 1 for low, high in self._ranges) + sum(len(stride.steps()) for stride in self._strides)

    def __contains__(self, step: object) -> bool:
        if self._ranges is None:
            return True
        if not isinstance(step, int):
            return False
        return any(low <= step <= high for low, high in self._ranges) or any(step in stride for stride in self._strides)

    def end_before(self, step: int) -> bool:
        """Return True if neither `step` nor a later step is selected."""
        return self.last is not None and step > self.last

    def first_from(self, step: int) -> Optional[int]:
        """Return the first selected step that is not before `step`; None if there is none.

        >>> [Steps("2|10-12|20-:5").first_from(step) for step in (0, 2, 11, 13, 21)]
        [2, 2, 11, 20, 25]
        """
        if self._ranges is None:
            return step
        firsts = [max(low, step) for low, high in self._ranges if high >= step]
        firsts += [first for stride in self._strides if (first := stride.first_from(step)) is not None]
        return min(firsts, default=None)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Steps) and (self._ranges, self._strides) == (other._ranges, other._strides)

    def __hash__(self) -> int:
        return hash((self._ranges, self._strides))

    def __str__(self) -> str:
        if self._ranges is None:
            return "all"
        return "|".join([_join(self._ranges)] * bool(self._ranges) + [str(stride) for stride in self._strides])

    def __repr__(self) -> str:
        return f"Steps({str(self)!r})"

    def to_cann(self) -> str:
        """Return the text for `dump_step` of CANN's dump JSON; `""` for all."""
        return "" if self._ranges is None else _join(self._limited("CANN's dump_step"))

    def to_ge_option(self) -> str:
        """Return the text for `ge.exec.dumpStep`, with int32 numbers."""
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
        """Return the text for `iteration` of MindSpore's dump JSON, with the word `all` for all steps."""
        return "all" if self._ranges is None else _join(self._expanded("MindSpore's iteration"))

    def _expanded(self, consumer: str) -> _Ranges:
        """Return the ranges, with each stride expanded into single steps. Raises ConfigError if that is impossible."""
        ranges = self._ranges or ()
        steps: list[tuple[int, int]] = []
        for stride in self._strides:
            low = stride.low
            if stride.high is None:
                raise ConfigError(
                    f"{self._name}={str(self)!r}: {consumer} has no ranges without an end",
                    hint=f"write the last step too, such as {low}-{low + 999}, or leave out {self._name} for all steps",
                    code="AD102",
                )
            if len(stride.steps()) > _MAX_EXPANDED:
                raise ConfigError(
                    f"{self._name}={str(self)!r}: {consumer} has no strides, "
                    f"and {stride} stands for {len(stride.steps())} steps",
                    hint="give a larger stride, or ranges such as 0-99",
                    code="AD102",
                )
            steps += [(step, step) for step in stride.steps()]
        return _merge([*ranges, *steps], self._name, str(self)) if steps else ranges

    def _limited(self, consumer: str) -> _Ranges:
        ranges = self._expanded(consumer)
        if len(ranges) > _MAX_INTERVALS:
            raise ConfigError(
                f"{self._name}: {len(ranges)} intervals, but {consumer} takes at most {_MAX_INTERVALS}",
                hint="join neighbouring steps into ranges such as 0-99, or use several captures",
                code="AD102",
            )
        return ranges


def _join(ranges: Iterable[tuple[int, int]]) -> str:
    return "|".join(str(low) if low == high else f"{low}-{high}" for low, high in ranges)


def _last(ranges: Optional[_Ranges], strides: tuple[_Stride, ...]) -> Optional[int]:
    ends = [] if ranges is None else [*(high for _, high in ranges[-1:]), *(stride.high for stride in strides)]
    return None if None in ends else max((end for end in ends if end is not None), default=None)


def _parse(value: StepsLike, name: str) -> tuple[Optional[_Ranges], tuple[_Stride, ...]]:
    if value is None:
        return None, ()
    if isinstance(value, Steps):
        return value._ranges, value._strides
    if isinstance(value, str):
        return _from_text(value, name)
    return _of_numbers(value, name), ()


def _of_numbers(value: Union[int, range, Iterable[int]], name: str) -> _Ranges:
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


def _from_text(text: str, name: str) -> tuple[Optional[_Ranges], tuple[_Stride, ...]]:
    if text.strip().lower() == "all":
        return None, ()
    ranges: list[tuple[int, int]] = []
    strides: set[_Stride] = set()
    position = 0
    for part in text.split("|"):
        body, colon, stride_text = (piece.strip() for piece in part.partition(":"))
        low, dash, high = (piece.strip() for piece in body.partition("-"))
        if not part.strip():
            raise _marked(name, text, position, max(len(part), 1), "an empty part")
        if colon and not dash:
            raise _marked(name, text, position, len(part), f"{part.strip()!r} has a stride but is not a range")
        for piece in [low, *([high] if high else []), *([stride_text] if colon else [])]:
            # str.isdigit accepts digits of other scripts too, which no framework can read.
            if not (piece.isascii() and piece.isdigit()):
                raise _marked(name, text, position, len(part), f"{part.strip()!r} is neither a number nor a range")
            # No framework counts steps beyond int64, and int() itself refuses more than 4300 digits.
            if len(piece) > _MAX_DIGITS:
                raise _marked(name, text, position, len(part), f"a number of {len(piece)} digits")
        first, stride = int(low), int(stride_text) if colon else 1
        last = None if dash and not high else int(high or low)
        if stride == 0:
            raise _marked(name, text, position, len(part), "a stride of 0")
        if last is not None and first > last:
            raise _marked(name, text, position, len(part), "the range runs backwards")
        if last is not None:
            last = first + (last - first) // stride * stride
        if last is None or (stride > 1 and last > first + stride):
            strides.add(_Stride(first, last, stride))
        else:  # one step, two steps, or consecutive steps
            ranges += [(first, last)] if stride == 1 else [(first, first), (last, last)]
        position += len(part) + 1
    return _without_covered(_merge(ranges, name, text) if ranges else (), strides)


def _without_covered(ranges: _Ranges, strides: set[_Stride]) -> tuple[Optional[_Ranges], tuple[_Stride, ...]]:
    """Extend an open range such as `4000-` by the ranges that it touches; return the remaining ranges and strides.

    Ranges and strides that begin inside the open range are dropped.

    The ranges are None if all steps are selected.
    """
    open_ends = [stride.low for stride in strides if stride.high is None and stride.stride == 1]
    if open_ends:
        low = min(open_ends)
        for first, last in reversed(ranges):
            if last >= low - 1:
                low = min(low, first)
        ranges = tuple(interval for interval in ranges if interval[0] < low)
        if low == 0:
            return None, ()
        strides = {stride for stride in strides if stride.low < low} | {_Stride(low, None, 1)}
    return ranges, tuple(sorted(strides, key=lambda stride: (stride.low, stride.stride, str(stride))))


def _merge(ranges: list[tuple[int, int]], name: str, value: object) -> _Ranges:
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
    except ValueError:  # an int with more digits than Python converts to text
        shown = f"<{type(value).__name__}>"
    return ConfigError(
        f"{name}={shown}: {reason}",
        hint=f'give {name}="0|3-5|10", "all", an int, a range or a list of ints',
        code="AD102",
    )


def _marked(name: str, text: str, start: int, length: int, reason: str) -> ConfigError:
    lead = f"{name}="
    # An empty part at the end has no character to point at: point at the bar before it.
    start = min(start, max(len(text) - 1, 0))
    shown = len(repr(text[start : start + length])) - 2
    pointer = " " * (len(lead) + len(repr(text[:start])) - 1) + "^" * max(shown, 1)
    return ConfigError(
        f"{reason} in\n{lead}{text!r}\n{pointer}",
        hint='write numbers and ranges joined by "|", such as "0|3-5|10", "0-10000:1000" or "4000-", or "all"',
        code="AD102",
    )
