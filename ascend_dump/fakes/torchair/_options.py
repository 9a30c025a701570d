"""The options of torchair's CompilerConfig: what each accepts, how it reads back, and the messages it refuses with.

Source: torchair 2.13, configs/_option_base.py (values, checks, messages) and _utils/error_code.py (the tail of a
message). An option reads back as text whatever was assigned; the check of `dump_step` answers in linear time,
where the real regular expression backtracks.
"""

from __future__ import annotations

import os
import re
import time
import traceback
from collections.abc import Sequence
from typing import Any, Callable, NoReturn, Optional

__all__ = [
    "AnyOf",
    "DirectoryOption",
    "FileOption",
    "FunctionOption",
    "Integers",
    "JsonFileOption",
    "Mapped",
    "NpuBaseConfig",
    "OptionValue",
    "Pattern",
    "RangeOption",
    "Text",
    "matches_steps",
]

_STEP_PART = re.compile(r"\d+(?:-\d\d+)*(?:-\d+)?")


class OptionValue:
    """One option: any value, or one of a list."""

    def __init__(self, default: Any, optional: Optional[Sequence[Any]] = None) -> None:
        self._default = default
        self._optional = optional
        self._value = default

    def __bool__(self) -> bool:
        return bool(self._value)

    @property
    def default(self) -> Any:
        return self._default

    @property
    def optional(self) -> Optional[Sequence[Any]]:
        return self._optional

    @property
    def value(self) -> Any:
        return self.read()

    @value.setter
    def value(self, given: Any) -> None:
        self._value = self.accept(given)

    def read(self) -> Any:
        """None, or the value as text; True is "1" and False is "0"."""
        if self._value is None:
            return None
        return {"True": "1", "False": "0"}.get(str(self._value), str(self._value))

    def accept(self, given: Any) -> Any:
        """The value to keep. Raises what torchair raises."""
        allowed = self._optional
        if isinstance(allowed, (list, tuple)) and given not in allowed:
            kind = type(allowed[0]) if allowed else None
            raise ValueError(f"Value {given!r} (type: {type(given)}) not in optional list {allowed!r} (type: {kind}).")
        return given


class AnyOf(OptionValue):
    """One of a list; named so that tables read well."""


class RangeOption(OptionValue):
    """An integer between two bounds."""

    def __init__(self, default: Optional[int], low: int, high: int) -> None:
        super().__init__(default)
        self._low, self._high = low, high

    def accept(self, given: Any) -> Any:
        if not isinstance(given, int):
            raise ValueError(f"Please set integer type, but got {type(given)}")
        if not self._low <= given <= self._high:
            raise ValueError(f"Please set value in [{self._low}, {self._high}], {given} is out of range.")
        return given


class _Typed(OptionValue):
    """None or one type."""

    def _refuse(self, wanted: str, given: Any) -> NoReturn:
        raise TypeError(f"{wanted}, got {type(given)}")


class Text(_Typed):
    def accept(self, given: Any) -> Any:
        return given if given is None or isinstance(given, str) else self._refuse("value must be str or None", given)


class _AsItIs(_Typed):
    """Reads back what was assigned, not its text."""

    def read(self) -> Any:
        return self._value


class Mapped(_AsItIs):
    def accept(self, given: Any) -> Any:
        return given if given is None or isinstance(given, dict) else self._refuse("value must be dict or None", given)


class FunctionOption(_AsItIs):
    def accept(self, given: Any) -> Any:
        return given if given is None or callable(given) else self._refuse("value must be Callable or None", given)


class Integers(_AsItIs):
    def accept(self, given: Any) -> Any:
        if given is not None and not isinstance(given, (list, tuple)):
            self._refuse("the set value must be None or list", given)
        items = [] if given is None else given
        if not all(isinstance(item, int) for item in items):
            raise TypeError(f"the set value must be int list, got list type: {[type(item) for item in items]}")
        return items


class FileOption(OptionValue):
    def accept(self, given: Any) -> Any:
        if given is not None and not os.path.isfile(given):
            raise FileNotFoundError(f"Please set legal file path, {given} is not found or is not a file!")
        return given


