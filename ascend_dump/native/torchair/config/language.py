"""torchair's configuration language: the options of `CompilerConfig.dump_config` as one JSON object.

The object may also be the dump JSON that the option `dump_config_path` names.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Optional, Union

from ascend_dump.native.languages import CERTAIN, LIKELY, ConfigLanguage, Surroundings
from ascend_dump.native.torchair.config.build import build_settings
from ascend_dump.native.torchair.config.check import check_file

if TYPE_CHECKING:
    from ascend_dump.common.problem import Problem
    from ascend_dump.request import DumpRequest

__all__ = ["LANGUAGES", "TorchairLanguage"]

_OWN_KEYS = ("dump_config_path", "data_dump_stage")


class TorchairLanguage(ConfigLanguage):
    """The options of torchair's dump_config."""

    name = "torchair"
    suffix = ".json"

    def recognise(self, value: Any, suffix: str) -> int:
        if not isinstance(value, dict):
            return 0
        # TensorFlow's bridge has the key quant_dumpable too, but its value is a text.
        if any(key in value for key in _OWN_KEYS) or isinstance(value.get("quant_dumpable"), bool):
            return CERTAIN
        return LIKELY if "enable_dump" in value else 0

    def check(self, source: Union[Path, bytes], around: Surroundings) -> list[Problem]:
        return check_file(source, all=True, situation=around.situation)

    def build(self, request: DumpRequest, names: Optional[Iterable[str]] = None) -> Mapping[str, Any]:
        return build_settings(request, names=names)

    def usage(self, built: Mapping[str, Any], file: str) -> str:
        if "dump" not in built:
            return ""
        name = file or "in a file whose name ends in .json"
        return f"set config.dump_config.dump_config_path to this dump JSON ({name})"


LANGUAGES = (TorchairLanguage(),)
