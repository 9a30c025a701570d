"""The two configuration languages of CANN: the dump JSON (acl.json), and GE's session options."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Optional, Union

from ascend_dump.native.cann.config.build import acl_config, ge_options
from ascend_dump.native.cann.config.check import check_acl_config, check_ge_file
from ascend_dump.native.languages import CERTAIN, ConfigLanguage, Surroundings
from ascend_dump.native.scenes import SCENES

if TYPE_CHECKING:
    from ascend_dump.common.problem import Problem
    from ascend_dump.request import DumpRequest

__all__ = ["LANGUAGES", "AclLanguage", "GeLanguage"]


class AclLanguage(ConfigLanguage):
    """The dump JSON: an acl.json with the object `dump`."""

    name = "acl"
    shared = True

    def recognise(self, value: Any, suffix: str) -> int:
        return CERTAIN if isinstance(value, dict) and "dump" in value else 0

    def check(self, source: Union[Path, bytes], around: Surroundings) -> list[Problem]:
        return check_acl_config(source, all=True, situation=around.situation)

    def build(self, request: DumpRequest, names: Optional[Iterable[str]] = None) -> Mapping[str, Any]:
        return acl_config(request, names=names)

    def left_out(self, request: DumpRequest) -> list[Problem]:
        return list(SCENES.problems(request))


class GeLanguage(ConfigLanguage):
    """GE's session options (`ge.exec.*`), as one JSON object."""

    name = "ge"

    def recognise(self, value: Any, suffix: str) -> int:
        return CERTAIN if isinstance(value, dict) and any(key.startswith("ge.") for key in value) else 0

    def check(self, source: Union[Path, bytes], around: Surroundings) -> list[Problem]:
        return check_ge_file(source, all=True, situation=around.situation)

    def build(self, request: DumpRequest, names: Optional[Iterable[str]] = None) -> Mapping[str, Any]:
        return ge_options(request, names=names)

    def left_out(self, request: DumpRequest) -> list[Problem]:
        return list(SCENES.problems(request))


LANGUAGES = (AclLanguage(), GeLanguage())
