"""Rules as data: thresholds of all operators and of those that match a glob, from a TOML or JSON file."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Union

from ascend_dump._errors import ConfigError
from ascend_dump._files import read_small
from ascend_dump._request import decode_settings
from ascend_dump.analysis.compare._verdict import Rules

__all__ = ["RuleSource", "rules_of"]

RuleSource = Union[Rules, Mapping[str, Any], str, "os.PathLike[str]", None]

_LARGEST = 1 << 20
_NAMES = tuple(name for name in Rules._fields if name != "special")
_HINT = (
    f"expected {', '.join(_NAMES)} with numbers (bias with two), for all operators, or below a glob of operator names "
    'or types: {"envelope": 8, "*softmax*": {"envelope": 16}}'
)


def rules_of(given: RuleSource) -> Rules:
    """The rules themselves, from a mapping, or from a file. Raises ConfigError for what is no rule."""
    if given is None:
        return Rules()
    if isinstance(given, Rules):
        return given
    if not isinstance(given, Mapping):
        path = Path(given)
        try:
            text = read_small(path, _LARGEST).decode()
        except OSError as error:
            raise ConfigError(f"rules {str(path)!r} cannot be read: {error.strerror or error}", hint=_HINT) from error
        except ValueError as error:
            raise ConfigError(f"rules {str(path)!r} is not text: {error}", hint=_HINT) from error
        given = decode_settings(path, text)
    if not isinstance(given, Mapping):
        raise ConfigError(f"rules are {type(given).__name__}", hint=_HINT)
    general = {name: value for name, value in given.items() if not isinstance(value, Mapping)}
    rules = _changed(Rules(), general, "")
    special = {glob: value for glob, value in given.items() if isinstance(value, Mapping)}
    return rules._replace(special=tuple((glob, _changed(rules, value, glob)) for glob, value in special.items()))


def _changed(rules: Rules, values: Mapping[str, Any], glob: str) -> Rules:
    for name, value in values.items():
        where = f"{name} of {glob!r}" if glob else name
        if name not in _NAMES:
            raise ConfigError(f"there is no rule {where}", hint=_HINT)
        wanted = 2 if name == "bias" else 1
        numbers = list(value) if isinstance(value, (list, tuple)) else [value]
        plain = [one for one in numbers if isinstance(one, (int, float)) and not isinstance(one, bool) and one >= 0]
        if len(plain) != wanted or len(numbers) != wanted:
            raise ConfigError(f"rule {where} is {value!r}", hint=_HINT)
    known: dict[str, Any] = {name: tuple(value) if name == "bias" else value for name, value in values.items()}
    return rules._replace(**known)
