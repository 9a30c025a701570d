"""torchair's language: the options of `CompilerConfig.dump_config` as one JSON object."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Optional, Union

from ascend_dump.native.languages import CERTAIN, LIKELY, ConfigLanguage, Surroundings
from ascend_dump.native.torchair.config.build import build_options
from ascend_dump.native.torchair.config.check import check_file

if TYPE_CHECKING:
    from ascend_dump.common.problem import Problem
    from ascend_dump.request import DumpRequest

__all__ = ["LANGUAGES", "TorchairLanguage"]

_OWN_KEYS = ("dump_config_path", "data_dump_stage")


class TorchairLanguage(ConfigLanguage):
    name = "torchair"

    def recognise(self, value: Any, suffix: str) -> int:
        if not isinstance(value, dict):
            return 0
        # TensorFlow's bridge has the same key, but as text.
        if any(key in value for key in _OWN_KEYS) or isinstance(value.get("quant_dumpable"), bool):
            return CERTAIN
        return LIKELY if "enable_dump" in value else 0

    def check(self, source: Union[Path, bytes], around: Surroundings) -> list[Problem]:
        return check_file(source, all=True, situation=around.situation)

    def build(self, request: DumpRequest, names: Optional[Iterable[str]] = None) -> Mapping[str, Any]:
        return build_options(request, names=names)


LANGUAGES = (TorchairLanguage(),)
