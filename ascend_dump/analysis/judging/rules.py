"""Rules as data: thresholds of all operators and of those that match a glob, from a TOML or JSON file."""

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


def rules_of(given: RuleSource) -> Rules:
    """The rules themselves, from a mapping, or from a file. Raises ConfigError for what is no rule."""
    if given is None:
        return Rules()
    if isinstance(given, Rules):
        return given
    source = "rules"
    if not isinstance(given, Mapping):
        path = Path(given)
        source = f"rules {str(path)!r}"
        try:
            text = read_small(path, _LARGEST).decode()
        except OSError as error:
            raise ConfigError(f"{source} cannot be read: {error.strerror or error}", hint=_HINT) from error
        except ValueError as error:
            raise ConfigError(f"{source} is not text: {error}", hint=_HINT) from error
        given = decode_settings(path, text)
    if not isinstance(given, Mapping):
        raise ConfigError(f"{source}: expected an object with rule names as keys, got {_described(given)}", hint=_HINT)
    general = {name: value for name, value in given.items() if not isinstance(value, Mapping)}
    rules = _changed(Rules(), general, "", source)
    special = {glob: value for glob, value in given.items() if isinstance(value, Mapping)}
    return rules._replace(
        special=tuple((glob, _changed(rules, value, glob, source)) for glob, value in special.items())
    )


def _changed(rules: Rules, values: Mapping[str, Any], glob: str, source: str) -> Rules:
    known: dict[str, Any] = {}
    for name, value in values.items():
        where = f"{name!r} inside {glob!r}" if glob else repr(name)
        if name not in _NAMES:
            raise ConfigError(f"{source}: there is no rule {where}", hint=_HINT)
        if name == "undefined" and not glob:
            raise ConfigError(f"{source}: {where} is allowed only inside a glob", hint=_HINT)
        numbers = list(value) if isinstance(value, (list, tuple)) else [value]
        if not all(_is_number(one) for one in numbers) or not _is_as_many(name, numbers):
            raise ConfigError(f"{source}: {where} is {value!r}", hint=_HINT)
        known[name] = tuple(numbers) if name in ("bias", "undefined") else numbers[0]
    return rules._replace(**known)


def _described(value: Any) -> str:
    """What a file holds in place of an object, in the words of JSON."""
    names = {list: "a list", str: "a string", bool: "true or false", type(None): "null"}
    return names.get(type(value), "a number")


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and value >= 0


def _is_as_many(name: str, numbers: list[Any]) -> bool:
    if name == "undefined":
        return all(isinstance(one, int) for one in numbers)
    return len(numbers) == (2 if name == "bias" else 1)
