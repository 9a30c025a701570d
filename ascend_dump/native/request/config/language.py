"""The configuration language of `ascend-dump` itself: a DumpRequest as JSON or TOML. Text from stdin has to be JSON."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Optional, Union

from ascend_dump.common.problem import Problem
from ascend_dump.errors import AscendDumpError, ConfigError
from ascend_dump.native.languages import CERTAIN, LIKELY, POSSIBLE, ConfigLanguage, Surroundings
from ascend_dump.request import ALIASES, SPELLINGS, DumpRequest

__all__ = ["LANGUAGES", "SettingsLanguage"]

_SECTION = "ascend_dump"


class SettingsLanguage(ConfigLanguage):
    """Our own settings."""

    name = "ascend-dump"
    selects_ranks = True

    def recognise(self, value: Any, suffix: str) -> int:
        if suffix == ".toml":
            return CERTAIN
        if not isinstance(value, dict):
            return 0
        if _SECTION in value:
            return CERTAIN
        if not any(key in SPELLINGS for key in value):
            return 0
        return LIKELY if all(key in SPELLINGS or key in ALIASES for key in value) else POSSIBLE

    def check(self, source: Union[Path, bytes], around: Surroundings) -> list[Problem]:
        try:
            if isinstance(source, bytes):
                DumpRequest.from_mapping(_decoded(source))
            else:
                DumpRequest.from_file(source)
        except AscendDumpError as error:
            # Some messages have a line with ` ^` below the marked position. Such lines are removed.
            message = " ".join(line for line in error.message.splitlines() if line.strip(" ^"))
            return [Problem(error.code, "error", message, error.hint)]
        return []

    def build(self, request: DumpRequest, names: Optional[Iterable[str]] = None) -> Mapping[str, Any]:
        return request.to_mapping()


def _decoded(text: bytes) -> Mapping[str, Any]:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"the settings are not JSON: {error}", hint='write {"steps": "0|1"}') from None
    inner = value.get(_SECTION, value) if isinstance(value, dict) else value
    if not isinstance(inner, dict):
        raise ConfigError(
            f"the settings are of type {type(inner).__name__}, expected an object",
            hint="write keys such as steps and path",
        )
    return inner


LANGUAGES = (SettingsLanguage(),)