class DirectoryOption(OptionValue):
    """An existing directory; the default is not looked at, and None is none."""

    def accept(self, given: Any) -> Any:
        if given is None or not os.path.isdir(given):
            raise FileNotFoundError(f"Please set legal dir path, {given} is not found or is not a file directory!")
        return given


class JsonFileOption(OptionValue):
    """None or an existing file whose name ends in .json; its content is not looked at."""

    def accept(self, given: Any) -> Any:
        if given is None:
            return None
        if given == "":
            raise ValueError("File path cannot be empty!")
        if not (os.path.exists(given) and given.endswith(".json") and os.path.isfile(given)):
            raise FileNotFoundError(f"Please set legal file path, {given} is not found or is not '.json' file!")
        return given


class Pattern(OptionValue):
    """Text of a certain form. shown: the regular expression that the message names."""

    def __init__(self, default: str, matches: Callable[[str], bool], shown: str, example: str) -> None:
        super().__init__(default)
        self._matches, self._shown, self._example = matches, shown, example

    def accept(self, given: Any) -> Any:
        if not isinstance(given, str):
            # What `re` says of anything else.
            re.match(self._shown, given)
        if not self._matches(given):
            raise ValueError(
                f"Please set legal regex value format match {self._shown}, "
                f"{given} is Illegal format, correct example:{self._example}."
            )
        return given


def matches_steps(text: str) -> bool:
    """Whether torchair takes this `dump_step`, without its backtracking.

    Parts joined by one bar, a last bar allowed; a part is numbers and ranges one after another, so that "1-23-4"
    is the ranges 1-2 and 3-4.
    """
    # `$` also matches before a newline at the end.
    body = text[:-1] if text.endswith("\n") else text
    if not body:
        return True
    parts = body.split("|")
    if not parts[-1]:
        parts.pop()
    return all(_STEP_PART.fullmatch(part) for part in parts)


def _tail() -> str:
    now = time.strftime("%Y-%m-%d-%H:%M:%S", time.localtime())
    return f"\n[ERROR] {now} (PID:{os.getpid()}, Device:-1, RankID:-1) ERR03005 GRAPH internal error"


def with_tail(error: Exception) -> Exception:
    """The same error with torchair's tail: the traceback and a line for its log."""
    return type(error)("\n".join((str(error), traceback.format_exc(), _tail())))


class NpuBaseConfig:
    """A section: its options are known after `_fix`, and no other attribute can be set."""

    _fixed_attrs: list[str]

    def _fix(self, *more: str) -> None:
        found = [name for name, value in vars(self).items() if isinstance(value, (OptionValue, NpuBaseConfig))]
        object.__setattr__(self, "_fixed_attrs", [*found, *more])

    def __setattr__(self, name: str, value: Any) -> None:
        try:
            self._set(name, value)
        except Exception as error:
            raise with_tail(error)  # noqa: B904  (torchair chains nothing, the text is in the message)

    def _set(self, name: str, value: Any) -> None:
        if not hasattr(self, "_fixed_attrs"):
            object.__setattr__(self, name, value)
            return
        if name not in self._fixed_attrs:
            raise ValueError(f"{type(self).__name__} has no option {name}, all options {self._fixed_attrs}")
        held = getattr(self, name)
        if isinstance(held, OptionValue):
            held.value = value
        else:
            object.__setattr__(self, name, value)

    def as_dict(self, mode: str = "max-autotune") -> tuple[dict[str, Any], dict[str, Any]]:
        """Local options, one set for each graph, and global ones, which the process has once."""
        local: dict[str, Any] = {}
        shared: dict[str, Any] = {}
        for name, held in vars(self).items():
            if name not in self._fixed_attrs:
                continue
            if isinstance(held, OptionValue) and held.value is not None:
                local[name] = held.value
            elif isinstance(held, NpuBaseConfig):
                inner, outer = held.as_dict(mode)
                local.update(inner)
                shared.update(outer)
        return local, shared
