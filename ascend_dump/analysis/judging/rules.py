"""Read the rules of a comparison: thresholds for all operators and per glob, from a mapping, a TOML or a JSON file."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Union

from ascend_dump.analysis.judging.verdict import Rules
from ascend_dump.errors import ConfigError
from ascend_dump.request import decode_settings
from ascend_dump.storage.files import read_small

__all__ = ["RuleSource", "rules_of"]

RuleSource = Union[Rules, Mapping[str, Any], str, "os.PathLike[str]", None]

_LARGEST = 1 << 20
_NAMES = tuple(name for name in Rules._fields if name != "special")
_HINT = (
    f"expected {', '.join(_NAMES)} with numbers (bias with two), for all operators, or inside a glob of operator names "
    'or types: {"envelope": 8, "*softmax*": {"envelope": 16}}; undefined, inside a glob only, with indices of outputs'
)


def rules_of(rules: RuleSource) -> Rules:
    """Return the rules that a mapping or a file contains; the default rules for None, and `Rules` unchanged.

    Raises ConfigError for a file that cannot be read, and for unknown rules and values.
    """
    if rules is None:
        return Rules()
    if isinstance(rules, Rules):
        return rules
    settings: Any = rules
    source = "rules"
    if not isinstance(rules, Mapping):
        path = Path(rules)
        source = f"rules {str(path)!r}"
        try:
            text = read_small(path, _LARGEST).decode()
        except OSError as error:
            raise ConfigError(f"{source} cannot be read: {error.strerror or error}", hint=_HINT) from error
        except ValueError as error:
            raise ConfigError(f"{source} is not text: {error}", hint=_HINT) from error
        settings = decode_settings(path, text)
    if not isinstance(settings, Mapping):
        kind = _described(settings)
        raise ConfigError(f"{source}: expected an object with rule names as keys, got {kind}", hint=_HINT)
    general = {name: value for name, value in settings.items() if not isinstance(value, Mapping)}
    special = {glob: value for glob, value in settings.items() if isinstance(value, Mapping)}
    base = _changed(Rules(), general, "", source)
    return base._replace(special=tuple((glob, _changed(base, value, glob, source)) for glob, value in special.items()))


def _changed(rules: Rules, values: Mapping[str, Any], glob: str, source: str) -> Rules:
    changes: dict[str, Any] = {}
    for name, value in values.items():
        where = f"{name!r} inside {glob!r}" if glob else repr(name)
        if name not in _NAMES:
            raise ConfigError(f"{source}: there is no rule {where}", hint=_HINT)
        if name == "undefined" and not glob:
            raise ConfigError(f"{source}: {where} is allowed only inside a glob", hint=_HINT)
        numbers = list(value) if isinstance(value, (list, tuple)) else [value]
        if not all(_is_number(number) for number in numbers) or not _is_as_many(name, numbers):
            raise ConfigError(f"{source}: {where} is {value!r}", hint=_HINT)
        changes[name] = tuple(numbers) if name in ("bias", "undefined") else numbers[0]
    return rules._replace(**changes)


def _described(value: Any) -> str:
    """Return the kind of a JSON value that is no object, in words."""
    names = {list: "a list", str: "a string", bool: "true or false", type(None): "null"}
    return names.get(type(value), "a number")


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and value >= 0


def _is_as_many(name: str, numbers: list[Any]) -> bool:
    if name == "undefined":
        return all(isinstance(number, int) for number in numbers)
    return len(numbers) == (2 if name == "bias" else 1)
