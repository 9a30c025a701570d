"""MindSpore's configuration language: the dump JSON that MINDSPORE_DUMP_CONFIG names."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Optional, Union

from ascend_dump.native.cann.graph import Node
from ascend_dump.native.languages import CERTAIN, ConfigLanguage, Surroundings
from ascend_dump.native.mindspore.config.build import left_out, mindspore_config
from ascend_dump.native.mindspore.config.check import check_mindspore_config, known_of_graph
from ascend_dump.native.mindspore.graph import read_ir
from ascend_dump.native.mindspore.runtime import JIT_LEVELS, RUNTIMES, Runtime

if TYPE_CHECKING:
    from ascend_dump.common.problem import Problem
    from ascend_dump.request import DumpRequest

__all__ = ["LANGUAGES", "MindSporeLanguage"]


class MindSporeLanguage(ConfigLanguage):
    """MindSpore's dump JSON."""

    name = "mindspore"
    suffix = ".json"
    runtimes = (*RUNTIMES, *JIT_LEVELS)

    def recognise(self, value: Any, suffix: str) -> int:
        return CERTAIN if isinstance(value, dict) and "common_dump_settings" in value else 0

    def check(self, source: Union[Path, bytes], around: Surroundings) -> list[Problem]:
        runtime = None if around.on is None else Runtime.named(around.on)
        graph = around.graph
        known = known_of_graph(graph) if graph is not None and graph.suffix == ".ir" else None
        return check_mindspore_config(source, all=True, situation=around.situation, runtime=runtime, known=known)

    def build(self, request: DumpRequest, names: Optional[Iterable[str]] = None) -> Mapping[str, Any]:
        return mindspore_config(request, names=names)

    def left_out(self, request: DumpRequest) -> list[Problem]:
        return left_out(request)

    def operators(self, graph: Path) -> list[Node]:
        if graph.suffix != ".ir":
            return super().operators(graph)
        return [
            Node(operator.name, operator.type, (), str(graph)) for operator in read_ir(graph) if operator.has_kernel
        ]


LANGUAGES = (MindSporeLanguage(),)
