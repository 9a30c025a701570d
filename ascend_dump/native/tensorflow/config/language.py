"""TensorFlow's configuration language: the keys of NpuOptimizer's parameter_map, as one JSON object."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Optional, Union

from ascend_dump.native.languages import CERTAIN, POSSIBLE, ConfigLanguage, Surroundings
from ascend_dump.native.scenes import SCENES
from ascend_dump.native.tensorflow import tf1_dump
from ascend_dump.native.tensorflow.config.build import parameters
from ascend_dump.native.tensorflow.config.check import check_parameters
from ascend_dump.native.tensorflow.config.python import STYLES, python_lines

if TYPE_CHECKING:
    from ascend_dump.common.problem import Problem
    from ascend_dump.request import DumpRequest
    from ascend_dump.steps import Steps

__all__ = ["LANGUAGES", "TensorFlowLanguage"]

#: Keys that only TensorFlow's bridge has; torchair has the other keys too.
_OWN_KEYS = ("enable_dump_debug", "dump_debug_mode", "use_off_line", "enable_exception_dump")


class TensorFlowLanguage(ConfigLanguage):
    """The keys of NpuOptimizer."""

    name = "tensorflow"
    styles = tuple(STYLES)
    standalone = Path(tf1_dump.__file__)

    def recognise(self, value: Any, suffix: str) -> int:
        if not isinstance(value, dict):
            return 0
        if any(key in value for key in _OWN_KEYS):
            return CERTAIN
        return POSSIBLE if "enable_dump" in value else 0

    def check(self, source: Union[Path, bytes], around: Surroundings) -> list[Problem]:
        return check_parameters(source, all=True, situation=around.situation)

    def build(self, request: DumpRequest, names: Optional[Iterable[str]] = None) -> Mapping[str, Any]:
        """Return the keys of the dump, and `use_off_line`: every dump needs this key, and it identifies the file."""
        return {"use_off_line": True, **parameters(request, names=names)}

    def python(self, built: Mapping[str, Any], style: str, ranks: Steps) -> str:
        return "\n".join(python_lines(built, style, ranks)) + "\n"

    def left_out(self, request: DumpRequest) -> list[Problem]:
        return list(SCENES.problems(request))


LANGUAGES = (TensorFlowLanguage(),)
