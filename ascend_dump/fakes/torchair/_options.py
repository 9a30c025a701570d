"""The classes of the options in torchair's CompilerConfig: accepted values, values when read, and error messages.

Reading the value of most options returns it as text, "1" for True and "0" for False. Source: torchair 2.13,
configs/_option_base.py (values, checks, messages) and _utils/error_code.py (lines appended to a message). One
difference: torchair checks `dump_step` with a regular expression that backtracks, the check here takes linear time.
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
    """One option. optional: the list of accepted values; None accepts any value."""

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
    def value(self, value: Any) -> None:
        self._value = self.accept(value)

    def read(self) -> Any:
        """Return None, or the value as text; True is "1" and False is "0"."""
        if self._value is None:
            return None
        return {"True": "1", "False": "0"}.get(str(self._value), str(self._value))

    def accept(self, value: Any) -> Any:
        """Check an assigned value, and return the value to store. Raises the errors that torchair raises."""
        allowed = self._optional
        if isinstance(allowed, (list, tuple)) and value not in allowed:
            kind = type(allowed[0]) if allowed else None
            raise ValueError(f"Value {value!r} (type: {type(value)}) not in optional list {allowed!r} (type: {kind}).")
        return value


class AnyOf(OptionValue):
    """An option with a list of accepted values."""


class RangeOption(OptionValue):
    """An integer from `low` to `high`, both included."""

    def __init__(self, default: Optional[int], low: int, high: int) -> None:
        super().__init__(default)
        self._low, self._high = low, high

    def accept(self, value: Any) -> Any:
        if not isinstance(value, int):
            raise ValueError(f"Please set integer type, but got {type(value)}")
        if not self._low <= value <= self._high:
            raise ValueError(f"Please set value in [{self._low}, {self._high}], {value} is out of range.")
        return value


class _Typed(OptionValue):
    """The base of options that accept None, or values of one type."""

    def _refuse(self, requirement: str, value: Any) -> NoReturn:
        raise TypeError(f"{requirement}, got {type(value)}")


class Text(_Typed):
    def accept(self, value: Any) -> Any:
        return value if value is None or isinstance(value, str) else self._refuse("value must be str or None", value)


class _RawOption(_Typed):
    """An option whose value is read as it was assigned, not as text."""

    def read(self) -> Any:
        return self._value


class Mapped(_RawOption):
    def accept(self, value: Any) -> Any:
        return value if value is None or isinstance(value, dict) else self._refuse("value must be dict or None", value)


class FunctionOption(_RawOption):
    def accept(self, value: Any) -> Any:
        return value if value is None or callable(value) else self._refuse("value must be Callable or None", value)


class Integers(_RawOption):
    def accept(self, value: Any) -> Any:
        if value is not None and not isinstance(value, (list, tuple)):
            self._refuse("the set value must be None or list", value)
        items = [] if value is None else value
        if not all(isinstance(item, int) for item in items):
            raise TypeError(f"the set value must be int list, got list type: {[type(item) for item in items]}")
        return items


class FileOption(OptionValue):
    def accept(self, value: Any) -> Any:
        if value is not None and not os.path.isfile(value):
            raise FileNotFoundError(f"Please set legal file path, {value} is not found or is not a file!")
        return value


class DirectoryOption(OptionValue):
    """A path of an existing directory; None is refused. The default is not checked."""

    def accept(self, value: Any) -> Any:
        if value is None or not os.path.isdir(value):
            raise FileNotFoundError(f"Please set legal dir path, {value} is not found or is not a file directory!")
        return value


class JsonFileOption(OptionValue):
    """None, or the path of an existing file with the suffix .json. The content of the file is not checked."""

    def accept(self, value: Any) -> Any:
        if value is None:
            return None
        if value == "":
            raise ValueError("File path cannot be empty!")
        if not (os.path.exists(value) and value.endswith(".json") and os.path.isfile(value)):
            raise FileNotFoundError(f"Please set legal file path, {value} is not found or is not '.json' file!")
        return value


class Pattern(OptionValue):
    """A text that `matches` accepts. shown, example: torchair's regular expression and example, for the message."""

    def __init__(self, default: str, matches: Callable[[str], bool], shown: str, example: str) -> None:
        super().__init__(default)
        self._matches, self._shown, self._example = matches, shown, example

    def accept(self, value: Any) -> Any:
        if not isinstance(value, str):
            # As in torchair, a value that is no text gets the error of `re`.
            re.match(self._shown, value)
        if not self._matches(value):
            raise ValueError(
                f"Please set legal regex value format match {self._shown}, "
                f"{value} is Illegal format, correct example:{self._example}."
            )
        return value


def matches_steps(text: str) -> bool:
    """Return True for a `dump_step` that torchair accepts, without backtracking.

    Parts are separated by bars, and a bar may follow the last part. Within a part, torchair's regular expression
    accepts numbers and ranges without a separator: "1-23-4" is 1-2 and 3-4. The checks in `native.torchair` are tested
    against this function, so it is written independently of them.
    """
    # `$` also matches before a newline at the end.
    body = text[:-1] if text.endswith("\n") else text
    if not body:
        return True
    parts = body.split("|")
    if not parts[-1]:
        parts.pop()
    return all(_STEP_PART.fullmatch(part) for part in parts)


def _error_code_line() -> str:
    now = time.strftime("%Y-%m-%d-%H:%M:%S", time.localtime())
    return f"\n[ERROR] {now} (PID:{os.getpid()}, Device:-1, RankID:-1) ERR03005 GRAPH internal error"


def with_tail(error: Exception) -> Exception:
    """Return the error with the lines that torchair appends: the traceback and a line for its log."""
    return type(error)("\n".join((str(error), traceback.format_exc(), _error_code_line())))


class NpuBaseConfig:
    """A section of options. After `_fix` is called, only the existing options can be set."""

    _fixed_attrs: list[str]

    def _fix(self, *names: str) -> None:
        options = [name for name, value in vars(self).items() if isinstance(value, (OptionValue, NpuBaseConfig))]
        object.__setattr__(self, "_fixed_attrs", [*options, *names])

    def __setattr__(self, name: str, value: Any) -> None:
        try:
            self._set(name, value)
        except Exception as error:
            raise with_tail(error)  # noqa: B904  (torchair has no `raise … from`: the traceback is in the message)

    def _set(self, name: str, value: Any) -> None:
        if not hasattr(self, "_fixed_attrs"):
            object.__setattr__(self, name, value)
            return
        if name not in self._fixed_attrs:
            raise ValueError(f"{type(self).__name__} has no option {name}, all options {self._fixed_attrs}")
        option = getattr(self, name)
        if isinstance(option, OptionValue):
            option.value = value
        else:
            object.__setattr__(self, name, value)

    def as_dict(self, mode: str = "max-autotune") -> tuple[dict[str, Any], dict[str, Any]]:
        """Return the local options of one graph, and the global options of the process.

        mode: the value of the option `mode` of CompilerConfig.
        """
        local: dict[str, Any] = {}
        shared: dict[str, Any] = {}
        for name, option in vars(self).items():
            if name not in self._fixed_attrs:
                continue
            if isinstance(option, OptionValue) and option.value is not None:
                local[name] = option.value
            elif isinstance(option, NpuBaseConfig):
                nested_local, nested_shared = option.as_dict(mode)
                local.update(nested_local)
                shared.update(nested_shared)
        return local, shared
